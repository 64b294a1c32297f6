"""Every way in, what stands for it, and where it may be found.

`CONTENT` is found in the attributes that are named here, of runs that keep content, and nowhere
else. `NEVER` is found nowhere, whatever a run keeps. `ADDRESS` names where a message goes, chosen
by whoever sends it: no content, and found where addresses stand, in every run.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tests.sweep.capture import Hit

__all__ = ["WAYS", "Way", "is_allowed", "leaks"]

Kind = Literal["content", "never", "address"]

_SHORT = {
    "system": "gen_ai.system_instructions",
    "input": "gen_ai.input.messages",
    "output": "gen_ai.output.messages",
    "definitions": "gen_ai.tool.definitions",
    "arguments": "gen_ai.tool.call.arguments",
    "result": "gen_ai.tool.call.result",
}
_SPANS = {"run": "invoke_agent", "model": "chat", "tool": "execute_tool"}


@dataclass(frozen=True)
class Way:
    """One way in. `places` are attributes of spans for content; for addresses channels, too."""

    what: str
    kind: Kind
    places: frozenset[str]


def _content(what: str, *places: str) -> Way:
    """Places as `model input`: the span, and the attribute of it."""
    parts = (place.split() for place in places)
    found = {f"{_SPANS[span]}: {_SHORT[name]}" for span, name in parts}
    return Way(what, "content", frozenset(found))


def _never(what: str) -> Way:
    return Way(what, "never", frozenset())


def _address(what: str, *channels: str) -> Way:
    return Way(what, "address", frozenset(channels))


_LOGS = ("log, as JSON", "log, as text", "log, another handler")
_MODEL = ("model input", "model output")
_CALL = (*_MODEL, "tool arguments")

WAYS: dict[str, Way] = {
    # --- what a request says
    "Prompt": _content("prompt", "run input", "model input"),
    "Preamble": _content("preamble", "model system"),
    "Instructions": _content("an agent's instructions", "run system", "model system"),
    "History": _content("history", "run input", "model input"),
    "AuthorName": _content("a message's `name`", "run input", "model input"),
    "Memory": _content("what a thread holds", "run input", "model input"),
    "Document": _content("documents of a request", "model input"),
    "AgentDocument": _content("documents of an agent", "model input"),
    "DocumentMeta": _never("a document's `meta`"),
    "FileName": _content("a file's name", "run input", "model input"),
    "FileData": _never("images and files"),
    "MessageMeta": _never("a message's `meta`, a file's `extra`"),
    "ToolContext": _never("`tool_context`"),
    "Metadata": _never("`metadata`"),
    "User": _never("`user`"),
    "Parameter": _never("provider parameters"),
    "AskedModel": _never("a model that a request asks for"),
    "Schema": _content("the schema of an answer", "model definitions"),
    "UnknownField": _never("a field that no request has"),
    "HookName": _never("the name of a hook there is none of"),
    "ToolChoice": _never("a tool to choose that there is none of"),
    "Deadline": _never("a deadline that is none"),
    "OptionValue": _never("a value of the wrong type"),
    "AgentName": _address("an agent that nobody serves", "NATS subjects", "NATS headers", *_LOGS),
    "AgentText": _address("an agent's name that is none", "NATS subjects", "NATS headers"),
    "ThreadId": _address(
        "a thread's id",
        "NATS subjects",
        "NATS headers",
        "invoke_agent: gen_ai.conversation.id",
        "chat: gen_ai.conversation.id",
    ),
    "ThreadTitle": _address("a thread's title", "NATS headers"),
    "RequestHeader": _address("other headers of a request", "NATS headers"),
    "TraceState": _address("the `tracestate` of whoever asks", "NATS headers", "span resources"),
    "RatingComment": _never("what is said of an answer"),
    # --- what a model says
    "ModelText": _content("what a model says", "run input", "run output", *_MODEL),
    "Reasoning": _content("reasoning", "run output", *_MODEL),
    "ToolArgument": _content("arguments of calls", "run output", *_CALL),
    "NestedArgument": _content(
        "arguments of a tool that fails, of a Haystack Agent in a pipeline", "tool result", *_CALL
    ),
    "WrongArgument": _content("arguments that do not fit", "tool result", *_CALL),
    "BrokenJson": _content("arguments that are no JSON", *_CALL),
    "UnknownTool": _content("a tool that there is none of", *_MODEL),
    "CallId": _content("a call's id that is a sentence", *_MODEL),
    "ModelName": _never("a model's name that is a sentence"),
    "FinishReason": _never("a reason to stop that there is none of"),
    "ProviderMeta": _never("other fields of a reply"),
    "AnswerJson": _content("an answer in a form", "run output", "model output"),
    "WrongJson": _content("an answer in the wrong form", "run output", *_MODEL),
    "Suggestion": _content("suggestions", "run output", *_MODEL),
    "Task": _content("a subagent's task", "run input", *_CALL),
    "SubAnswer": _content("a subagent's answer", "run output", "tool result", *_MODEL),
    # --- what a provider says
    "ProviderBody": _never("the body of an error"),
    "ProviderCode": _content(
        "the `code` of a provider's error, told of a subagent", "model input", "tool result"
    ),
    "ProviderHeader": _never("headers of an answer"),
    # --- what tools say
    "ToolResult": _content("results of tools", "model input", "tool result"),
    "Source": _content("documents that a tool finds", "model input", "tool result"),
    "SourceTitle": _content("their titles", "model input", "tool result"),
    "SourceAddress": _content("their addresses", "model input", "tool result"),
    "StateValue": _content("values of a State", "model input", "tool result"),
    "DataEvent": _never("data events"),
    "ToolException": _never("exceptions of tools"),
    "NestedException": _content(
        "exceptions of tools of a Haystack Agent in a pipeline", "model input", "tool result"
    ),
    "Cause": _never("what an exception is raised from"),
    "Note": _never("an exception's notes"),
    # --- what hooks and adapters say
    "Feedback": _content("feedback for another try", "model input"),
    "SkipReason": _content("why a call was skipped", "model input", "tool result"),
    "StopReason": _never("why a run was stopped"),
    "HookException": _never("a hook's exception"),
    "AdapterAnswer": _content("an author's adapter's answer", "run output"),
    "AdapterException": _never("an author's adapter's exception"),
    "ErrorCode": _never("an author's own error code"),
    # --- what people say meanwhile
    "Said": _content("`say`", "model input"),
    "ApproveFeedback": _content("feedback of an `approve`", "model input"),
    "DenyFeedback": _content("feedback of a `deny`", "model input", "tool result"),
    "ModifiedInput": _content("arguments of a `modify`", "model input", "tool arguments"),
    "WrongInput": _never("arguments of a `modify` that do not fit"),
    "LateFeedback": _never("feedback for no call"),
    "CancelReason": _never("the reason of a `cancel`"),
    "Command": _never("a command that cannot be read"),
    # --- the process
    "ApiKey": _never("the provider's key"),
    "NatsPassword": _never("the password for NATS"),
    "Baggage": _never("baggage of whoever asks"),
}


def is_allowed(hit: Hit, *, keeps: bool) -> bool:
    """Whether this may be found there, in a run that keeps its content or does not."""
    way = WAYS.get(hit.found.what)
    if way is None or way.kind == "never":
        return False
    if way.kind == "address":
        return bool({hit.channel, hit.place} & way.places)
    return keeps and hit.channel == "span attributes" and hit.place in way.places


def leaks(hits: Iterable[Hit], *, keeps: bool) -> list[Hit]:
    """What was found where it may not be."""
    return [hit for hit in hits if not is_allowed(hit, keeps=keeps)]
