"""Requests that must be refused, and how: shared by the tests of the codec and those over NATS."""

import json
from typing import Any, NamedTuple

__all__ = ["BAD_REQUESTS", "BadRequest"]

_UUID = "01981a60-0000-7000-8000-000000000001"
_CALL = {"tool_name": "find_order", "arguments": {}, "id": "c1"}
_HI = {"role": "user", "content": "hi"}
_PNG = "iVBORw0KGgo="


class BadRequest(NamedTuple):
    """`message` is a part of the refusal's text."""

    name: str
    data: bytes
    code: str
    field: str | None
    message: str


def _bad(name: str, request: Any, field: str | None, message: str) -> BadRequest:
    data = request if isinstance(request, bytes) else json.dumps(request).encode()
    return BadRequest(name, data, "invalid_request", field, message)


def _prompt(name: str, fields: dict[str, Any], field: str, message: str) -> BadRequest:
    return _bad(name, {"prompt": "hi", **fields}, field, message)


def _option(name: str, option: str, value: Any, message: str, place: str = "") -> BadRequest:
    field = f"options.{option}{place}"
    return _bad(name, {"prompt": "hi", "options": {option: value}}, field, message)


def _message(name: str, message: Any, place: str, problem: str) -> BadRequest:
    return _bad(name, {"messages": [message]}, f"messages[0]{place}", problem)


def _part(name: str, role: str, part: Any, place: str, problem: str) -> BadRequest:
    message = {"role": role, "content": [part]}
    return _message(name, message, f".content[0]{place}", problem)


_NOT_JSON = [
    _bad("no bytes", b"", None, "line 1 column 1"),
    _bad("broken JSON", b'{"prompt": "hi"', None, "not valid JSON at line 1 column"),
    _bad("broken JSON on a later line", b'{\n"prompt": hi}', None, "line 2 column 11"),
    _bad("single quotes", b"{'prompt': 'hi'}", None, "not valid JSON at line 1 column 2"),
    _bad("something after the object", b'{"prompt": "hi"} x', None, "line 1 column 18"),
    _bad("an array", b"[1]", None, "must be an object, not an array"),
    _bad("a number", b"5", None, "must be an object, not an integer"),
    _bad("null", b"null", None, "must be an object, not null"),
    _bad("not UTF-8", b'{"prompt": "\xff"}', None, "not valid UTF-8 at byte 12"),
    _bad("UTF-16", '{"prompt": "hi"}'.encode("utf-16"), None, "not valid UTF-8"),
    _bad("half a surrogate pair", b'{"prompt": "\\ud800"}', "prompt", "surrogate"),
    _bad("a control character", b'{"prompt": "\x01"}', None, "line 1 column 13"),
    _bad("NaN", b'{"prompt": "hi", "timeout_s": NaN}', "timeout_s", "finite"),
    _bad(
        "an infinity",
        b'{"prompt": "hi", "options": {"temperature": -Infinity}}',
        "options.temperature",
        "finite",
    ),
    _bad(
        "a number beyond doubles",
        b'{"prompt": "hi", "options": {"merge_params": {"a": [1e999]}}}',
        "options.merge_params.a[0]",
        "too large",
    ),
    _bad(
        "an integer beyond 64 bits",
        b'{"prompt": "hi", "options": {"max_turns": 99999999999999999999}}',
        "options.max_turns",
        "at most 64 bits",
    ),
    _bad(
        "an integer of many digits",
        b'{"prompt": "hi", "options": {"merge_params": {"a": ' + b"9" * 100_000 + b"}}}",
        "options.merge_params.a",
        "at most 64 bits",
    ),
    _bad("a field given twice", b'{"prompt": "a", "prompt": "b"}', "prompt", "given twice"),
    _bad(
        "an option given twice",
        b'{"prompt": "a", "options": {"max_turns": 1, "max_turns": 2}}',
        "options.max_turns",
        "given twice",
    ),
    _bad(
        "10,000 levels of arrays",
        b'{"prompt": "hi", "options": {"tool_context": {"a": '
        + b"[" * 10_000
        + b"]" * 10_000
        + b"}}}",
        None,
        "nested deeper than 64",
    ),
    _bad(
        "10,000 levels of objects, cut off",
        b'{"prompt": "hi", "options": ' + b'{"a":' * 10_000,
        None,
        "nested deeper than 64",
    ),
    BadRequest(
        "2 MB",
        b'{"prompt": "' + b"x" * 2_000_000 + b'"}',
        "payload_too_large",
        None,
        "at most 900000",
    ),
]

_FIELDS = [
    _bad("nothing to work on", {}, "prompt", "prompt or messages"),
    _bad("null for a prompt", {"prompt": None}, "prompt", "prompt or messages"),
    _bad("an empty prompt", {"prompt": ""}, "prompt", "must not be empty"),
    _bad("a blank prompt", {"prompt": " \n\t"}, "prompt", "must not be empty"),
    _bad("no messages in messages", {"messages": []}, "messages", "must not be empty"),
    _bad("a number for a prompt", {"prompt": 5}, "prompt", "must be a string, not an integer"),
    _bad("a string for messages", {"messages": "hi"}, "messages", "must be an array"),
    _prompt(
        "both prompt and messages",
        {"messages": [{"role": "user", "content": "hi"}]},
        "messages",
        "one of the two",
    ),
    _bad("a misspelled field", {"promt": "hi"}, "promt", "did you mean prompt?"),
    _prompt("a field of elsewhere", {"zzz": 1}, "zzz", "known are deadline,"),
    _prompt("a strange field", {"a b\n\u2028": 1}, "'a b\\n\\u2028'", "unknown field"),
    _prompt("an unknown mode", {"mode": "sync"}, "mode", "must be one of stream, answer"),
    _prompt("a number for a mode", {"mode": 1}, "mode", "must be a string, not an integer"),
    _prompt("a string for a boolean", {"tools": "yes"}, "tools", "must be a boolean"),
    _prompt("no time at all", {"timeout_s": 0}, "timeout_s", "more than 0"),
    _prompt("a timeout of a year", {"timeout_s": 31536000}, "timeout_s", "at most 604800"),
    _prompt("a timeout in words", {"timeout_s": "10s"}, "timeout_s", "a number or null"),
    _prompt("a deadline without a zone", {"deadline": "2026-01-31T12:00:00"}, "deadline", "zone"),
    _prompt("a day that is none", {"deadline": "2026-02-31T12:00:00Z"}, "deadline", "RFC 3339"),
    _prompt(
        "a timeout and a deadline",
        {"timeout_s": 5, "deadline": "2026-01-31T12:00:00Z"},
        "deadline",
        "beside timeout_s",
    ),
    _prompt(
        "a timeout and an option's deadline",
        {"timeout_s": 5, "options": {"deadline": "2026-01-31T12:00:00Z"}},
        "options.deadline",
        "beside timeout_s",
    ),
    _prompt("an id that is no UUID", {"message_id": "7"}, "message_id", "must be a UUID"),
    _prompt("an id that widens a subject", {"message_id": "a.>"}, "message_id", "1 to 128"),
    _prompt("a thread with a dot", {"thread_id": "a.b"}, "thread_id", "1 to 128 characters"),
    _prompt("a thread of no name", {"thread_id": ""}, "thread_id", "1 to 128 characters"),
    _prompt("a user that is no string", {"user": {"id": 1}}, "user", "must be a string"),
    _prompt("a user of no name", {"user": ""}, "user", "1 to 1024"),
    _prompt("metadata that is a list", {"metadata": []}, "metadata", "must be an object"),
    _prompt("metadata that is nested", {"metadata": {"a": {}}}, "metadata.a", "must be a string"),
    _prompt("a long entry", {"metadata": {"a": "x" * 1025}}, "metadata.a", "at most 1024"),
    _prompt("65 entries", {"metadata": {str(i): "" for i in range(65)}}, "metadata", "at most 64"),
    _prompt("a schema that is a string", {"response_format": "json"}, "response_format", "object"),
    _prompt(
        "a schema in OpenAI's wrapping",
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        "response_format",
        "the JSON Schema itself",
    ),
    _prompt(
        "a schema of an unknown type",
        {"response_format": {"type": "json_object"}},
        "response_format.type",
        "must be one of array",
    ),
    _prompt(
        "a schema that leads elsewhere",
        {"response_format": {"properties": {"a": {"$ref": "file:///etc/passwd"}}}},
        "response_format.properties.a.$ref",
        "must point into the schema",
    ),
    _prompt(
        "two forms for one answer",
        {"response_format": {"type": "object"}, "options": {"then_format": {"type": "object"}}},
        "options.then_format",
        "must not be given beside response_format",
    ),
    _prompt(
        "a form for the outcome of tools that do not run",
        {"mode": "answer", "options": {"then_format": {"type": "object"}}},
        "options.then_format",
        "needs tools: true",
    ),
]

_OPTIONS = [
    _prompt("options that are a list", {"options": []}, "options", "must be an object"),
    _option("a misspelled option", "max_tunrs", 3, "did you mean max_turns?"),
    _option("a negative number of turns", "max_turns", -1, "at least 0"),
    _option("a string for turns", "max_turns", "3", "must be an integer or null, not a string"),
    _option("half a turn", "max_turns", 1.5, "not a number"),
    _option("a boolean for turns", "max_turns", True, "not a boolean"),
    _option("no tokens at all", "max_tokens", 0, "at least 1"),
    _option("a string for a temperature", "temperature", "hot", "must be a number"),
    _option("a list for parameters", "merge_params", [], "must be an object or null"),
    _option("an unknown tool choice", "tool_choice", "any", "auto, required, none"),
    _option("a list for a tool choice", "tool_choice", [], "auto, required, none"),
    _option("a tool choice of no name", "tool_choice", {"name": ""}, "not be empty", ".name"),
    _option(
        "OpenAI's tool choice", "tool_choice", {"type": "function", "function": {}}, '{"name"'
    ),
    _option("a hook that is no name", "hooks", ["a b"], "1 to 128 characters", "[0]"),
    _option("33 hooks", "hooks", ["a"] * 33, "at most 32"),
    _option("an unknown way to wait", "on_busy_thread", "skip", "must be one of wait, reject"),
    _option("an empty document", "documents", [{"id": "1"}], "content or a blob", "[0].content"),
    _option("a document of a number", "documents", [{"content": 1}], "a string", "[0].content"),
    _option("bytes out of range", "documents", [{"blob": {"data": [256]}}], "", "[0].blob.data[0]"),
    _option("history that is a string", "history", "hi", "must be an array"),
    _option("history of no role", "history", [{"content": "hi"}], "is missing", "[0].role"),
]  # fmt: skip

_MESSAGES = [
    _message("a message that is a string", "hi", "", "must be an object, not a string"),
    _message("a message of no role", {"content": "hi"}, ".role", "is missing"),
    _message("an unknown role", {"role": "bot", "content": "hi"}, ".role", "must be one of"),
    _message("a message of no content", {"role": "user"}, ".content", "is missing"),
    _message("content null", {"role": "user", "content": None}, ".content", "a string or"),
    _message("empty content", {"role": "user", "content": []}, ".content", "not be empty"),
    _message("blank content", {"role": "user", "content": " "}, ".content", "not be empty"),
    _message(
        "a misspelled field of a message",
        {"role": "user", "content": "hi", "mata": {}},
        ".mata",
        "did you mean meta?",
    ),
    _part("a number for a text", "user", {"text": 5}, ".text", "must be a string"),
    _part("an unknown part", "user", {"video": {}}, "", "must be a content part"),
    _part("a part of two kinds", "user", {"text": "a", "image": {}}, ".image", "one field"),
    _part(
        "a tool call in a user message", "user", {"tool_call": _CALL}, ".tool_call", "assistant"
    ),
    _part(
        "a result in a user message",
        "user",
        {"tool_call_result": {"result": "1", "origin": _CALL, "error": False}},
        ".tool_call_result",
        "only a tool message",
    ),
    _part("text in a tool message", "tool", {"text": "hi"}, ".text", "only results"),
    _part(
        "reasoning in a user message",
        "user",
        {"reasoning": {"reasoning_text": "hm", "extra": {}}},
        ".reasoning",
        "only an assistant message",
    ),
    _part("an image in a system message", "system", {"image": {"base64_image": _PNG}}, ".image",
          "only a user message"),
    _part(
        "arguments that are a string",
        "assistant",
        {"tool_call": {"tool_name": "x", "arguments": "{}"}},
        ".tool_call.arguments",
        "must be an object, not a string",
    ),
    _part(
        "an image that is no base64",
        "user",
        {"image": {"base64_image": "?"}},
        ".image.base64_image",
        "must be base64",
    ),
    _part(
        "an image by URL",
        "user",
        {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}},
        ".image_url.url",
        "never fetched",
    ),
    _part("an unknown typed part", "user", {"type": "video"}, ".type", "must be one of text"),
    _message(
        "a tool message that answers nothing",
        {"role": "tool", "tool_call_id": "c9", "content": "1"},
        ".tool_call_id",
        "names no tool call",
    ),
    _message(
        "arguments that are no JSON",
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "function": {"name": "x", "arguments": "{"}}],
        },
        ".tool_calls[0].function.arguments",
        "JSON text of an object",
    ),
    _bad(
        "only a system message",
        {"messages": [{"role": "system", "content": "be brief"}]},
        "messages",
        "message of the user",
    ),
    _bad(
        "1,001 messages",
        {"messages": [{"role": "user", "content": "hi"}] * 1001},
        "messages",
        "at most 1000",
    ),
    _bad(
        "a bad message further on",
        {"messages": [_HI, {"role": "user", "content": [{"text": 5}]}]},
        "messages[1].content[0].text",
        "must be a string",
    ),
]  # fmt: skip

BAD_REQUESTS: list[BadRequest] = [*_NOT_JSON, *_FIELDS, *_OPTIONS, *_MESSAGES]
