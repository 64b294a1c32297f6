"""How a run says whose subagent it is: in the metadata of its request."""

from hayrunner_contracts.requests import RunRequest

__all__ = ["SUBAGENT_PATH", "path_of"]

SUBAGENT_PATH = "hayrunner_subagent_path"
"""The key in `metadata` under which a worker that calls an agent as a subagent names the agents
above it, the outermost first, joined by `/`."""


def path_of(request: RunRequest) -> tuple[str, ...]:
    """The agents above this run, the outermost first; empty where it is nobody's subagent."""
    return tuple(name for name in request.metadata.get(SUBAGENT_PATH, "").split("/") if name)
