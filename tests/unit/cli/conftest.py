"""A terminal to sit at."""

import os
import pty
import select
import sys
from collections.abc import Iterator

import pytest

from hayrunner_contracts.testing import eventually


class Terminal:
    """A terminal; what is written to `keyboard` is typed, what is read from it was printed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.keyboard, self._line = pty.openpty()
        self._monkeypatch = monkeypatch

    def attach(self) -> None:
        """Be standard input and standard error. Called in the test: pytest sets both before it."""
        for name, mode in (("stdin", "r"), ("stderr", "w")):
            self._monkeypatch.setattr(sys, name, open(self._line, mode, closefd=False))

    def type(self, line: str) -> None:
        os.write(self.keyboard, line.encode() + b"\n")

    def has_output(self) -> bool:
        """Whether something was printed that was not read yet."""
        readable, _, _ = select.select([self.keyboard], [], [], 0)
        return bool(readable)

    async def printed(self, text: str) -> None:
        """Wait until `text` was printed; what was typed before is printed, too."""
        seen = ""

        def found() -> bool:
            nonlocal seen
            while self.has_output():
                seen += os.read(self.keyboard, 4096).decode()
            return text in seen

        await eventually(found, 5, what=f"{text!r} on the terminal")

    def close(self) -> None:
        os.close(self._line)
        os.close(self.keyboard)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal(monkeypatch)
    yield terminal
    monkeypatch.undo()
    terminal.close()
