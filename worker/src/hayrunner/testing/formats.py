"""How each API writes the frames of a stream, and the whole answer that its chunks add up to."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

__all__ = [
    "ChatFormat",
    "Element",
    "Format",
    "MessagesFormat",
    "OllamaFormat",
    "ResponsesFormat",
]

Element: TypeAlias = Mapping[str, Any] | bytes


class Format:
    """How one API writes a stream's frames and a whole answer."""

    content_type = "text/event-stream"
    end: bytes = b""

    def frame(self, chunk: Mapping[str, Any]) -> bytes:
        return b"data: " + msgspec.json.encode(chunk) + b"\n\n"

    def whole(self, chunks: list[Element]) -> dict[str, Any]:
        raise NotImplementedError


class ChatFormat(Format):
    """Chat completions."""

    end = b"data: [DONE]\n\n"

    def whole(self, chunks: list[Element]) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        calls: dict[int, dict[str, Any]] = {}
        answer: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1}
        finish = "stop"
        for chunk in chunks:
            if isinstance(chunk, bytes) or "choices" not in chunk:
                continue
            answer["model"] = chunk.get("model")
            answer["usage"] = chunk.get("usage") or answer.get("usage")
            for choice in chunk["choices"]:
                finish = choice.get("finish_reason") or finish
                _merge_delta(message, calls, choice.get("delta") or {})
        if calls:
            message["tool_calls"] = [calls[index] for index in sorted(calls)]
        answer["choices"] = [{"index": 0, "message": message, "finish_reason": finish}]
        return answer


def _merge_delta(
    message: dict[str, Any], calls: dict[int, dict[str, Any]], delta: dict[str, Any]
) -> None:
    for name in ("content", "refusal", "reasoning_content", "reasoning"):
        if delta.get(name):
            message[name] = (message.get(name) or "") + delta[name]
    for part in delta.get("tool_calls") or ():
        blank = {"type": "function", "function": {"name": "", "arguments": ""}}
        call = calls.setdefault(part.get("index") or 0, blank)
        if part.get("id"):
            call["id"] = part["id"]
        function = part.get("function") or {}
        call["function"]["name"] = function.get("name") or call["function"]["name"]
        call["function"]["arguments"] += function.get("arguments") or ""


class ResponsesFormat(Format):
    """The Responses API: events that are named."""

    def frame(self, chunk: Mapping[str, Any]) -> bytes:
        event = f"event: {chunk.get('type', 'message')}\n".encode()
        return event + super().frame(chunk)

    def whole(self, chunks: list[Element]) -> dict[str, Any]:
        events = [chunk for chunk in chunks if not isinstance(chunk, bytes)]
        answers = [event["response"] for event in events if "response" in event]
        items = [e["item"] for e in events if e.get("type") == "response.output_item.done"]
        return {**answers[-1], "output": items} if answers else {}


class MessagesFormat(ResponsesFormat):
    """Anthropic's Messages API: events that are named."""

    def whole(self, chunks: list[Element]) -> dict[str, Any]:
        message: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        arguments: dict[int, str] = {}
        for event in _objects(chunks):
            kind, index = event.get("type"), event.get("index", 0)
            if kind == "message_start":
                message = dict(event["message"])
            elif kind == "content_block_start":
                blocks[index] = dict(event["content_block"])
            elif kind == "content_block_delta":
                delta = event["delta"]
                if delta["type"] == "input_json_delta":
                    arguments[index] = arguments.get(index, "") + delta["partial_json"]
                elif delta["type"] == "text_delta":
                    blocks[index]["text"] += delta["text"]
            elif kind == "message_delta":
                message |= event["delta"]
                message["usage"] = message["usage"] | event["usage"]
        for index, text in arguments.items():
            blocks[index]["input"] = msgspec.json.decode(text or "{}")
        return message | {"content": [blocks[index] for index in sorted(blocks)]}


class OllamaFormat(Format):
    """Ollama's chat API: one JSON object a line."""

    content_type = "application/x-ndjson"

    def frame(self, chunk: Mapping[str, Any]) -> bytes:
        return msgspec.json.encode(chunk) + b"\n"

    def whole(self, chunks: list[Element]) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        content, calls = "", list[Any]()
        for chunk in _objects(chunks):
            message = chunk.get("message") or {}
            content += message.get("content") or ""
            calls += message.get("tool_calls") or ()
            answer |= chunk
        answer["message"] = {"role": "assistant", "content": content, "tool_calls": calls}
        return answer


def _objects(chunks: list[Element]) -> list[Mapping[str, Any]]:
    return [chunk for chunk in chunks if not isinstance(chunk, bytes)]
