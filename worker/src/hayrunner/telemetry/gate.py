"""What may be kept on a span, decided where it is made.

Each gate is one function that is called through this module: taking one away lets through what it
holds back, and nothing else. Those that come first are about content: what a user, a model, a tool
or a document says. The others hold back what would be none, if everybody spelled names as they
should.
"""

import asyncio
import re
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from hayrunner.errors import HayrunnerError
from hayrunner.telemetry import names
from hayrunner_contracts.errors import RunError

__all__ = [
    "Content",
    "ContentPolicy",
    "content_allowed",
    "destination",
    "error_type",
    "finish_reason",
    "keeps_content",
    "kept",
    "no_more_than",
    "ordinary_tag",
    "plain_name",
    "tool_name",
    "wants_content",
]

Content = str | Callable[[], str | None] | None
"""What is kept of content: a text, or what gives it when it is called."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/@+-]{0,127}", re.ASCII)
_ORDINARY_TAGS = {"haystack.component.name": names.COMPONENT_NAME}


@dataclass(frozen=True, kw_only=True)
class ContentPolicy:
    """The operator's word on content. `forbidden` overrules everybody, `default` holds where
    neither the request nor the agent says anything."""

    forbidden: bool = False
    default: bool = False


# --- content


def content_allowed(policy: ContentPolicy) -> bool:
    """Whether the operator lets any run keep content."""
    return not policy.forbidden


def wants_content(recorded: bool | None, policy: ContentPolicy) -> bool:
    """Whether a run is to keep content. `recorded` is the request's option or else the agent's
    setting, None where neither says anything."""
    return policy.default if recorded is None else recorded


def keeps_content(recorded: bool | None, policy: ContentPolicy) -> bool:
    """Whether this run keeps content. Asked once per run."""
    return content_allowed(policy) and wants_content(recorded, policy)


def no_more_than(outer: bool | None, keeps: bool) -> bool:
    """A run within a run keeps content only where that one does, whatever it says for itself: what
    it is asked comes from there. `outer` None: it is within none."""
    return keeps if outer is None else outer and keeps


def kept(keeps: bool, content: Callable[[], Content]) -> Content:
    """The content, for a run that keeps it. For others it is not even put together."""
    return content() if keeps else None


# --- everything else


def ordinary_tag(key: str) -> str | None:
    """The attribute for a tag that Haystack, or an author's component, sets on a span; None unless
    it is one that holds no content whatever is run. The inputs of a pipeline are ordinary tags."""
    return _ORDINARY_TAGS.get(key)


def tool_name(name: str, registered: Container[str]) -> str:
    """A tool's name on a span. What a model calls without it being there is text of its own."""
    return name if name in registered else names.OTHER


def destination(subject: str, agent: str, served: Container[str]) -> str:
    """The subject that a request came on, on a span. Anybody can publish to one whose agent part
    is a text of theirs."""
    return subject if agent in served else names.UNKNOWN_DESTINATION


def plain_name(value: Any) -> str | None:
    """A model's name or the id of a call, as a provider sends it. None for what is none: too
    long, or with characters that no such name has."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        return None
    return value


def finish_reason(value: Any) -> str:
    """Why a model stopped, as a provider says it."""
    return value if value in names.FINISH_REASONS else names.OTHER


def error_type(error: BaseException) -> str:
    """The code of what went wrong, never what the exception says. A pipeline wraps what its
    components raise: its causes are looked through."""
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, HayrunnerError | RunError):
            return cause.code if cause.code in names.ERROR_TYPES else names.OTHER
        seen.add(id(cause))
        cause = cause.__cause__
    return names.OTHER
