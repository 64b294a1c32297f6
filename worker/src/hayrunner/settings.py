"""Settings: the only place that reads the environment (Haystack's own Secrets aside).

Names are `HAYRUNNER_` and the field's name in capitals; the provider's keep the names that
everybody knows. Secrets are `SecretStr`: they print as stars, in logs and in tracebacks.
"""

import re
import secrets
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AliasChoices,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from hayrunner.errors import ConfigurationError

__all__ = ["Settings", "load_settings"]

_Token = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,128}$")]


def _random_worker_id() -> str:
    return f"w-{secrets.token_hex(6)}"


def _from_variable(name: str) -> Any:
    """A text with a name of its own, empty where the variable is not set. A value that is no good
    is nobody's error: the same variables are set for every service of a deployment."""
    return Field(default="", validation_alias=AliasChoices(name, name.lower()))


class Settings(BaseSettings):
    """What an operator can set. Every default works on a laptop."""

    model_config = SettingsConfigDict(
        env_prefix="HAYRUNNER_", extra="forbid", frozen=True, populate_by_name=True
    )

    nats_url: str = "nats://localhost:4222"
    """One address, or several of one cluster, separated by commas."""
    nats_user: str | None = None
    nats_password: SecretStr | None = None
    nats_token: SecretStr | None = None
    nats_credentials: Path | None = None
    """A credentials file: JWT and seed."""
    nats_nkey: Path | None = None
    """A file with an nkey seed."""
    nats_tls_ca: Path | None = None
    nats_tls_cert: Path | None = None
    nats_tls_key: Path | None = None

    namespace: _Token = "default"
    worker_id: _Token = Field(default_factory=_random_worker_id)
    """Unique among living workers; a random one is right unless you want to recognise it."""

    concurrency: int = Field(default=32, ge=1)
    """Runs at once, durable and direct together."""
    tool_threads: int = Field(default=64, ge=1)
    """Sync tools of one agent that run at once; async tools need no thread."""
    subagent_depth: int = Field(default=5, ge=1)
    """How many levels deep agents may ask agents, over all workers."""
    ack_wait_s: float = Field(default=20.0, ge=0.5)
    """Seconds without a sign of life after which a run is given to another worker."""
    max_attempts: int = Field(default=3, ge=1)
    park_after_s: float = Field(default=30.0, ge=0)
    """Seconds that a run waits for an approval before it gives up its slot and waits parked."""
    drain_timeout_s: float = Field(default=30.0, ge=0)
    """Seconds that running runs may go on after SIGTERM."""
    max_request_bytes: int = Field(default=900_000, ge=1_000)
    """Of a request that comes in one message."""
    max_blob_bytes: int = Field(default=32 * 1024 * 1024, ge=1_000)
    """Of a request, an event or a result that is too large for one message and goes by way of
    the object store."""

    max_queue: int = Field(default=10_000, ge=1)
    """Requests of one agent in one namespace that are queued or running; further ones are refused
    when published."""
    max_queue_total: int = Field(default=100_000, ge=1)
    """The same over all agents and namespaces of the server; at least `max_queue`."""
    max_dead_letters: int = Field(default=10_000, ge=1)
    """Dead letters kept of one agent in one namespace; past it the oldest is dropped."""
    replicas: int = Field(default=1, ge=1, le=5)
    storage: Literal["file", "memory"] = "file"
    events_max_age_s: float = Field(default=7_200.0, ge=1)
    results_max_age_s: float = Field(default=86_400.0, ge=1)
    threads_max_age_s: float = Field(default=0.0, ge=0)
    """Seconds that what is said in a conversation is kept; 0: for ever."""
    threads_max_bytes: int = Field(default=0, ge=0)
    """Bytes of all conversations together, past which the oldest are forgotten; 0: no limit."""
    provision: bool = True
    """Create and update streams, consumers and buckets at start. Off where `hayrunner init`
    owns them."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=-1, le=65535)
    """Health and metrics; 0 takes a free port, -1 serves none."""

    content_telemetry: Literal["never", "per_run"] = "per_run"
    """`never` overrules whoever wants content in traces."""
    otel_capture_content: str = _from_variable("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT")
    otel_sdk_disabled: str = _from_variable("OTEL_SDK_DISABLED")
    otel_traces_exporter: str = _from_variable("OTEL_TRACES_EXPORTER")
    otel_metrics_exporter: str = _from_variable("OTEL_METRICS_EXPORTER")
    otel_metrics_endpoint: str = _from_variable("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    otel_endpoint: str = _from_variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    otel_traces_endpoint: str = _from_variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    otel_spans_at_once: str = _from_variable("OTEL_BSP_MAX_EXPORT_BATCH_SIZE")
    otel_spans_waiting: str = _from_variable("OTEL_BSP_MAX_QUEUE_SIZE")
    otel_metric_interval: str = _from_variable("OTEL_METRIC_EXPORT_INTERVAL")
    otel_temporality: str = _from_variable("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE")
    log_format: Literal["json", "console"] = "console"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_trusted: str = ""
    """Loggers, separated by commas, whose messages and arguments may be shown: those of your own
    tools, where you know what they say. Of all others only what is written into their code is."""

    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias=AliasChoices("OPENAI_API_KEY", "openai_api_key")
    )
    openai_base_url: str | None = Field(
        default=None, validation_alias=AliasChoices("OPENAI_BASE_URL", "openai_base_url")
    )
    model: str | None = None

    @field_validator("max_queue_total")
    @classmethod
    def _not_below_one_queue(cls, total: int, info: ValidationInfo) -> int:
        if total < info.data.get("max_queue", 1):
            raise ValueError("has to be at least HAYRUNNER_MAX_QUEUE")
        return total

    @property
    def trusted_loggers(self) -> list[str]:
        """The names in `log_trusted`."""
        return [name.strip() for name in self.log_trusted.split(",") if name.strip()]

    @property
    def captures_content(self) -> bool:
        """Whether runs keep content in traces where neither request nor agent says anything."""
        wanted = self.otel_capture_content.strip().lower()
        return wanted in ("true", "span_only", "span_and_event")

    @property
    def traces(self) -> Literal["otlp", "console"] | None:
        """Where the worker's own export of traces goes; None for no such export. An endpoint turns
        it on, or an exporter that is named."""
        return self._export(self.otel_traces_exporter, self.otel_traces_endpoint)

    @property
    def metrics(self) -> Literal["otlp", "console"] | None:
        """The same of metrics, which `/metrics` shows in any case."""
        return self._export(self.otel_metrics_exporter, self.otel_metrics_endpoint)

    def _export(self, exporters: str, endpoint: str) -> Literal["otlp", "console"] | None:
        if self.otel_sdk_disabled.strip().lower() == "true":
            return None
        named = [name.strip() for name in exporters.lower().split(",")]
        if "console" in named:
            return "console"
        if "otlp" in named:
            return "otlp"
        has_endpoint = bool(self.otel_endpoint or endpoint)
        return "otlp" if has_endpoint and named == [""] else None

    @property
    def servers(self) -> list[str]:
        """The addresses in `nats_url`, each with a scheme."""
        found = [part.strip() for part in self.nats_url.split(",") if part.strip()]
        return [part if "://" in part else f"nats://{part}" for part in found]


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment, with `overrides` (None: not overridden) on top.

    Raises `ConfigurationError`, one line, naming every variable that cannot be used; the value
    is not repeated, as it may be a secret.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        problems = "; ".join(_problem(item) for item in error.errors(include_input=False))
        raise ConfigurationError(f"settings: {problems}") from None


def _problem(item: Any) -> str:
    name = str(item["loc"][0]) if item["loc"] else "?"
    variable = name if name.isupper() else f"HAYRUNNER_{name.upper()}"
    message = re.sub(r"\s+", " ", str(item["msg"])).removeprefix("Value error, ")
    return f"{variable}: {message[0].lower()}{message[1:]}"
