"""Content parts as they come in, checked before Haystack sees them: its `from_dict` takes
nonsense (a number as text, text as arguments), and raises on the rest without saying where."""

import base64
from collections.abc import Callable
from typing import Any

from hayrunner_contracts.messages import (
    ContentPart,
    FilePart,
    ImagePart,
    Reasoning,
    ToolCall,
    ToolCallResult,
)
from hayrunner_contracts.refusals import (
    as_list,
    as_object,
    as_text,
    at,
    convert,
    known_fields,
    refusal,
)

__all__ = [
    "IMAGE_MIME_TYPES",
    "MAX_PARTS",
    "checked_file",
    "checked_image",
    "checked_tool_call",
    "parse_part",
]

MAX_PARTS = 1000
"""Parts in one message, or in one tool result."""

# The types haystack-ai 3.4.1 lets an ImageContent have (dataclasses/image_content.py).
IMAGE_MIME_TYPES = frozenset(
    {
        "application/pdf",
        "application/postscript",
        "image/bmp",
        "image/gif",
        "image/icns",
        "image/jp2",
        "image/jpeg",
        "image/jpg",
        "image/mpo",
        "image/palm",
        "image/png",
        "image/sgi",
        "image/tiff",
        "image/vnd.adobe.photoshop",
        "image/webp",
        "image/x-icon",
        "image/x-pcx",
        "image/x-portable-anymap",
        "image/x-tga",
        "image/xbm",
        "image/xpm",
        "video/mpeg",
    }
)

# A field that only one kind of part has: Pydantic's dump of a part comes without its outer key.
_FLAT_MARKS = {
    "tool_name": "tool_call",
    "origin": "tool_call_result",
    "reasoning_text": "reasoning",
    "base64_image": "image",
    "base64_data": "file",
}


def parse_part(value: Any, path: str) -> ContentPart:
    """One part in Haystack's form: an object with one key, which says what it is."""
    part = as_object(value, path)
    kind = next((name for name in part if name in _PARTS), None)
    if kind is None:
        kind = next((_FLAT_MARKS[name] for name in part if name in _FLAT_MARKS), None)
        if kind is None:
            known = ", ".join(_PARTS)
            raise refusal(path, f"must be a content part, with one of the fields {known}")
        return _PARTS[kind](part, path)
    if len(part) != 1:
        extra = next(name for name in part if name != kind)
        raise refusal(at(path, extra), f"a content part has one field, and this one has {kind}")
    return _PARTS[kind](part[kind], at(path, kind))


def checked_image(image: ImagePart, data_path: str, type_path: str) -> ImagePart:
    """`image`, if its data is base64 and Haystack can hold its type. The paths are those of the
    data and of the media type in the form that it came in."""
    _check_base64(image.base64_image, data_path)
    if image.validation and image.mime_type and image.mime_type not in IMAGE_MIME_TYPES:
        raise refusal(type_path, "must be the media type of an image, as image/png")
    return image


def checked_file(file: FilePart, data_path: str) -> FilePart:
    """`file`, if its data is base64."""
    _check_base64(file.base64_data, data_path)
    return file


def checked_tool_call(call: ToolCall, name_path: str) -> ToolCall:
    """`call`, if it names a tool."""
    if not call.tool_name:
        raise refusal(name_path, "must not be empty")
    return call


def _text(value: Any, path: str) -> ContentPart:
    return ContentPart(text=as_text(value, path))


def _image(value: Any, path: str) -> ContentPart:
    image = _struct(value, ImagePart, path)
    return ContentPart(image=checked_image(image, at(path, "base64_image"), at(path, "mime_type")))


def _file(value: Any, path: str) -> ContentPart:
    file = _struct(value, FilePart, path)
    return ContentPart(file=checked_file(file, at(path, "base64_data")))


def _reasoning(value: Any, path: str) -> ContentPart:
    return ContentPart(reasoning=_struct(value, Reasoning, path))


def _tool_call(value: Any, path: str) -> ContentPart:
    return ContentPart(tool_call=_call(value, path))


def _call(value: Any, path: str) -> ToolCall:
    return checked_tool_call(_struct(value, ToolCall, path), at(path, "tool_name"))


def _tool_call_result(value: Any, path: str) -> ContentPart:
    fields = dict(as_object(value, path))
    known_fields(fields, ToolCallResult.__struct_fields__, path)
    for name in ("result", "origin"):
        if name not in fields:
            raise refusal(at(path, name), "is missing")
    fields["origin"] = _call(fields["origin"], at(path, "origin"))
    result = fields["result"]
    if not isinstance(result, str):
        fields["result"] = _result_parts(result, at(path, "result"))
    return ContentPart(tool_call_result=convert(fields, ToolCallResult, path))


def _result_parts(value: Any, path: str) -> list[ContentPart]:
    if not isinstance(value, list):
        raise refusal(path, "must be a string or an array of content parts")
    values = as_list(value, path)
    if len(values) > MAX_PARTS:
        raise refusal(path, f"has {len(values)} parts; at most {MAX_PARTS} are allowed")
    parts: list[ContentPart] = []
    for index, item in enumerate(values):
        place = at(path, index)
        kind = next((name for name in as_object(item, place) if name in _PARTS), None)
        if kind is not None and kind not in ("text", "image", "file"):
            raise refusal(at(place, kind), "a tool result holds only text, image and file parts")
        parts.append(parse_part(item, place))
    return parts


def _struct(value: Any, to: Any, path: str) -> Any:
    fields = as_object(value, path)
    known_fields(fields, to.__struct_fields__, path)
    return convert(fields, to, path)


def _check_base64(data: str, path: str) -> None:
    if not data:
        raise refusal(path, "must not be empty")
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        raise refusal(path, "must be base64") from None


_PARTS: dict[str, Callable[[Any, str], ContentPart]] = {
    "text": _text,
    "image": _image,
    "file": _file,
    "tool_call": _tool_call,
    "tool_call_result": _tool_call_result,
    "reasoning": _reasoning,
}
