"""The command line `hayrunner`. Commands import what they need when they run: `--help`, `ask`,
`init` and `schema` never load Haystack."""

import sys

__all__ = ["main"]


def main() -> None:
    """The console entry."""
    from hayrunner.cli.commands import app

    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows a mark in its place instead of a traceback.
        getattr(stream, "reconfigure", lambda **_: None)(errors="replace")
    app(prog_name="hayrunner")
