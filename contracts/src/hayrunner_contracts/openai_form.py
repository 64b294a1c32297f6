"""OpenAI's chat-completions form of messages, in both directions.

Coming in: string content, typed parts (`text`, `image_url`, `file`, `input_file`, `refusal`),
`tool_calls`, tool messages with a `tool_call_id`, the `developer` role, `reasoning_content`.
A refusal becomes the text, marked by `meta["refusal"] = true`. Nothing is ever fetched: images
and files come as `data:` URLs. An assistant message as the API returned it can be sent back
whole: its `annotations` are dropped.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec
from msgspec import UnsetType

from hayrunner_contracts.errors import RunError
from hayrunner_contracts.message_parts import (
    checked_file,
    checked_image,
    checked_tool_call,
)
from hayrunner_contracts.messages import (
    ChatMessage,
    ContentPart,
    FilePart,
    ImagePart,
    Reasoning,
    ToolCall,
    ToolCallResult,
)
from hayrunner_contracts.refusals import as_list, as_object, as_text, at, known_fields, refusal
from hayrunner_contracts.strict_json import RequestLimits, read_json

__all__ = ["is_openai_form", "parse_openai_message", "to_openai"]

_ONLY_HERE = ("tool_calls", "tool_call_id", "refusal", "reasoning_content", "annotations")
_FIELDS: dict[str, tuple[str, ...]] = {
    "system": ("role", "content", "name"),
    "developer": ("role", "content", "name"),
    "user": ("role", "content", "name"),
    "assistant": (
        "role", "content", "name", "tool_calls", "refusal", "reasoning_content", "annotations",
        "audio", "function_call",
    ),
    "tool": ("role", "content", "name", "tool_call_id"),
}  # fmt: skip


def is_openai_form(message: Mapping[str, Any]) -> bool:
    """Whether only this form has what the message has."""
    if message.get("role") in ("developer", "tool") and isinstance(message.get("content"), str):
        return True
    if message.get("role") == "developer" or any(name in message for name in _ONLY_HERE):
        return True
    content = message.get("content")
    if not isinstance(content, list):
        return False
    return any(isinstance(part, dict) and "type" in part for part in cast(list[Any], content))


def parse_openai_message(
    message: dict[str, Any], path: str, calls: Mapping[str, ToolCall]
) -> ChatMessage:
    """`message` in Haystack's form. `calls` are the calls made so far, by id: a tool message
    says only the id of the call that it answers."""
    role = message["role"]
    known_fields(message, _FIELDS[role], path)
    name = message.get("name")
    if name is not None:
        as_text(name, at(path, "name"))
    if role == "assistant":
        return _assistant(message, path, name)
    if role == "tool":
        return _tool(message, path, calls)
    place = at(path, "content")
    content = message.get("content")
    if role == "user":
        return ChatMessage(role="user", content=_user_content(content, place), name=name)
    return ChatMessage(role="system", content=[_joined_text(content, place)], name=name)


def to_openai(message: ChatMessage) -> dict[str, Any]:
    """`message` as a chat-completions server takes it. Reasoning and `meta` have no place there.

    `ValueError` where the form cannot hold it: a tool call or result without an id, a tool
    message of several results, a result with images or files.
    """
    sent: dict[str, Any] = {"role": message.role}
    if message.name is not None:
        sent["name"] = message.name
    if message.role == "user":
        texts = [part for part in message.content if isinstance(part.text, str)]
        only_text = len(message.content) == len(texts) == 1
        sent["content"] = (
            texts[0].text if only_text else [_part_to_openai(part) for part in message.content]
        )
    elif message.role == "tool":
        sent.update(_result_to_openai(message.tool_call_results))
    elif message.role == "assistant":
        sent.update(_assistant_to_openai(message))
    else:
        sent["content"] = message.text or ""
    return sent


# --- coming in


def _assistant(message: dict[str, Any], path: str, name: str | None) -> ChatMessage:
    for field in ("audio", "function_call"):
        if message.get(field) is not None:
            raise refusal(at(path, field), "is not supported; leave it out")
    parts: list[ContentPart] = []
    meta: dict[str, Any] = {}
    if thought := message.get("reasoning_content"):
        text = as_text(thought, at(path, "reasoning_content"))
        parts.append(ContentPart(reasoning=Reasoning(reasoning_text=text)))
    text, refused = _assistant_content(message, path)
    if text is not None:
        parts.append(ContentPart(text=text))
        if refused:
            meta["refusal"] = refused
    elif refused:
        parts.append(ContentPart(text=refused))
        meta["refusal"] = True
    calls = _tool_calls(message.get("tool_calls"), at(path, "tool_calls"))
    parts.extend(ContentPart(tool_call=call) for call in calls)
    if not parts:
        raise refusal(path, "an assistant message needs content, tool_calls or a refusal")
    return ChatMessage(role="assistant", content=parts, name=name, meta=meta)


def _assistant_content(message: dict[str, Any], path: str) -> tuple[str | None, str | None]:
    content = message.get("content")
    refused = message.get("refusal")
    if refused is not None:
        refused = as_text(refused, at(path, "refusal"))
    if content is None or isinstance(content, str):
        return content, refused
    place = at(path, "content")
    texts: list[str] = []
    for index, value in enumerate(_parts_list(content, place)):
        inner = at(place, index)
        kind, part = _typed(value, inner, ("text", "refusal"))
        known_fields(part, ("type", kind, "annotations"), inner)
        said = as_text(part.get(kind), at(inner, kind))
        if kind == "text":
            texts.append(said)
        else:
            refused = said
    # Haystack sends only an assistant message's first text: keep them all in one.
    return ("\n".join(texts) if texts else None), refused


def _tool_calls(value: Any, path: str) -> list[ToolCall]:
    if value is None:
        return []
    calls: list[ToolCall] = []
    for index, item in enumerate(as_list(value, path)):
        place = at(path, index)
        call = as_object(item, place)
        known_fields(call, ("id", "type", "function", "index"), place)
        if call.get("type", "function") != "function":
            raise refusal(at(place, "type"), "must be function")
        inner = at(place, "function")
        if "function" not in call:
            raise refusal(inner, "is missing")
        function = as_object(call["function"], inner)
        known_fields(function, ("name", "arguments"), inner)
        identity = call.get("id")
        made = ToolCall(
            tool_name=as_text(function.get("name"), at(inner, "name")),
            arguments=_arguments(function.get("arguments"), at(inner, "arguments")),
            id=None if identity is None else as_text(identity, at(place, "id")),
        )
        calls.append(checked_tool_call(made, at(inner, "name")))
    return calls


def _arguments(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return cast(dict[str, Any], value)
    if value is None or value == "":
        # Compatible servers leave out the arguments of a call that has none.
        return {}
    try:
        # Text within the JSON: as strict as what is around it.
        arguments = read_json(as_text(value, path).encode(), RequestLimits())
    except (RunError, UnicodeEncodeError):
        raise refusal(path, "must be the JSON text of an object") from None
    if not isinstance(arguments, dict):
        raise refusal(path, "must be the JSON text of an object")
    return cast(dict[str, Any], arguments)


def _tool(message: dict[str, Any], path: str, calls: Mapping[str, ToolCall]) -> ChatMessage:
    place = at(path, "tool_call_id")
    if message.get("tool_call_id") is None:
        raise refusal(place, "is missing; a tool message names the call that it answers")
    identity = as_text(message["tool_call_id"], place)
    origin = calls.get(identity)
    if origin is None:
        raise refusal(place, "names no tool call of an earlier assistant message")
    content = message.get("content")
    result: str | list[ContentPart]
    if isinstance(content, str):
        result = content
    else:
        result = [
            _text_part(value, at(at(path, "content"), index))
            for index, value in enumerate(_parts_list(content, at(path, "content")))
        ]
    return ChatMessage.tool(result, origin=origin)


def _user_content(content: Any, path: str) -> list[ContentPart]:
    if isinstance(content, str):
        return [ContentPart(text=content)]
    return [
        _user_part(value, at(path, index)) for index, value in enumerate(_parts_list(content, path))
    ]


def _user_part(value: Any, path: str) -> ContentPart:
    kind, part = _typed(value, path, tuple(_USER_PARTS))
    return _USER_PARTS[kind](part, path)


def _text_part(value: Any, path: str) -> ContentPart:
    _, part = _typed(value, path, ("text",))
    known_fields(part, ("type", "text"), path)
    return ContentPart(text=as_text(part.get("text"), at(path, "text")))


def _image_url(part: dict[str, Any], path: str) -> ContentPart:
    known_fields(part, ("type", "image_url"), path)
    place = at(path, "image_url")
    image = as_object(part.get("image_url"), place)
    known_fields(image, ("url", "detail"), place)
    mime_type, data = _data_url(image.get("url"), at(place, "url"))
    detail = image.get("detail")
    if detail not in (None, "auto", "high", "low"):
        raise refusal(at(place, "detail"), "must be one of auto, high, low")
    made = ImagePart(base64_image=data, mime_type=mime_type, detail=detail)
    url = at(place, "url")
    return ContentPart(image=checked_image(made, url, url))


def _file(part: dict[str, Any], path: str) -> ContentPart:
    known_fields(part, ("type", "file"), path)
    place = at(path, "file")
    return _file_fields(as_object(part.get("file"), place), place)


def _input_file(part: dict[str, Any], path: str) -> ContentPart:
    return _file_fields({key: part[key] for key in part if key != "type"}, path)


def _file_fields(file: dict[str, Any], path: str) -> ContentPart:
    if "file_id" in file or "file_url" in file:
        raise refusal(path, "must carry the file's data in file_data: nothing is fetched")
    known_fields(file, ("file_data", "filename"), path)
    place = at(path, "file_data")
    data = as_text(file.get("file_data"), place)
    mime_type = None
    if data.startswith("data:"):
        mime_type, data = _data_url(data, place)
    filename = file.get("filename")
    if filename is not None:
        as_text(filename, at(path, "filename"))
    made = FilePart(base64_data=data, mime_type=mime_type, filename=filename)
    return ContentPart(file=checked_file(made, place))


def _data_url(value: Any, path: str) -> tuple[str | None, str]:
    url = as_text(value, path)
    head, mark, data = url.partition(";base64,")
    if not head.startswith("data:") or not mark:
        raise refusal(path, "must be data:<media type>;base64,<data>: a URL is never fetched")
    return head.removeprefix("data:").partition(";")[0] or None, data


def _joined_text(content: Any, path: str) -> ContentPart:
    if isinstance(content, str):
        return ContentPart(text=content)
    texts = [
        cast(str, _text_part(value, at(path, index)).text)
        for index, value in enumerate(_parts_list(content, path))
    ]
    return ContentPart(text="\n".join(texts))


def _parts_list(content: Any, path: str) -> list[Any]:
    if not isinstance(content, list) or not content:
        raise refusal(path, "must be a string or an array of content parts, not empty")
    return cast(list[Any], content)


def _typed(value: Any, path: str, allowed: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    part = as_object(value, path)
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in allowed:
        raise refusal(at(path, "type"), f"must be one of {', '.join(allowed)}")
    return kind, part


_USER_PARTS: dict[str, Callable[[dict[str, Any], str], ContentPart]] = {
    "text": _text_part,
    "image_url": _image_url,
    "file": _file,
    "input_file": _input_file,
}


# --- going out


def _part_to_openai(part: ContentPart) -> dict[str, Any]:
    if isinstance(part.image, ImagePart):
        # A server needs some type; it looks at the data itself. The same default as Haystack's.
        url = f"data:{part.image.mime_type or 'image/jpeg'};base64,{part.image.base64_image}"
        detail = {"detail": part.image.detail} if part.image.detail else {}
        return {"type": "image_url", "image_url": {"url": url, **detail}}
    if isinstance(part.file, FilePart):
        data = f"data:{part.file.mime_type or 'application/pdf'};base64,{part.file.base64_data}"
        # Without a name the server takes the part for a reference to an uploaded file.
        name = part.file.filename or "filename"
        return {"type": "file", "file": {"file_data": data, "filename": name}}
    if isinstance(part.text, UnsetType):
        raise ValueError("a user message holds only text, images and files")
    return {"type": "text", "text": part.text}


def _result_to_openai(results: list[ToolCallResult]) -> dict[str, Any]:
    if len(results) != 1:
        raise ValueError("a tool message in this form answers exactly one call")
    result = results[0]
    if result.origin.id is None:
        raise ValueError("the tool call has no id")
    content: Any = result.result
    if not isinstance(content, str):
        if any(isinstance(part.text, UnsetType) for part in content):
            raise ValueError("a tool result in this form holds only text")
        content = [{"type": "text", "text": part.text} for part in content]
    return {"content": content, "tool_call_id": result.origin.id}


def _assistant_to_openai(message: ChatMessage) -> dict[str, Any]:
    sent: dict[str, Any] = {}
    text = message.text
    refused = message.meta.get("refusal")
    if message.tool_calls:
        sent["tool_calls"] = [_call_to_openai(call) for call in message.tool_calls]
        # A server ignores the calls of a message with a refusal, then rejects their results.
        refused = None
    if refused is True and text is not None:
        text, refused = None, text
    if text is not None:
        sent["content"] = text
        if isinstance(refused, str) and refused:
            sent["refusal"] = refused
    elif isinstance(refused, str) and refused:
        sent["content"] = [{"type": "refusal", "refusal": refused}]
    elif not message.tool_calls:
        sent["content"] = ""
    return sent


def _call_to_openai(call: ToolCall) -> dict[str, Any]:
    if call.id is None:
        raise ValueError("the tool call has no id")
    # Arguments that were no JSON object went out of the model as they are kept here.
    raw = (call.extra or {}).get("invalid_arguments")
    arguments = raw if isinstance(raw, str) else msgspec.json.encode(call.arguments).decode()
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.tool_name, "arguments": arguments},
    }
