"""Haystack's own objects survive the way through the contract's types, field for field."""

import json
from typing import Any

import msgspec
import pytest
from haystack import dataclasses as real
from haystack.dataclasses import image_content
from hypothesis import given, settings
from hypothesis import strategies as st

import hayrunner_contracts as wire
from hayrunner_contracts.documents import parse_document
from hayrunner_contracts.examples import DATA_CLASSES, MESSAGES
from hayrunner_contracts.message_forms import parse_message
from hayrunner_contracts.message_parts import IMAGE_MIME_TYPES
from hayrunner_contracts.openai_form import to_openai

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_NAMES = st.text(min_size=1, max_size=8)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | _FLOATS | _TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXTS, inner, max_size=2),
    max_leaves=4,
)
_OBJECTS = st.dictionaries(_TEXTS, _VALUES, max_size=3)
_BASE64 = st.binary(min_size=1, max_size=8).map(
    lambda data: msgspec.json.encode(data).decode().strip('"')
)

_CALLS = st.builds(
    real.ToolCall,
    tool_name=_NAMES,
    arguments=_OBJECTS,
    id=st.none() | _NAMES,
    extra=st.none() | _OBJECTS,
)
_TEXT_PARTS = st.builds(real.TextContent, text=_TEXTS)
_IMAGES = st.builds(
    real.ImageContent,
    base64_image=_BASE64,
    mime_type=st.sampled_from(sorted(IMAGE_MIME_TYPES)),
    detail=st.sampled_from([None, "auto", "high", "low"]),
    meta=_OBJECTS,
    validation=st.booleans(),
)
_FILES = st.builds(
    real.FileContent,
    base64_data=_BASE64,
    mime_type=st.just("application/pdf"),
    filename=st.none() | _NAMES,
    extra=_OBJECTS,
    validation=st.booleans(),
)
_RESULTS = st.builds(
    real.ToolCallResult,
    result=_TEXTS | st.lists(_TEXT_PARTS | _IMAGES | _FILES, max_size=2),
    origin=_CALLS,
    error=st.booleans(),
)
_REASONINGS = st.builds(real.ReasoningContent, reasoning_text=_TEXTS, extra=_OBJECTS)
_USER_PARTS = st.lists(
    st.builds(real.TextContent, text=_TEXTS.filter(str.strip)) | _IMAGES | _FILES,
    min_size=1,
    max_size=3,
)


def _made(role: real.ChatRole, parts: Any) -> st.SearchStrategy[real.ChatMessage]:
    return st.builds(
        real.ChatMessage,
        _role=st.just(role),
        _content=parts,
        _name=st.none() | _NAMES,
        _meta=_OBJECTS,
    )


_MESSAGES = st.one_of(
    _made(real.ChatRole.SYSTEM, st.lists(_TEXT_PARTS, min_size=1, max_size=2)),
    _made(real.ChatRole.USER, _USER_PARTS),
    _made(real.ChatRole.ASSISTANT, st.lists(_TEXT_PARTS | _CALLS | _REASONINGS, max_size=3)),
    _made(real.ChatRole.TOOL, st.lists(_RESULTS, min_size=1, max_size=2)),
)
_STREAMS = st.builds(
    real.ByteStream, data=st.binary(max_size=8), meta=_OBJECTS, mime_type=st.none() | _NAMES
)
_SPARSE = st.lists(st.tuples(st.integers(0, 2**31), _FLOATS), max_size=3).map(
    lambda pairs: real.SparseEmbedding([p[0] for p in pairs], [p[1] for p in pairs])
)
_DOCUMENTS = st.builds(
    real.Document,
    id=_NAMES,
    content=_TEXTS,
    blob=st.none() | _STREAMS,
    meta=_OBJECTS,
    score=st.none() | _FLOATS,
    embedding=st.none() | st.lists(_FLOATS, max_size=3),
    sparse_embedding=st.none() | _SPARSE,
)
_SPANS = st.builds(real.ExtractedAnswer.Span, start=st.integers(0, 9), end=st.integers(0, 9))

_SOME = settings(max_examples=60, deadline=None)


def _through(kind: type[msgspec.Struct], value: Any) -> Any:
    """`value` as JSON, as the contract's type, as JSON again."""
    sent = json.loads(json.dumps(value))
    return json.loads(msgspec.json.encode(msgspec.convert(sent, kind, strict=True)))


@_SOME
@given(_MESSAGES)
def test_a_message_survives(message: real.ChatMessage) -> None:
    form = message.to_dict()
    for back in (_through(wire.ChatMessage, form), msgspec.to_builtins(parse_message(form))):
        assert back == form
        assert real.ChatMessage.from_dict(back) == message


@_SOME
@given(_DOCUMENTS)
def test_a_document_survives_in_both_forms(document: real.Document) -> None:
    nested = document.to_dict(flatten=False)
    assert _through(wire.Document, nested) == nested
    for form in (nested, document.to_dict()):
        back = msgspec.to_builtins(parse_document(json.loads(json.dumps(form))))
        assert back == nested
        assert real.Document.from_dict(back) == document


@_SOME
@given(
    st.builds(
        real.GeneratedAnswer,
        data=_TEXTS,
        query=_TEXTS,
        documents=st.lists(_DOCUMENTS, max_size=2),
        meta=st.just({"all_messages": [real.ChatMessage.from_user("hi")]}) | _OBJECTS,
    )
)
def test_a_generated_answer_survives(answer: real.GeneratedAnswer) -> None:
    form = answer.to_dict()
    assert _through(wire.GeneratedAnswer, form) == form
    assert real.GeneratedAnswer.from_dict(_through(wire.GeneratedAnswer, form)) == answer


@_SOME
@given(
    st.builds(
        real.ExtractedAnswer,
        query=_TEXTS,
        score=_FLOATS,
        data=st.none() | _TEXTS,
        document=st.none() | _DOCUMENTS,
        context=st.none() | _TEXTS,
        document_offset=st.none() | _SPANS,
        context_offset=st.none() | _SPANS,
        meta=_OBJECTS,
    )
)
def test_an_extracted_answer_survives(answer: real.ExtractedAnswer) -> None:
    form = answer.to_dict()
    assert _through(wire.ExtractedAnswer, form) == form
    assert real.ExtractedAnswer.from_dict(_through(wire.ExtractedAnswer, form)) == answer


_DELTAS = st.builds(
    real.ToolCallDelta,
    index=st.integers(0, 9),
    tool_name=st.none() | _NAMES,
    arguments=st.none() | _TEXTS,
    id=st.none() | _NAMES,
    extra=st.none() | _OBJECTS,
)
_BODIES = st.one_of(
    st.fixed_dictionaries({"content": _TEXTS}),
    st.fixed_dictionaries({"tool_calls": st.lists(_DELTAS, min_size=1, max_size=2)}),
    st.fixed_dictionaries({"tool_call_result": _RESULTS}),
    st.fixed_dictionaries({"reasoning": _REASONINGS}),
)


@_SOME
@given(
    _BODIES,
    st.none() | st.builds(real.ComponentInfo, type=_NAMES, name=st.none() | _NAMES),
    st.sampled_from([None, "stop", "length", "tool_calls", "content_filter", "tool_call_results"]),
    st.booleans(),
    _OBJECTS,
)
def test_a_streaming_chunk_survives(
    body: dict[str, Any], component: Any, finish: Any, start: bool, meta: dict[str, Any]
) -> None:
    fields: dict[str, Any] = {"content": "", **body}
    chunk = real.StreamingChunk(
        **fields,
        component_info=component,
        finish_reason=finish,
        start=start,
        meta=meta,
        index=0,
    )
    form = chunk.to_dict()
    assert _through(wire.StreamingChunk, form) == form
    assert real.StreamingChunk.from_dict(_through(wire.StreamingChunk, form)) == chunk


@pytest.mark.parametrize("name", DATA_CLASSES)
def test_every_example_of_a_data_class_is_one_for_haystack(name: str) -> None:
    example = DATA_CLASSES[name]
    form = msgspec.to_builtins(example)
    made = getattr(real, type(example).__name__).from_dict(form)
    again = made.to_dict(flatten=False) if isinstance(made, real.Document) else made.to_dict()
    assert again == form


@pytest.mark.parametrize("name", MESSAGES)
def test_every_example_of_a_message_is_one_for_haystack(name: str) -> None:
    form = msgspec.to_builtins(MESSAGES[name])
    assert real.ChatMessage.from_dict(form).to_dict() == form


@pytest.mark.parametrize("name", ["system", "user", "assistant", "tool"])
def test_the_openai_form_is_the_one_that_haystack_sends(name: str) -> None:
    message = real.ChatMessage.from_dict(msgspec.to_builtins(MESSAGES[name]))
    theirs, ours = message.to_openai_dict_format(), to_openai(MESSAGES[name])
    for sent in (theirs, ours):
        for call in sent.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    assert ours == theirs


def test_a_document_with_metadata_named_like_a_field_survives_flattened() -> None:
    document = real.Document(id="1", content="a", meta={"content": "other", "page": 3})
    back = parse_document(document.to_dict())
    assert back.meta == {"content": "other", "page": 3}
    assert back.content == "a"


def test_a_bare_document_gets_its_id_from_haystack() -> None:
    bare = parse_document({"content": "Orders ship on Mondays."})
    made = real.Document.from_dict(msgspec.to_builtins(bare))
    assert made == real.Document(content="Orders ship on Mondays.")


def test_fields_of_old_documents_are_dropped() -> None:
    old = {"content": "a", "content_type": "text", "id_hash_keys": None, "dataframe": None}
    assert parse_document(old) == wire.Document(content="a")


def test_the_media_types_of_images_are_those_of_haystack() -> None:
    assert IMAGE_MIME_TYPES == image_content.IMAGE_MIME_TYPES
