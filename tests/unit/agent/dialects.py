"""The same turns in the protocol of each provider, and what its requests say, read alike."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

from tests.unit.agent import runs

Turn = list[dict[str, Any]]
Call = tuple[str, dict[str, Any]]


class Dialect:
    """Turns of a model that speaks chat completions. Each uses 10 tokens of input, 5 of output."""

    def text(self, *words: str, finish: str = "stop") -> Turn:
        """A turn that says `words`."""
        return runs.text_turn(*words, finish=finish)

    def calls(self, *calls: Call, text: str = "") -> Turn:
        """A turn that calls tools."""
        return runs.call_turn(*calls, text=text)

    def form(self, *pieces: str, finish: str = "stop") -> Turn:
        """A turn that answers with JSON, the way the provider's models do that."""
        return self.text(*pieces, finish=finish)

    def tools(self, body: dict[str, Any]) -> list[str]:
        """The names of the tools in a request."""
        return [tool["function"]["name"] for tool in body.get("tools") or ()]

    def schema(self, body: dict[str, Any]) -> Any:
        """The schema that a request asks for; None where it asks for none."""
        return body.get("response_format", {}).get("json_schema", {}).get("schema")

    def said(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        """The roles and contents of a request's messages."""
        return [(m["role"], m.get("content")) for m in body["messages"]]


class _Responses(Dialect):
    def text(self, *words: str, finish: str = "stop") -> Turn:
        events = [_event("output_text.delta", **_PART, delta=w, logprobs=[]) for w in words]
        reason = {"reason": "max_output_tokens"} if finish == "length" else None
        return [*events, _completed(reason)]

    def calls(self, *calls: Call, text: str = "") -> Turn:
        events: Turn = []
        if text:
            events.append(_event("output_text.delta", **_PART, delta=text, logprobs=[]))
        for index, (name, arguments) in enumerate(calls, start=1):
            raw = json.dumps(arguments)
            item = {"type": "function_call", "id": f"fc_{index}", "call_id": f"call_{index}"}
            item |= {"name": name, "arguments": "", "status": "in_progress"}
            done = item | {"arguments": raw, "status": "completed"}
            where = {"output_index": index}
            events += [
                _event("output_item.added", item=item, **where),
                _event("function_call_arguments.delta", item_id=item["id"], delta=raw, **where),
                _event("output_item.done", item=done, **where),
            ]
        return [*events, _completed(None)]

    def tools(self, body: dict[str, Any]) -> list[str]:
        return [tool["name"] for tool in body.get("tools") or ()]

    def schema(self, body: dict[str, Any]) -> Any:
        return body.get("text", {}).get("format", {}).get("schema")

    def said(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        return [(m["role"], _plain(m["content"])) for m in body["input"] if "role" in m]


_PART = {"item_id": "msg_1", "output_index": 0, "content_index": 0}


def _event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", "sequence_number": 1, **fields}


def _completed(incomplete: dict[str, Any] | None) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    usage |= {"input_tokens_details": {"cached_tokens": 0}}
    usage |= {"output_tokens_details": {"reasoning_tokens": 0}}
    response: dict[str, Any] = {"id": "r", "object": "response", "created_at": 1, "model": "fake-r"}
    response |= {"output": [], "parallel_tool_calls": True, "tools": [], "tool_choice": "auto"}
    response |= {"error": None, "instructions": None, "metadata": {}, "usage": usage}
    response |= {"status": "incomplete" if incomplete else "completed"}
    kind = "incomplete" if incomplete else "completed"
    return _event(kind, response=response | {"incomplete_details": incomplete})


class _Anthropic(Dialect):
    """The usage is said in two halves, and a call's index counts content blocks."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def text(self, *words: str, finish: str = "stop") -> Turn:
        reasons = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
        return self._message(_text_block(0, words) if words else [], reasons[finish])

    def calls(self, *calls: Call, text: str = "") -> Turn:
        raw = [(name, (json.dumps(arguments),)) for name, arguments in calls]
        return self.raw_calls(*raw, text=text)

    def raw_calls(
        self, *calls: tuple[str, Sequence[str]], text: str = "", reason: str = "tool_use"
    ) -> Turn:
        """Calls whose arguments come in pieces."""
        events = _text_block(0, [text]) if text else []
        for index, (name, pieces) in enumerate(calls, start=1 if text else 0):
            block = {"type": "tool_use", "id": f"toolu_{next(self._ids)}", "name": name}
            events.append(_block_start(index, block | {"input": {}}))
            # The first delta is always an empty one.
            for piece in ("", *pieces):
                delta = {"type": "input_json_delta", "partial_json": piece}
                events.append({"type": "content_block_delta", "index": index, "delta": delta})
            events.append({"type": "content_block_stop", "index": index})
        return self._message(events, reason)

    def form(self, *pieces: str, finish: str = "stop") -> Turn:
        reason = "max_tokens" if finish == "length" else "tool_use"
        return self.raw_calls(("answer", pieces), reason=reason)

    @staticmethod
    def _message(events: Turn, reason: str) -> Turn:
        usage = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 0}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "fake-a"}
        message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        delta = {"stop_reason": reason, "stop_sequence": None}
        return [
            {"type": "message_start", "message": message},
            {"type": "ping"},
            *events,
            {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}},
            {"type": "message_stop"},
        ]

    def tools(self, body: dict[str, Any]) -> list[str]:
        return [tool["name"] for tool in body.get("tools") or ()]

    def schema(self, body: dict[str, Any]) -> Any:
        found = [t["input_schema"] for t in body.get("tools") or () if t["name"] == "answer"]
        return found[0] if found else None

    def said(self, body: dict[str, Any]) -> list[tuple[str, Any]]:
        return [(m["role"], _plain(m["content"])) for m in body["messages"]]


def _block_start(index: int, block: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _text_block(index: int, words: Sequence[str]) -> Turn:
    deltas = [{"type": "text_delta", "text": word} for word in words]
    return [
        _block_start(index, {"type": "text", "text": ""}),
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


class _Ollama(Dialect):
    """No ids, calls whole and all of a turn in one line, and `stop` after a turn of calls."""

    def text(self, *words: str, finish: str = "stop") -> Turn:
        return [*(_line({"content": word}) for word in words), _last(finish)]

    def calls(self, *calls: Call, text: str = "") -> Turn:
        functions = [{"function": {"name": name, "arguments": args}} for name, args in calls]
        lines = [_line({"content": text})] if text else []
        return [*lines, _line({"content": "", "tool_calls": functions}), _last("stop")]

    def schema(self, body: dict[str, Any]) -> Any:
        return body.get("format") or None


def _line(message: dict[str, Any]) -> dict[str, Any]:
    message = {"role": "assistant", **message}
    return {"model": "fake-o", "created_at": "2026-01-01T00:00:00Z", "message": message} | {
        "done": False
    }


def _last(reason: str) -> dict[str, Any]:
    counts = {"prompt_eval_count": 10, "eval_count": 5, "total_duration": 1}
    return _line({"content": ""}) | {"done": True, "done_reason": reason} | counts


def _plain(content: Any) -> Any:
    """A message's text, where it is written as parts."""
    if isinstance(content, str):
        return content
    texts = [part["text"] for part in content if "text" in part]
    return texts[0] if texts else None


SPOKEN: dict[str, Dialect] = {
    "own": Dialect(),
    "openai": Dialect(),
    "responses": _Responses(),
    "anthropic": _Anthropic(),
    "ollama": _Ollama(),
}

ALL = tuple(SPOKEN)
ANTHROPIC = _Anthropic()
