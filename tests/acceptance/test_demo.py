"""`hayrunner demo`: what it shows, and that nothing of it is left."""

import asyncio
import os
import pty
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

from tests.acceptance.processes import Run, Start
from tests.acceptance.scripted import chunk, tool_turn

from hayrunner.testing.provider import ScriptedProvider
from hayrunner_contracts.codec import decode_event
from hayrunner_contracts.testing import assert_valid_stream

Gone = Callable[[], Awaitable[None]]


def assert_shows_a_whole_run(shown: str) -> None:
    assert "no model is called" in shown
    assert "→ find_order {" in shown
    assert "← find_order {" in shown
    assert "→ delivery_date {" in shown
    assert "← delivery_date {" in shown
    assert "a blue teapot" in shown
    assert "arrives on 2026-03-09" in shown
    assert "3 model calls · 126 tokens in" in shown
    assert "hayrunner dev agents.py" in shown


async def test_the_demo_ends_by_itself_having_shown_text_tools_results_and_usage(
    run: Run, hayrunner: str, everything_gone: Gone
) -> None:
    done = await run(hayrunner, "demo")
    assert done.code == 0, done
    assert_shows_a_whole_run(done.out)
    assert "\x1b" not in done.out
    assert done.err == ""
    await everything_gone()


async def test_the_demo_is_the_same_on_a_terminal_with_colours(
    environment: Mapping[str, str], hayrunner: str, everything_gone: Gone
) -> None:
    screen, line = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(hayrunner, "demo"),
        stdin=line,
        stdout=line,
        stderr=line,
        env={**environment, "TERM": "xterm-256color", "COLUMNS": "200"},
    )
    os.close(line)
    reading = asyncio.create_task(asyncio.to_thread(_all_of, screen))
    async with asyncio.timeout(30):
        assert await process.wait() == 0
        shown = await reading
    os.close(screen)
    assert_shows_a_whole_run(shown)
    assert "\x1b[36m  → find_order" in shown
    await everything_gone()


def _all_of(screen: int) -> str:
    """What was printed, until the other end is closed."""
    parts: list[bytes] = []
    while True:
        try:
            part = os.read(screen, 65536)
        except OSError:
            part = b""
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


async def test_the_demo_as_json_is_the_events_of_one_valid_stream(run: Run, hayrunner: str) -> None:
    done = await run(hayrunner, "demo", "--json")
    assert done.code == 0, done
    assert_valid_stream([decode_event(line.encode()) for line in done.out.splitlines()])


async def test_a_key_brings_the_provider_and_takes_the_label_away(run: Run, hayrunner: str) -> None:
    def scenario(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if any(message["role"] == "tool" for message in body["messages"]):
            return iter([chunk({"content": "On Monday."}), chunk({}, "stop")])
        return tool_turn(
            find_order='{"order_number": 7}',
            delivery_date='{"shipped_on": "2026-03-05", "country": "Japan"}',
        )

    async with ScriptedProvider(scenario) as provider:
        done = await run(
            *(hayrunner, "demo"),
            OPENAI_API_KEY="a-secret-key",
            OPENAI_BASE_URL=provider.base_url,
            HAYRUNNER_MODEL="some-model",
        )
        assert provider.requests[0].headers["Authorization"] == "Bearer a-secret-key"
    assert done.code == 0, done
    assert "no model is called" not in done.out
    assert f"model some-model at {provider.base_url}" in done.out
    assert "← find_order" in done.out
    assert "On Monday." in done.out
    assert "a-secret-key" not in done.out + done.err


async def test_a_provider_that_fails_is_a_failed_run_with_one_line_and_no_traceback(
    run: Run, hayrunner: str, everything_gone: Gone
) -> None:
    async with ScriptedProvider([[{"$status": 401, "body": {"error": "secret"}}]]) as provider:
        done = await run(hayrunner, "demo", OPENAI_API_KEY="k", OPENAI_BASE_URL=provider.base_url)
    assert done.code == 1, done
    assert "provider_error: " in done.out
    assert "Traceback" not in done.out + done.err
    assert "secret" not in done.out + done.err
    await everything_gone()


async def test_nothing_is_left_of_a_demo_that_was_killed(
    start: Start, hayrunner: str, everything_gone: Gone
) -> None:
    demo = await start(hayrunner, "demo")
    await demo.read_until(b"Let me")
    demo.send(signal.SIGKILL)
    assert await demo.ended() == -signal.SIGKILL
    await everything_gone()


async def test_ctrl_c_ends_the_demo_and_leaves_nothing(
    start: Start, hayrunner: str, everything_gone: Gone
) -> None:
    demo = await start(hayrunner, "demo")
    await demo.read_until(b"Let me")
    demo.send(signal.SIGINT)
    assert await demo.ended() == 130
    assert demo.errors == ""
    await everything_gone()
