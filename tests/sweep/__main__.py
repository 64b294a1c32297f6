"""`python -m tests.sweep`: sweep, print what was found, and write the short form into the docs."""

import sys
import warnings

from tests.sweep.runs import RUNS
from tests.sweep.sweeps import OFF, ON, sweep_now
from tests.sweep.table import DOCUMENT, in_document, printed, short_form

import hayrunner  # before Haystack, which otherwise reports that it was imported

assert hayrunner


def main() -> int:
    """0 where nothing leaked."""
    warnings.simplefilter("ignore")
    off, on = sweep_now(RUNS, OFF), sweep_now(RUNS, ON)
    print(printed(off, on))
    DOCUMENT.write_text(in_document(DOCUMENT.read_text(), short_form()))
    return int(bool(off.leaks(keeps=False) or on.leaks(keeps=True)))


if __name__ == "__main__":
    sys.exit(main())
