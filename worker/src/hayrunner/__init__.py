"""Hayrunner: Haystack agents and pipelines as workers on NATS.

Its names are loaded when they are first used, so that commands that only talk to the bus do not
import Haystack.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# Haystack reads this when it is first imported: without it, importing phones home and writes
# a file in the home folder. An operator who wants it sets the variable.
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "false")
# Anthropic's client reads this: otherwise it makes spans of its own beside the worker's, which hold
# what a provider sends as it comes and know nothing of what a run allows, and it sends the trace
# and its baggage to the provider.
os.environ.setdefault("ANTHROPIC_OPEN_TELEMETRY", "false")
os.environ.setdefault("ANTHROPIC_OPEN_TELEMETRY_PROPAGATION", "false")

if TYPE_CHECKING:
    from hayrunner.adapters.citations import CitationRegistry, CitedDocument
    from hayrunner.adapters.run import Run
    from hayrunner.adapters.stream import Stream
    from hayrunner.adapters.subagents import Subagent
    from hayrunner.adapters.suggestions import SuggestionGenerator
    from hayrunner.agent import Agent
    from hayrunner.approvals import requires_approval
    from hayrunner.errors import ToolError
    from hayrunner.hooks import RunHooks
    from hayrunner.registry import Registry
    from hayrunner.retry_policy import RetryPolicy
    from hayrunner.run_inbox import RunInbox
    from hayrunner.tool_context import current_tool_call

__all__ = [
    "Agent",
    "CitationRegistry",
    "CitedDocument",
    "Registry",
    "RetryPolicy",
    "Run",
    "RunHooks",
    "RunInbox",
    "Stream",
    "Subagent",
    "SuggestionGenerator",
    "ToolError",
    "current_tool_call",
    "requires_approval",
]

_HOMES = {
    "Agent": "hayrunner.agent",
    "CitationRegistry": "hayrunner.adapters.citations",
    "CitedDocument": "hayrunner.adapters.citations",
    "Registry": "hayrunner.registry",
    "RetryPolicy": "hayrunner.retry_policy",
    "RunHooks": "hayrunner.hooks",
    "RunInbox": "hayrunner.run_inbox",
    "Run": "hayrunner.adapters.run",
    "Stream": "hayrunner.adapters.stream",
    "Subagent": "hayrunner.adapters.subagents",
    "SuggestionGenerator": "hayrunner.adapters.suggestions",
    "ToolError": "hayrunner.errors",
    "current_tool_call": "hayrunner.tool_context",
    "requires_approval": "hayrunner.approvals",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
