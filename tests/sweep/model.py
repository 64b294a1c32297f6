"""What the scripted model does: `do:NAME:RUN` in the conversation says which of its scripts.

Every script speaks in sentinels of that run, so that nothing a model says is the same in two runs.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.sweep.sentinels import mark
from tests.unit.agent.dialects import SPOKEN, Dialect
from tests.unit.agent.runs import chunk, usage_chunk

from hayrunner.testing.provider import Tries

__all__ = ["GOOD_JSON", "SCRIPTS", "instruction", "scripted"]

Step = Any
Script = Callable[[Dialect, int], list[Step]]
SCRIPTS: dict[str, Script] = {}

GOOD_JSON = '{"total": 3, "note": "%s"}'
_DO = re.compile(r"do:([a-z_]+):(\d+)")


def instruction(script: str, run: int) -> str:
    """What makes the model play that script."""
    return f"do:{script}:{run}"


def scripted(kind: str) -> Callable[[dict[str, Any]], Any]:
    """A scenario for a provider that is spoken to by this generator."""
    dialect = SPOKEN[kind]
    seen: dict[tuple[str, int, int], Any] = {}

    def turn(body: dict[str, Any]) -> Any:
        items: list[Any] = body["input"] if "input" in body else body["messages"]
        at, name, run = _last_instruction(items)
        said = sum(map(_is_a_turn, items[at + 1 :]))
        key = name, run, said
        if key not in seen:
            steps = SCRIPTS[name](dialect, run)
            seen[key] = steps[min(said, len(steps) - 1)]
        step = seen[key]
        return step(body) if callable(step) else step

    return turn


def _last_instruction(items: list[Any]) -> tuple[int, str, int]:
    for at in reversed(range(len(items))):
        if items[at].get("role") != "user":
            continue  # a task for somebody else
        if found := _DO.findall(json.dumps(items[at])):
            name, run = found[-1]
            return at, name, int(run)
    raise AssertionError("the model was told nothing")


def _is_a_turn(item: Any) -> bool:
    return item.get("role") == "assistant" or item.get("type") == "function_call"


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


def calls(dialect: Dialect, *named: tuple[str, dict[str, Any]], run: int) -> list[Any]:
    """A turn of tool calls, with some words before."""
    return dialect.calls(*named, text=f"I see. {mark('ModelText', run)}")


def says(dialect: Dialect, run: int) -> list[Any]:
    return dialect.text("It is ", mark("ModelText", run), ".")


def echo(status: int, run: int) -> Callable[[dict[str, Any]], Any]:
    """An error that repeats the request, as some providers do."""

    def answer(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        told = f"{mark('ProviderBody', run)} in {json.dumps(body)}"
        # Long ago, so that nobody waits.
        headers = {"x-request-id": mark("ProviderHeader", run), "retry-after": "0"}
        error = {"error": {"message": told, "type": "invalid", "code": mark("ProviderCode", run)}}
        yield {"$status": status, "headers": headers, "body": error}

    return answer


@script
def talk(dialect: Dialect, run: int) -> list[Step]:
    return [says(dialect, run)]


@script
def look(dialect: Dialect, run: int) -> list[Step]:
    """Thinks, calls a tool, answers."""
    call = calls(dialect, ("lookup", {"word": mark("ToolArgument", run)}), run=run)
    if type(dialect) is Dialect:
        call = [chunk({"reasoning_content": mark("Reasoning", run)}), *call]
    return [call, says(dialect, run)]


@script
def odd_names(dialect: Dialect, run: int) -> list[Step]:
    """Ids, names and reasons that are sentences."""
    function = {"name": "lookup", "arguments": json.dumps({"word": mark("ToolArgument", run)})}
    call = {"index": 0, "id": f"the {mark('CallId', run)}", "type": "function"}
    turn = [chunk({"tool_calls": [call | {"function": function}]}), chunk({}, "tool_calls")]
    odd = chunk({"content": "ok"}, mark("FinishReason", run))
    last = [odd, usage_chunk()]
    for piece in (*turn, *last):
        piece["model"] = f"the {mark('ModelName', run)}"
        piece["system_fingerprint"] = mark("ProviderMeta", run)
    return [turn, last]


@script
def break_tool(dialect: Dialect, run: int) -> list[Step]:
    return [
        calls(dialect, ("broken", {"word": mark("ToolArgument", run)}), run=run),
        says(dialect, run),
    ]


@script
def break_nested(dialect: Dialect, run: int) -> list[Step]:
    return [
        calls(dialect, ("broken", {"word": mark("NestedArgument", run)}), run=run),
        says(dialect, run),
    ]


@script
def unknown_tool(dialect: Dialect, run: int) -> list[Step]:
    named = mark("UnknownTool", run)
    return [
        calls(dialect, (named, {"word": mark("ToolArgument", run)}), run=run),
        says(dialect, run),
    ]


@script
def bad_arguments(dialect: Dialect, run: int) -> list[Step]:
    raw: Any = f'{{"word": "{mark("BrokenJson", run)}'
    wrong: dict[str, Any] = {"word": {"no": mark("WrongArgument", run)}}
    return [
        dialect.calls(("lookup", raw)),
        dialect.calls(("lookup", wrong)),
        says(dialect, run),
    ]


@script
def refuse(dialect: Dialect, run: int) -> list[Step]:
    return [echo(400, run)]


@script
def fail(dialect: Dialect, run: int) -> list[Step]:
    return [echo(503, run)]


@script
def limit(dialect: Dialect, run: int) -> list[Step]:
    return [echo(429, run)]


@script
def abort(dialect: Dialect, run: int) -> list[Step]:
    return [[*says(dialect, run)[:1], *says(dialect, run)[1:2], {"$abort": True}]]


@script
def garble(dialect: Dialect, run: int) -> list[Step]:
    return [[f"data: {{{mark('ModelText', run)}\n\n".encode()]]


@script
def recover(dialect: Dialect, run: int) -> list[Step]:
    failed = Tries([{"$status": 503, "body": {"error": mark("ProviderBody", run)}}])
    tries = iter([failed, says(dialect, run)])
    return [lambda body: next(tries)]


@script
def again(dialect: Dialect, run: int) -> list[Step]:
    """Never stops calling."""
    return [calls(dialect, ("lookup", {"word": mark("ToolArgument", run)}), run=run)]


@script
def hang(dialect: Dialect, run: int) -> list[Step]:
    return [[*says(dialect, run)[:2], {"$hang": True}]]


@script
def form(dialect: Dialect, run: int) -> list[Step]:
    """An answer in the wrong form, then in the right one."""
    good = GOOD_JSON % mark("AnswerJson", run)
    return [dialect.form(f'{{"total": "{mark("WrongJson", run)}"}}'), dialect.form(good)]


@script
def bad_form(dialect: Dialect, run: int) -> list[Step]:
    return [dialect.form(f'{{"total": "{mark("WrongJson", run)}"}}')]


@script
def then_form(dialect: Dialect, run: int) -> list[Step]:
    good = GOOD_JSON % mark("AnswerJson", run)
    call = calls(dialect, ("lookup", {"word": mark("ToolArgument", run)}), run=run)
    return [call, says(dialect, run), dialect.form(good)]


@script
def delete(dialect: Dialect, run: int) -> list[Step]:
    return [
        calls(dialect, ("remove", {"word": mark("ToolArgument", run)}), run=run),
        says(dialect, run),
    ]


@script
def sources(dialect: Dialect, run: int) -> list[Step]:
    return [
        calls(dialect, ("find", {"word": mark("ToolArgument", run)}), run=run),
        dialect.text("It is [1] ", mark("ModelText", run)),
    ]


@script
def state(dialect: Dialect, run: int) -> list[Step]:
    return [
        calls(dialect, ("keep", {"word": mark("ToolArgument", run)}), run=run),
        says(dialect, run),
    ]


@script
def move(dialect: Dialect, run: int) -> list[Step]:
    """Calls a tool, then hangs; the second who asks is answered."""
    tries = iter([[*says(dialect, run)[:1], {"$hang": True}], says(dialect, run)])
    call = calls(dialect, ("lookup", {"word": mark("ToolArgument", run)}), run=run)
    return [call, lambda body: next(tries)]


@script
def ask_near(dialect: Dialect, run: int) -> list[Step]:
    task = f"{instruction('child', run)} {mark('Task', run)}"
    return [dialect.calls(("near", {"task": task})), says(dialect, run)]


@script
def consult(dialect: Dialect, run: int) -> list[Step]:
    task = f"{instruction('child', run)} {mark('Task', run)}"
    return [dialect.calls(("consult", {"question": task})), says(dialect, run)]


@script
def ask_far(dialect: Dialect, run: int) -> list[Step]:
    task = f"{instruction('child', run)} {mark('Task', run)}"
    return [dialect.calls(("far", {"task": task})), says(dialect, run)]


@script
def ask_far_broken(dialect: Dialect, run: int) -> list[Step]:
    task = f"{instruction('refuse', run)} {mark('Task', run)}"
    return [dialect.calls(("far", {"task": task})), says(dialect, run)]


@script
def child(dialect: Dialect, run: int) -> list[Step]:
    return [
        dialect.calls(("lookup", {"word": mark("ToolArgument", run)})),
        dialect.text("The answer: ", mark("SubAnswer", run)),
    ]


@script
def suggest(dialect: Dialect, run: int) -> list[Step]:
    def answer(body: dict[str, Any]) -> Any:
        wanted = mark("Suggestion", run)
        return dialect.text(f'["What of {wanted}?", "{mark("ModelText", run)}"]')

    return [answer]
