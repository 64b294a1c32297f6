import os

import pytest

# Before anything imports Haystack: it would phone home and write into the home folder.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"


def pytest_addoption(parser: pytest.Parser) -> None:
    # Known only where pytest is given this folder: a snapshot is never written by the way.
    parser.addoption("--write-snapshots", action="store_true", help="accept the wire as it is")
