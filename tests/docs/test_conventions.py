"""What a run really emits, against OpenTelemetry's conventions; what the document says of it."""

from typing import Any

import pytest
from docs.conventions import DOCUMENT, Recorded, differences, document_with, record
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, Status, StatusCode

from hayrunner.telemetry import names

# Of a link, and of a generator in a pipeline.
NOT_ON_THIS_RUN = {names.LINK_TO, names.COMPONENT_NAME}


async def test_the_document_lists_what_differs_from_the_conventions() -> None:
    recorded = await record()

    text = DOCUMENT.read_text()
    assert document_with(differences(recorded), text) == text, "make conventions"
    emitted = {name for span in recorded.spans for name in span.attributes or {}}
    assert emitted == names.ATTRIBUTES - NOT_ON_THIS_RUN
    assert {span.name.partition(" ")[0] for span in recorded.spans} == {
        names.SEND,
        names.PROCESS,
        names.INVOKE_AGENT,
        names.CHAT,
        names.EXECUTE_TOOL,
    }
    assert set(recorded.metrics) == {
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.token.usage",
    }


def told_of(name: str = "chat m", *, failed: bool = False, **more: Any) -> set[str]:
    """What differs with this span, and not without it."""
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai"}
    span = ReadableSpan(
        name,
        kind=more.pop("kind", SpanKind.CLIENT),
        attributes={**attributes, **more},
        status=Status(StatusCode.ERROR if failed else StatusCode.OK),
    )
    left_out = "- attributes of the GenAI registry"
    told = differences(Recorded(spans=(span,), metrics={}))
    without = differences(Recorded(spans=(), metrics={}))
    return {line for line in set(told) - set(without) if not line.startswith(left_out)}


@pytest.mark.parametrize(
    ("attributes", "said"),
    [
        ({"gen_ai.request.modell": "m"}, "do not have, on `chat`: `gen_ai.request.modell`"),
        ({"gen_ai.request.stream": "yes"}, "`gen_ai.request.stream` (string for boolean)"),
        ({"gen_ai.usage.input_tokens": 1.0}, "`gen_ai.usage.input_tokens` (double for int)"),
        ({"gen_ai.response.finish_reasons": "stop"}, "(string for string[])"),
        ({"gen_ai.operation.name": "talk"}, "not documented: `talk`"),
        ({"messaging.operation.type": "chat"}, "not documented: `chat`"),
        ({"kind": SpanKind.SERVER}, "another kind: `chat` (server)"),
        ({"failed": True}, "failed spans without `error.type`: `chat`"),
        ({"name": "execute_tool x"}, "missing on `execute_tool`: `gen_ai.tool.name`"),
    ],
)
def test_what_is_not_as_the_conventions_have_it_is_told(
    attributes: dict[str, Any], said: str
) -> None:
    assert any(said in line for line in told_of(**attributes))


def test_what_is_as_the_conventions_have_it_is_not() -> None:
    right: dict[str, Any] = {
        "error.type": "x",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 3,
    }
    assert told_of(failed=True, **right) == set()
