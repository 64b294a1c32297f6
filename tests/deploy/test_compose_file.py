"""compose.yaml, without running it."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from hayrunner.settings import Settings

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]


def seconds(text: str) -> int:
    match = re.fullmatch(r"(\d+)s", text)
    assert match is not None
    return int(match[1])


@pytest.mark.parametrize("name", SERVICES)
def test_every_container_is_hardened(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_a_stopped_worker_has_longer_than_its_drain_timeout() -> None:
    worker = SERVICES["worker"]
    drain = int(worker["environment"]["HAYRUNNER_DRAIN_TIMEOUT_S"])
    assert seconds(worker["stop_grace_period"]) >= drain + 5


@pytest.mark.parametrize("name", ["init", "worker"])
def test_every_variable_it_sets_is_a_setting(name: str) -> None:
    known = {f"HAYRUNNER_{field.upper()}" for field in Settings.model_fields}
    known |= {"OPENAI_API_KEY", "OPENAI_BASE_URL"}
    assert set(SERVICES[name]["environment"]) <= known


def test_workers_bind_and_the_init_job_owns() -> None:
    assert SERVICES["worker"]["environment"]["HAYRUNNER_PROVISION"] == "false"
    assert "HAYRUNNER_PROVISION" not in SERVICES["init"]["environment"]


def test_workers_start_after_the_init_job_is_through() -> None:
    assert SERVICES["init"]["depends_on"]["nats"] == {"condition": "service_healthy"}
    assert SERVICES["worker"]["depends_on"]["init"] == {
        "condition": "service_completed_successfully"
    }


def test_workers_can_be_any_number() -> None:
    assert SERVICES["worker"]["deploy"] == {"replicas": 2}
    assert "ports" not in SERVICES["worker"]
    assert "container_name" not in SERVICES["worker"]


def test_nothing_is_published_beyond_this_machine() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published == ["127.0.0.1:${NATS_PORT:-4222}:4222"]


def test_the_agents_it_serves_by_default_are_in_the_examples() -> None:
    assert SERVICES["worker"]["volumes"] == ["${AGENTS_DIR:-../examples}:/agents:ro"]
    assert SERVICES["worker"]["command"] == ["serve", "${TARGET:-/agents/support.py}"]
    assert (DEPLOY.parent / "examples" / "support.py").exists()
