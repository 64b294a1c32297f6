"""What a command does not load, it does not wait for."""

import subprocess
import sys

import pytest

HEAVY = ("haystack", "faststream", "openai", "uvicorn")


def loaded(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return set(done.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import hayrunner.cli.commands",
        "import hayrunner.cli.asker, hayrunner.cli.asking, hayrunner.cli.connecting",
        "import hayrunner.cli.provisioned, hayrunner.cli.connecting",
        "import hayrunner.cli.dead_views, hayrunner.cli.connecting",
        "import hayrunner_contracts.schema, hayrunner.cli.commands",
    ],
    ids=["help", "ask", "init", "dead", "schema"],
)
def test_a_command_that_only_talks_to_nats_loads_no_framework(code: str) -> None:
    assert loaded(code).isdisjoint(HEAVY)


def test_help_loads_next_to_nothing() -> None:
    assert loaded("import hayrunner.cli.commands").isdisjoint({"nats", "pydantic", "rich"})
