"""`python -m hayrunner.cli.leashed …` is `hayrunner …` that ends with the process it was started
by: standard input is a pipe from it, and closes when it is gone, however it went."""

import os
import signal
import sys
import threading

from hayrunner.cli import main

__all__: list[str] = []


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    # As an operator would: running runs are handed back.
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, daemon=True, name="leash").start()
    sys.argv[0] = "hayrunner"
    main()
