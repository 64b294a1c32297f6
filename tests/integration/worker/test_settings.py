"""Settings: what the environment says, and how it is told that it is wrong."""

import pytest

from hayrunner.errors import ConfigurationError
from hayrunner.settings import Settings, load_settings


def test_the_defaults_work_on_a_laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HAYRUNNER_NATS_URL", "OPENAI_API_KEY", "HAYRUNNER_MODEL"):
        monkeypatch.delenv(name, raising=False)
    settings = load_settings()
    assert (settings.nats_url, settings.namespace, settings.port) == (
        "nats://localhost:4222",
        "default",
        8080,
    )
    assert settings.worker_id != load_settings().worker_id


def test_the_environment_is_read_under_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYRUNNER_NATS_URL", "a:4222, nats://b:4222")
    monkeypatch.setenv("HAYRUNNER_CONCURRENCY", "7")
    monkeypatch.setenv("HAYRUNNER_MODEL", "some-model")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    settings = load_settings()

    assert settings.servers == ["nats://a:4222", "nats://b:4222"]
    assert (settings.concurrency, settings.model) == (7, "some-model")
    assert settings.openai_api_key is not None
    assert settings.openai_api_key.get_secret_value() == "sk-1"
    assert settings.openai_base_url == "http://localhost:1/v1"


def test_all_queues_together_hold_no_less_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYRUNNER_MAX_QUEUE", "200000")
    said = "HAYRUNNER_MAX_QUEUE_TOTAL: has to be at least HAYRUNNER_MAX_QUEUE"
    with pytest.raises(ConfigurationError, match=said):
        load_settings()
    assert load_settings(max_queue_total=200_000).max_queue == 200_000


def test_an_override_wins_and_none_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYRUNNER_CONCURRENCY", "7")
    assert load_settings(concurrency=9, namespace=None).concurrency == 9
    assert load_settings(concurrency=None).concurrency == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HAYRUNNER_CONCURRENCY", "many"),
        ("HAYRUNNER_CONCURRENCY", "0"),
        ("HAYRUNNER_PORT", "70000"),
        ("HAYRUNNER_STORAGE", "tape"),
        ("HAYRUNNER_NAMESPACE", "a.b"),
        ("HAYRUNNER_ACK_WAIT_S", "-1"),
        ("HAYRUNNER_CONTENT_TELEMETRY", "always"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError) as raised:
        load_settings()
    text = str(raised.value)
    assert name in text
    assert "\n" not in text


def test_secrets_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HAYRUNNER_NATS_PASSWORD", "hunter2")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    shown = f"{load_settings()!r} {load_settings()} {Settings().model_dump_json()}"
    assert "hunter2" not in shown
    assert "sk-secret" not in shown
