"""The Dockerfile and its context, without building them."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "deploy" / "Dockerfile").read_text()
# One instruction per entry: comments gone, continued lines joined.
INSTRUCTIONS = [
    line for line in re.sub(r"\\\n\s*", "", re.sub(r"(?m)^\s*#.*\n", "", TEXT)).splitlines() if line
]


def arguments(name: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in INSTRUCTIONS if line.split(maxsplit=1)[0] == name]


def test_any_builder_can_build_it_without_fetching_a_front_end() -> None:
    assert not re.search(r"(?mi)^#\s*(syntax|escape|check)\s*=", TEXT)
    assert "<<" not in TEXT
    assert not re.search(r"(?m)\b(RUN|COPY|ADD)\s+--(mount|link|chmod|security|network)", TEXT)
    assert not arguments("ADD")


def test_every_stage_starts_from_the_one_base_that_can_be_chosen() -> None:
    assert arguments("ARG") == ["BASE=python:3.12-slim"]
    assert [line.split()[0] for line in arguments("FROM")] == ["${BASE}", "${BASE}"]


@pytest.mark.parametrize("name", ["ENTRYPOINT", "CMD"])
def test_no_shell_stands_between_the_worker_and_its_signals(name: str) -> None:
    (form,) = arguments(name)
    command = json.loads(form)
    assert isinstance(command, list)
    assert command == (["hayrunner"] if name == "ENTRYPOINT" else ["serve", "/agents"])
    assert arguments("STOPSIGNAL") == ["SIGTERM"]


def test_the_user_is_a_number_so_that_a_pod_can_prove_it_is_not_root() -> None:
    (user,) = arguments("USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)


def test_dependencies_are_installed_by_hash_and_members_without_dependencies() -> None:
    installs = [line for run in arguments("RUN") for line in run.split("&&") if "install" in line]
    kinds = [
        next(flag for flag in ("--require-hashes", "--no-deps", "uninstall") if flag in line)
        for line in installs
    ]
    assert kinds == ["--require-hashes", "--no-deps", "uninstall"]
    assert "--no-build-isolation" in installs[1]


def test_everything_it_copies_is_there_and_in_the_build_context() -> None:
    wanted = [line.split()[0] for line in arguments("COPY") if not line.startswith("--from")]
    let_in = [
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    assert sorted(wanted) == sorted(let_in)
    assert all((ROOT / path).exists() for path in wanted)


def test_no_file_of_the_deployment_says_where_packages_come_from() -> None:
    for path in (ROOT / "deploy").rglob("*"):
        if path.is_file():
            assert not re.search(
                r"index-url|trusted-host|find-links|PIP_(INDEX|EXTRA|FIND|TRUSTED|CERT|PROXY)",
                path.read_text(),
            ), path
