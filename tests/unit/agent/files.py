"""Tools that ask before they do harm, and what they did."""

from collections.abc import Callable
from typing import Any

from tests.unit.agent.runs import call_turn

from hayrunner.approvals import requires_approval
from hayrunner_contracts.commands import Approve


class Files:
    """Tools that remember what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def delete(self, path: str) -> str:
        """Deletes a file."""
        self.done.append(f"delete {path}")
        return f"deleted {path}"

    def tools(self) -> list[Callable[..., Any]]:
        def delete(path: str) -> str:
            """Deletes a file."""
            return self.delete(path)

        def read(path: str) -> str:
            """Reads a file."""
            self.done.append(f"read {path}")
            return f"contents of {path}"

        return [requires_approval(delete), read]


def deletes(*paths: str) -> list[dict[str, Any]]:
    return call_turn(*(("delete", {"path": path}) for path in paths))


def approve(number: int = 0) -> Approve:
    return Approve(tool_call_id=f"call_{number}")
