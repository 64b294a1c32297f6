"""Rules of the house that no linter knows."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST_MODULE = 450


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_no_module_is_longer_than_one_story() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in tracked("*.py")
        if (lines := len(path.read_text().splitlines())) > LONGEST_MODULE
    }

    assert long == {}


def test_no_file_records_the_address_of_a_package_index() -> None:
    # Spelled in two halves, so that this file does not find itself.
    address = re.compile("pypi" + r"\.org|python" + r"hosted\.org|registry\.npm" + "js")
    found = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if path.suffix not in {".png", ".gz"} and address.search(path.read_text(errors="ignore"))
    ]

    assert found == []


def test_every_dependency_is_pinned_with_a_hash() -> None:
    for path in ROOT.glob("requirements*.txt"):
        entries = [
            block
            for block in re.split(r"\n(?=\S)", path.read_text())
            if block.strip() and not block.startswith("#")
        ]

        assert entries
        for entry in entries:
            assert "==" in entry.splitlines()[0], entry
            assert "--hash=sha256:" in entry, entry


def test_only_the_settings_read_the_environment() -> None:
    reads = re.compile(r"os\.environ|os\.getenv|environ\[")
    allowed = {"settings.py", "__init__.py"}
    found = [
        str(path.relative_to(ROOT))
        for path in tracked("worker/src/*.py", "contracts/src/*.py")
        if path.name not in allowed and reads.search(path.read_text())
    ]

    assert found == []
