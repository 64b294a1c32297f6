"""The contract needs msgspec and nothing else: shown in an interpreter that has nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

SOURCES = Path(__file__).parents[2] / "contracts" / "src"

# -I leaves out the environment and the current folder, -S the installed packages.
PROGRAM = """
import sys
sys.path[:0] = sys.argv[1:3]
import importlib, pkgutil
import hayrunner_contracts
from hayrunner_contracts import codec, examples, schema, asyncapi, tables, testing

for event in examples.EVENTS.values():
    assert codec.decode_event(codec.encode(event)) == event
for request in examples.REQUESTS.values():
    assert codec.decode_request(codec.encode(request)) == request
for result in examples.RESULTS.values():
    assert codec.decode_result(codec.encode(result)) == result
for command in examples.COMMANDS.values():
    assert codec.decode_command(codec.encode(command)) == command
for name in hayrunner_contracts.__all__:
    getattr(hayrunner_contracts, name)
assert schema.json_schemas() and asyncapi.asyncapi() and tables.tables()
try:
    hayrunner_contracts.RunClient
except ImportError as error:
    assert "nats" in str(error), error
else:
    raise SystemExit("the client was imported without nats")
for name in ("nats", "pydantic", "haystack", "hayrunner", "numpy"):
    try:
        importlib.import_module(name)
    except ImportError:
        continue
    raise SystemExit(f"{name} can be imported here")
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded - set(sys.stdlib_module_names) - {"__main__"}))
"""


@pytest.fixture
def only_msgspec(tmp_path: Path) -> Path:
    """A folder with msgspec in it, and nothing else."""
    folder = tmp_path / "packages"
    folder.mkdir()
    (folder / "msgspec").symlink_to(Path(msgspec.__file__).parent, target_is_directory=True)
    return folder


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-S", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )


def test_everything_but_the_client_works_with_msgspec_alone(only_msgspec: Path) -> None:
    done = _run("-c", PROGRAM, str(only_msgspec), str(SOURCES))
    assert done.returncode == 0, done.stderr or done.stdout
    assert done.stdout.strip() == "['hayrunner_contracts', 'msgspec']"


def test_the_schemas_are_checked_with_msgspec_alone(only_msgspec: Path) -> None:
    program = (
        f"import sys; sys.path[:0] = [{str(only_msgspec)!r}, {str(SOURCES)!r}]; "
        "from hayrunner_contracts.schema import main; sys.exit(main(['--check']))"
    )
    done = _run("-c", program)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
