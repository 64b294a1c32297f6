"""The image and the compose file, built and run for real."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hayrunner_contracts.testing import eventually

ROOT = Path(__file__).parents[2]
# Whichever test comes first builds the stand-ins and the image.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]
LOCKED_DOWN = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt",
               "no-new-privileges")  # fmt: skip

Command = Callable[..., CompletedProcess[str]]


def test_the_image_is_less_than_300_mb_over_its_base(
    docker: Command, base_images: tuple[str, str], image: str
) -> None:
    def size(name: str) -> int:
        return int(docker("image", "inspect", "--format", "{{.Size}}", name).stdout)

    assert size(image) - size(base_images[0]) < 300_000_000


def test_the_command_line_works_locked_down_and_offline(docker: Command, image: str) -> None:
    done = docker("run", "--rm", "--network", "none", *LOCKED_DOWN, image, "--help")
    assert "serve" in done.stdout


def test_the_worker_is_nobody_and_has_one_place_to_write(docker: Command, image: str) -> None:
    probe = (
        "import getpass, json, os, tempfile, hayrunner; "
        "print(json.dumps([os.getuid(), getpass.getuser(), tempfile.gettempdir(), "
        "os.path.expanduser('~')]))"
    )
    done = docker(
        "run", "--rm", "--network", "none", *LOCKED_DOWN, "--entrypoint", "python", image, "-c",
        probe,
    )  # fmt: skip
    assert json.loads(done.stdout) == [10001, "hayrunner", "/tmp", "/tmp"]


def test_the_image_has_no_installer_and_no_sources(docker: Command, image: str) -> None:
    probe = (
        "import importlib.util, os; "
        "print([name for name in ('pip', 'flit_core') if importlib.util.find_spec(name)], "
        "os.path.exists('/src'), os.listdir('/agents'))"
    )
    done = docker("run", "--rm", "--entrypoint", "/opt/hayrunner/bin/python", image, "-c", probe)
    assert done.stdout.strip() == "[] False []"


async def test_a_worker_without_a_bus_still_ends_on_sigterm(docker: Command, image: str) -> None:
    name = "hayrunner-test-sigterm"
    docker("rm", "--force", name, check=False)
    docker(
        "run", "--detach", "--name", name, *LOCKED_DOWN, "--volume", f"{ROOT}/examples:/agents:ro",
        image, "serve", "/agents/support.py", "--nats", "nats://127.0.0.1:4222",
    )  # fmt: skip
    try:
        await eventually(lambda: _answers(docker, name, "/livez"), 30, what="a living worker")
        docker("stop", "--time", "20", name)
        state = json.loads(docker("inspect", "--format", "{{json .State}}", name).stdout)
        assert state["ExitCode"] != 137, "it had to be killed"
        assert not state["OOMKilled"]
    finally:
        docker("rm", "--force", name, check=False)


def _answers(docker: Command, name: str, path: str) -> bool:
    probe = f"import urllib.request as r; r.urlopen('http://127.0.0.1:8080{path}', timeout=2)"
    return docker("exec", name, "python", "-c", probe, check=False).returncode == 0


def test_compose_brings_up_workers_that_answer_and_leave_in_time(compose: Command) -> None:
    compose("config", "--quiet")
    compose("up", "--detach", "--no-build", "--wait", "--scale", "worker=3")
    init = _containers(compose, "init")[0]
    assert (init["State"], init["ExitCode"]) == ("exited", 0)
    assert [worker["Health"] for worker in _containers(compose, "worker")] == ["healthy"] * 3

    asked = compose("exec", "-T", "worker", "hayrunner", "ask", "support", "Where is order 1042?")
    assert asked.stdout.strip()

    # Down to one worker and then none: each is asked to go, none has to be killed.
    compose("up", "--detach", "--no-build", "--scale", "worker=1", "--no-recreate")
    assert len(_containers(compose, "worker")) == 1
    compose("stop", "worker")
    assert [worker["ExitCode"] for worker in _containers(compose, "worker")] == [0]


def _containers(compose: Command, service: str) -> list[dict[str, object]]:
    text = compose("ps", "--all", "--format", "json", service).stdout
    return [json.loads(line) for line in text.splitlines()]
