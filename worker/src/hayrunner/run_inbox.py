"""What people send to a run while it goes on: decisions on tool calls, and further messages."""

import asyncio
import logging
from collections.abc import Collection

from hayrunner_contracts.commands import Approve, Deny, Modify, RunCommand, Say

__all__ = ["Decision", "RunInbox"]

logger = logging.getLogger(__name__)

Decision = Approve | Deny | Modify

# Far beyond what a run asks for: a sender that goes mad must not fill the worker's memory.
_MOST_DECISIONS = 256
_MOST_SAID = 64


class RunInbox:
    """The commands of one run, kept until it takes them.

    A decision may come before the run asks for it: it is kept for then. Once a call is settled,
    further decisions on it are ignored. `attended` False: nobody learns what the run asks, so it
    need not wait for an answer. For the event loop of the run only.
    """

    def __init__(self, message_id: str = "", *, attended: bool = True) -> None:
        self.attended = attended
        self.said_taken = 0
        """How many messages the run has taken, in all its attempts."""
        self._said_before = 0
        self._message_id = message_id
        self._decisions: list[Decision] = []
        self._settled: set[str] = set()
        self._said: list[str] = []
        self._closed = False
        self._news = asyncio.Event()

    def take(self, command: RunCommand) -> None:
        """Keep a command for the run; one that it cannot take any more is logged and dropped."""
        if isinstance(command, Say):
            if self._said_before:
                # An earlier attempt took it.
                self._said_before -= 1
            elif self._closed or len(self._said) >= _MOST_SAID:
                self._ignore(command)
            else:
                self._said.append(command.text)
        elif isinstance(command, Approve | Deny | Modify):
            known = command.tool_call_id in self._settled
            if self._closed or known or len(self._decisions) >= _MOST_DECISIONS:
                self._ignore(command)
            else:
                self._decisions.append(command)
                self._news.set()

    def _ignore(self, command: RunCommand) -> None:
        kind = type(command).__struct_config__.tag
        logger.info("run %s: a command came too late or too often: %s", self._message_id, kind)

    async def decision(self, call_ids: Collection[str]) -> Decision:
        """The first decision on one of these calls, as soon as there is one."""
        while True:
            for position, decision in enumerate(self._decisions):
                if decision.tool_call_id in call_ids:
                    return self._decisions.pop(position)
            self._news.clear()
            await self._news.wait()

    def has_decision(self, call_ids: Collection[str]) -> bool:
        """Whether there is a decision on one of these calls that was not taken."""
        return any(decision.tool_call_id in call_ids for decision in self._decisions)

    def settle(self, call_id: str) -> None:
        """The call is decided: what else came or comes for it is ignored."""
        self._settled.add(call_id)
        for late in [one for one in self._decisions if one.tool_call_id == call_id]:
            self._decisions.remove(late)
            self._ignore(late)

    @property
    def settled(self) -> set[str]:
        """The calls that are decided."""
        return set(self._settled)

    def go_on(self, *, said_taken: int, settled: Collection[str]) -> None:
        """What an earlier attempt at the run took of the commands that are going to come again."""
        self.said_taken = self._said_before = said_taken
        self._settled.update(settled)

    @property
    def has_said(self) -> bool:
        """Whether there is a message that the run has not taken."""
        return bool(self._said)

    def take_said(self) -> list[str]:
        """The messages that came since the last time, in order."""
        said, self._said = self._said, []
        self.said_taken += len(said)
        return said

    def for_subagent(self) -> "RunInbox":
        """The same decisions, for calls of a subagent. What is said stays for the run itself."""
        shared = RunInbox(self._message_id, attended=self.attended)
        shared._decisions, shared._settled = self._decisions, self._settled
        shared._news = self._news
        return shared

    def close(self) -> None:
        """The run is over: nothing is taken any more."""
        self._closed = True
