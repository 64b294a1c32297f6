"""The checks of `hayrunner check`, in the order in which one builds on the other."""

import asyncio
from typing import Literal

import msgspec
import nats.errors
from nats.aio.client import Client as Connection
from nats.js.errors import APIError
from nats.js.errors import Error as JetStreamError

from hayrunner.cli.connecting import connect, shown_servers
from hayrunner.cli.exits import ExitCode, Unreachable
from hayrunner.cli.provisioned import Inventory
from hayrunner.cli.rendering import make_console, safe_text
from hayrunner.errors import ConfigurationError
from hayrunner.settings import Settings
from hayrunner_contracts import subjects
from hayrunner_contracts.message_ids import new_message_id

__all__ = ["Check", "Report", "examine", "print_report"]

State = Literal["ok", "problem", "note"]
_MARKS: dict[State, str] = {"ok": "ok", "problem": "PROBLEM", "note": "note"}
_STYLES: dict[State, str | None] = {"ok": None, "problem": "red", "note": "yellow"}

_ANSWER_WITHIN_S = (0.5, 2.0)
_LOOK_S = 2.0

# No stream is called so: a message with this header is permitted or not, and never stored.
_STORE_NOTHING = {"Nats-Expected-Stream": "HAYRUNNER_CHECK"}


class Check(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was looked at. `advice` is what to do about a problem."""

    name: str
    state: State
    detail: str = ""
    advice: str = ""


class Report(msgspec.Struct, kw_only=True):
    """All checks. `ok` where none is a problem."""

    ok: bool = True
    reachable: bool = True
    checks: list[Check] = []

    def add(self, name: str, state: State, detail: str = "", advice: str = "") -> None:
        """Take one in."""
        self.checks.append(Check(name=name, state=state, detail=detail, advice=advice))
        self.ok = self.ok and state != "problem"

    @property
    def exit_code(self) -> ExitCode:
        if not self.reachable:
            return ExitCode.UNREACHABLE
        return ExitCode.DONE if self.ok else ExitCode.USAGE


async def examine(settings: Settings, target: str | None) -> Report:
    """Look at everything; what cannot be looked at because of an earlier problem is left out."""
    report = Report()
    report.add("settings", "ok", f"namespace {settings.namespace}")
    agents = _check_agents(report, settings, target) if target is not None else []
    try:
        client = await connect(settings)
    except Unreachable as error:
        report.reachable = False
        problem, _, advice = str(error).partition(": ")
        report.add("connection", "problem", problem, advice)
        return report
    except ConfigurationError as error:
        report.add("connection", "problem", str(error))
        return report
    async with client:
        connection = client.connection
        server = connection.connected_server_version
        version = f"{server.major}.{server.minor}.{server.patch}"
        report.add("connection", "ok", f"{shown_servers(settings)}, nats-server {version}")
        if await _check_streams(report, connection, settings, agents):
            await _check_permissions(report, connection, settings, agents)
    return report


def _check_agents(report: Report, settings: Settings, target: str) -> list[str]:
    from hayrunner.generators.openai_compatible import OpenAICompatibleChatGenerator
    from hayrunner.loading import load_agents

    try:
        registry = load_agents(target)
    except ConfigurationError as error:
        report.add("agents", "problem", str(error))
        return []
    names = registry.names()
    report.add("agents", "ok", ", ".join(names))
    for name in names:
        try:
            llm = registry.get(name).llm
        except ConfigurationError as error:
            report.add(f"model of {name}", "problem", str(error))
            continue
        # Policy: an author's get_llm may raise anything; a pipeline has none.
        except Exception as error:
            report.add(f"model of {name}", "note", f"cannot be told ({type(error).__name__})")
            continue
        kind = type(llm).__name__
        model = str(getattr(llm, "model", "") or kind)
        if isinstance(llm, OpenAICompatibleChatGenerator) and _lacks_key(llm, settings):
            report.add(
                f"model of {name}",
                "problem",
                f"{model}, but OPENAI_API_KEY is not set",
                "set OPENAI_API_KEY, or OPENAI_BASE_URL to a server that needs no key",
            )
        else:
            report.add(f"model of {name}", "ok", model)
    return names


def _lacks_key(llm: object, settings: Settings) -> bool:
    key = getattr(llm, "api_key", None)
    has_key = key is not None and bool(key.resolve_value())
    return not has_key and getattr(llm, "api_base_url", None) is None


async def _check_streams(
    report: Report, connection: Connection, settings: Settings, agents: list[str]
) -> bool:
    """Whether JetStream is there, and everything on it."""
    try:
        inventory = Inventory(connection.jetstream(timeout=_LOOK_S), settings, agents)
        found = await inventory.take(patience_s=0)
    except ConfigurationError as error:
        problem, _, advice = str(error).partition(": ")
        report.add("JetStream", "problem", problem, advice)
        return False
    report.add("JetStream", "ok")
    missing = [name for name, config in found.items() if config is None]
    if not missing:
        report.add("streams and consumers", "ok", f"{len(found)} there")
    else:
        advice = "run `hayrunner init`" + "".join(f" --agent {name}" for name in agents)
        if settings.provision:
            advice += ", or start a worker, which creates them"
        state: State = "note" if settings.provision else "problem"
        report.add("streams and consumers", state, "missing: " + ", ".join(missing), advice)
    return not missing


async def _check_permissions(
    report: Report, connection: Connection, settings: Settings, agents: list[str]
) -> None:
    """Subscribe to and publish on what a worker does; nothing is stored."""
    namespace, run_id = settings.namespace, new_message_id()
    commands = subjects.commands(namespace, run_id)
    holds = subjects.worker_holds(settings.worker_id)
    published = [
        subjects.events(namespace, run_id),
        subjects.result(namespace, run_id),
        commands,
        subjects.thread(namespace, run_id),
        *(
            f"$O.{bucket}.{part}.{run_id}"
            for bucket in (subjects.RUN_BLOBS_BUCKET, subjects.THREAD_BLOBS_BUCKET)
            for part in "CM"
        ),
        *(subjects.requests(namespace, agent) for agent in agents),
    ]
    subscribed = [commands, holds, *(subjects.ask(namespace, agent) for agent in agents)]
    allowed = await asyncio.gather(*(_may_publish(connection, s) for s in published))
    refused = [f"publish on {s}" for s, may in zip(published, allowed, strict=True) if not may]
    refused += [f"subscribe to {s}" for s in subscribed if not await _may_subscribe(connection, s)]
    refused = [text.replace(run_id, "*").replace(settings.worker_id, "*") for text in refused]
    if refused:
        advice = "allow it in the server's configuration; docs/cli.md lists what a worker needs"
        report.add("permissions", "problem", "may not " + ", ".join(refused), advice)
    else:
        report.add("permissions", "ok")


async def _may_publish(connection: Connection, subject: str) -> bool:
    for patience_s in _ANSWER_WITHIN_S:
        try:
            await connection.jetstream().publish(
                subject, b"", timeout=patience_s, headers=dict(_STORE_NOTHING)
            )
        except APIError:
            return True  # refused by the stream, as it should be: so it got there
        except nats.errors.TimeoutError:
            continue  # a publish that is not allowed is not answered, nor is one to a busy server
        except (JetStreamError, nats.errors.Error):
            return False
        return True
    return False


async def _may_subscribe(connection: Connection, subject: str) -> bool:
    """The server says nothing to a subscription that it takes, and an error to one that it
    refuses: nearly always before it answers the first flush, seldom before the second."""
    before = connection.last_error
    subscription = await connection.subscribe(subject)
    for _ in range(2):
        await connection.flush()
        if connection.last_error is not before:
            return False
    await subscription.unsubscribe()
    return True


def print_report(report: Report) -> None:
    """A table, and a line at its end. Not wrapped: what an address or an advice says is to be
    copied."""
    console = make_console()
    width = max(len(check.name) for check in report.checks)
    for check in report.checks:
        row = f"{_MARKS[check.state]:<8}{check.name:<{width}}  {check.detail}".rstrip()
        console.out(safe_text(row), style=_STYLES[check.state], highlight=False)
        if check.advice:
            console.out(safe_text(f"{'':<{width + 10}}-> {check.advice}"), highlight=False)
    console.out("Everything is well." if report.ok else "Not yet: see above.", highlight=False)
