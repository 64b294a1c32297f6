"""Hayrunner: Haystack agents and pipelines as workers on NATS."""

import os

# Haystack reads this when it is first imported: without it, importing phones home and writes
# a file in the home folder. An operator who wants it sets the variable.
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "false")
