"""The edge to Haystack: the loop, its events, and the adapters an agent author can override."""
