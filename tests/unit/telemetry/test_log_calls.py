"""Every log call in the source: a literal sentence, and values that cannot be content."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = sorted(
    path for member in ("worker/src", "contracts/src") for path in (ROOT / member).rglob("*.py")
)
LEVELS = {"debug", "info", "warning", "error", "critical", "log", "exception", "warn"}

# What a record of ours may have: names that operators gave, ids made here or checked to be some,
# codes of closed sets, numbers.
FIELDS = {
    *("message_id", "subagent_run", "sequence", "ref"),
    *("agent", "agents", "subagent", "worker", "namespace", "stream", "bucket"),
    *("attempt", "attempts", "model_calls", "runs", "concurrency", "again_in_s"),
    *("outcome", "error_code", "error_type", "status", "changed", "handed_back"),
    *("servers", "http", "warning", "place"),
}
# The same for `%s` of plain records, by the code that makes the value.
ARGUMENTS = {
    "END_LIMIT_S",
    "_CLOSE_TIMEOUT_S",
    "call.tool_name",  # of a registered tool: it was run
    "duration",
    "error.key",  # of a State's schema, in an agent's configuration
    "failure.code",
    "kind",  # of a command
    "missing[0]",  # a package
    "name",  # of a hook's class and method, or of a field
    "names",  # of tools, in an agent's configuration
    "ref",
    "run.message_id",
    "run.model_calls",
    "self._message_id",
    "self._run.message_id",
    "self.name",
    "told",  # an error code
    "type(cause).__name__",
    "type(error).__name__",
    "type(error).__qualname__",
    "wait",  # seconds
    "what",  # traces or metrics
    "where",  # a file and a line
}


def calls_of(path: Path) -> Iterator[tuple[ast.Call, bool]]:
    """The log calls of a module, and whether each is one of structlog's."""
    tree = ast.parse(path.read_text())
    structured: dict[str, bool] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            maker = ast.unparse(node.value.func)
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if maker.endswith(("getLogger", "get_logger")):
                structured[ast.unparse(target)] = maker.endswith("get_logger")
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in LEVELS
            and (name := ast.unparse(node.func.value)) in structured
        ):
            yield node, structured[name]


def problems_of(call: ast.Call, structured: bool) -> Iterator[str]:
    assert isinstance(call.func, ast.Attribute)
    if call.func.attr in ("exception", "log", "warn"):
        yield f"no {call.func.attr}()"
    message = call.args[0] if call.args else call
    texts = [message.body, message.orelse] if isinstance(message, ast.IfExp) else [message]
    if not all(isinstance(text, ast.Constant) for text in texts):
        yield "the message is no literal"
    for argument in call.args[1:]:
        if structured or ast.unparse(argument) not in ARGUMENTS:
            yield f"an argument: {ast.unparse(argument)}"
    for keyword in call.keywords:
        if keyword.arg is None:
            if not ast.unparse(keyword.value).startswith("cause_of("):
                yield f"unknown fields: {ast.unparse(keyword.value)}"
        elif not structured or keyword.arg not in FIELDS:
            yield f"a field: {keyword.arg}"


def test_log_calls_say_nothing_that_could_be_content() -> None:
    found: list[str] = []
    count = 0
    for path in SOURCES:
        for call, structured in calls_of(path):
            count += 1
            place = f"{path.relative_to(ROOT)}:{call.lineno}"
            found.extend(f"{place}: {problem}" for problem in problems_of(call, structured))

    assert found == []
    assert count > 40


@pytest.mark.parametrize(
    "line",
    [
        "_log.info('told', prompt=prompt)",
        "_log.info(f'told {prompt}')",
        "_log.info('told', **fields)",
        "_log.info('told %s', prompt)",
        "_log.exception('told')",
        "_log.error('told', exc_info=True)",
        "_log.info(text)",
    ],
)
def test_the_check_finds_what_could_be_content(tmp_path: Path, line: str) -> None:
    module = tmp_path / "module.py"
    module.write_text(f"_log = get_logger(__name__)\n{line}\n")

    assert [list(problems_of(*call)) for call in calls_of(module)] != [[]]


def test_nothing_is_printed_outside_of_the_command_line() -> None:
    printing = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if not {"cli", "demo"} & set(path.parts)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "sys.stderr.write")
    ]

    assert printing == ["contracts/src/hayrunner_contracts/schema.py"] * len(printing)
