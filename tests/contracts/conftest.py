import os

# Before anything imports Haystack: it would phone home and write into the home folder.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "false"
