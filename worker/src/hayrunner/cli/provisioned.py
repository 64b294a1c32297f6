"""What is there of what the settings ask for: streams, the bucket, consumers."""

from collections.abc import Mapping, Sequence
from typing import Any

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from hayrunner.errors import ConfigurationError
from hayrunner.serving.availability import PATIENCE_S, when_available
from hayrunner.serving.provisioning import stream_configs
from hayrunner.settings import Settings
from hayrunner_contracts import subjects
from hayrunner_contracts.errors import InvalidRequest

__all__ = ["Inventory"]

_RUNS_STREAM = f"KV_{subjects.RUNS_BUCKET}"


class Inventory:
    """Looks streams and consumers up, by the names that an operator knows."""

    def __init__(
        self, jetstream: JetStreamContext, settings: Settings, agents: Sequence[str]
    ) -> None:
        self._jetstream = jetstream
        streams = [str(config.name) for config in stream_configs(settings)]
        self._streams = {f"stream {name}": name for name in streams}
        self._streams[f"bucket {subjects.RUNS_BUCKET}"] = _RUNS_STREAM
        for bucket in (subjects.RUN_BLOBS_BUCKET, subjects.THREAD_BLOBS_BUCKET):
            self._streams[f"bucket {bucket}"] = f"OBJ_{bucket}"
        self._consumers = {
            f"consumer of {agent}": _consumer(settings.namespace, agent) for agent in agents
        }

    async def take(self, *, patience_s: float = PATIENCE_S) -> dict[str, Any]:
        """The configuration of each, None for what is missing. `ConfigurationError` where the
        server has no JetStream, no leader for so many seconds, or does not let this user look,
        which is silence, too."""
        try:
            return await when_available(self._look, patience_s=patience_s)
        except NatsError as error:
            raise ConfigurationError(
                f"streams cannot be looked up ({type(error).__name__}): this user needs to "
                "publish on $JS.API.>, and to subscribe to _INBOX.>"
            ) from error

    async def _look(self) -> dict[str, Any]:
        found = {shown: await self._stream(name) for shown, name in self._streams.items()}
        for shown, name in self._consumers.items():
            found[shown] = await self._consumer(name)
        return found

    @staticmethod
    def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
        """What happened to each: created, updated or unchanged."""
        return {
            name: "created"
            if before[name] is None
            else "unchanged"
            if before[name] == config
            else "updated"
            for name, config in after.items()
        }

    async def _stream(self, name: str) -> Any:
        try:
            return (await self._jetstream.stream_info(name)).config
        except NotFoundError:
            return None

    async def _consumer(self, name: str) -> Any:
        try:
            return (await self._jetstream.consumer_info(subjects.AGENT_REQUESTS, name)).config
        except NotFoundError:
            return None


def _consumer(namespace: str, agent: str) -> str:
    try:
        return subjects.consumer_name(namespace, agent)
    except InvalidRequest as error:
        raise ConfigurationError(f"--agent {error}") from None
