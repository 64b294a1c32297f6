"""The chart: what it renders, checked against strict schemas and against what workers need."""

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from hayrunner.settings import Settings
from hayrunner_contracts import subjects

HERE = Path(__file__).parent
CHART = HERE.parents[1] / "deploy" / "helm" / "hayrunner"
# None: the chart's own defaults.
VALUES = [None, *sorted(path.stem for path in (HERE / "values").glob("*.yaml"))]
# The oldest version that Chart.yaml allows and the newest there is a schema for.
KUBERNETES = ["1.25", "1.37"]
SCALED_OBJECT = json.loads((HERE / "keda-scaledobject.schema.json").read_text())

Manifest = dict[str, Any]
Render = Callable[..., list[Manifest]]
Command = Callable[..., CompletedProcess[str]]


def kind(objects: list[Manifest], name: str) -> Manifest:
    found = [manifest for manifest in objects if manifest["kind"] == name]
    assert len(found) == 1, f"{len(found)} objects of kind {name}"
    return found[0]


def pods(objects: list[Manifest]) -> Iterator[Manifest]:
    for manifest in objects:
        if manifest["kind"] in ("Deployment", "Job"):
            yield manifest["spec"]["template"]


def environment(pod: Manifest) -> dict[str, Manifest]:
    return {entry["name"]: entry for entry in pod["spec"]["containers"][0]["env"]}


def secret_files(pod: Manifest) -> Iterator[tuple[str, tuple[str, str]]]:
    """Path in the container, and the Secret and its key behind it."""
    mounts = {
        mount["name"]: mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]
    }
    for volume in pod["spec"]["volumes"]:
        if "secret" in volume:
            for item in volume["secret"]["items"]:
                path = f"{mounts[volume['name']]}/{item['path']}"
                yield path, (volume["secret"]["secretName"], item["key"])


@pytest.mark.parametrize("values", VALUES)
def test_the_chart_lints_without_a_warning(helm: Command, values: str | None) -> None:
    chosen = ["--values", str(HERE / "values" / f"{values}.yaml")] if values else []
    helm("lint", "--strict", "--quiet", str(CHART), *chosen)


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", VALUES)
def test_every_object_passes_its_strict_schema(
    render: Render, values: str | None, version: str
) -> None:
    objects = render(values)
    assert {"Deployment", "Service"} <= {manifest["kind"] for manifest in objects}
    for manifest in objects:
        if manifest["apiVersion"] == "keda.sh/v1alpha1":
            jsonschema.validate(manifest, SCALED_OBJECT)
        else:
            kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize(
    ("path", "name", "value"),
    [
        (["spec"], "maxReplicasCount", 5),
        (["spec", "fallback"], "replica", 2),
        (["spec", "advanced"], "horizontalPodAutoscaler", {}),
        (["spec", "triggers", 0, "metadata"], "natsServerMonitoringEndPoint", "nats:8222"),
        (["spec", "triggers", 0, "metadata"], "lagThreshold", 8),
        (["spec", "triggers", 0, "metadata"], "useHttps", False),
        (["spec", "triggers", 0], "metricTypes", "AverageValue"),
    ],
)
def test_a_slip_in_a_scaled_object_is_found_by_the_schema(
    render: Render, path: list[str | int], name: str, value: object
) -> None:
    broken: Any = copy.deepcopy(kind(render("keda"), "ScaledObject"))
    place = broken
    for step in path:
        place = place[step]
    place[name] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(broken, SCALED_OBJECT)


@pytest.mark.parametrize(
    "setting",
    [
        "concurency=4",
        "keda.enable=true",
        "nats.credentials.secretname=x",
        "provider.apiKey=sk-1",
        "image.digest=sha256:0",
        "resources.limit.memory=1Gi",
        "concurrency=many",
        "concurrency=0",
        "drainTimeoutSeconds=-1",
        "terminationMarginSeconds=0",
        "namespace=two tokens",
        "namespace=a.b",
        "agents.names={support.v2}",
        "agents.names={support,support}",
        "agents.names=null",
        "nats.url=nats://user:secret@nats:4222",
        "nats.url=nats:4222",
        "nats.replicas=2",
        "nats.monitoring.endpoint=http://nats:8222",
        "nats.auth.secretName=login",
        "keda.fallback.replicas=0",
    ],
)
def test_a_wrong_value_is_refused(helm: Command, setting: str) -> None:
    done = helm("template", "hay", str(CHART), "--set", setting, check=False)
    assert done.returncode != 0
    assert "values don't meet the specifications" in done.stderr


def test_a_name_that_yaml_reads_as_a_boolean_is_refused(helm: Command, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("agents:\n  target: shop.agents\n  names: [n]\n")
    done = helm("template", "hay", str(CHART), "--values", str(values), check=False)
    assert "at '/agents/names/0': got boolean, want string" in done.stderr


def test_a_minimum_above_the_maximum_is_refused(helm: Command) -> None:
    settings = "keda.enabled=true,keda.minReplicas=9,keda.maxReplicas=3"
    done = helm("template", "hay", str(CHART), "--set", settings, check=False)
    assert done.returncode != 0
    assert "keda.minReplicas is above keda.maxReplicas" in done.stderr


def test_the_number_of_workers_has_one_owner(render: Render) -> None:
    assert kind(render(None, "replicaCount=4"), "Deployment")["spec"]["replicas"] == 4
    assert "replicas" not in kind(render("keda"), "Deployment")["spec"]


@pytest.mark.parametrize("values", VALUES)
def test_the_grace_period_outlasts_the_drain(render: Render, values: str | None) -> None:
    pod = kind(render(values), "Deployment")["spec"]["template"]
    drain = int(environment(pod)["HAYRUNNER_DRAIN_TIMEOUT_S"]["value"])
    assert pod["spec"]["terminationGracePeriodSeconds"] >= drain + 5


def test_the_grace_period_follows_the_drain_timeout(render: Render) -> None:
    objects = render(None, "drainTimeoutSeconds=1200000", "terminationMarginSeconds=20")
    pod = kind(objects, "Deployment")["spec"]["template"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 1_200_020
    assert environment(pod)["HAYRUNNER_DRAIN_TIMEOUT_S"]["value"] == "1200000"


def test_a_rollout_never_has_fewer_workers(render: Render) -> None:
    strategy = kind(render(), "Deployment")["spec"]["strategy"]
    assert strategy["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_only_readiness_depends_on_the_bus(render: Render) -> None:
    container = kind(render(), "Deployment")["spec"]["template"]["spec"]["containers"][0]
    asked = {
        probe: container[probe]["httpGet"]["path"]
        for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert asked == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }
    port = str(container["ports"][0]["containerPort"])
    pod = kind(render(), "Deployment")["spec"]["template"]
    assert environment(pod)["HAYRUNNER_PORT"]["value"] == port


@pytest.mark.parametrize("values", VALUES)
def test_every_pod_is_hardened(render: Render, values: str | None) -> None:
    for pod in pods(render(values)):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        writable = {
            mount["mountPath"]
            for mount in container["volumeMounts"]
            if not mount.get("readOnly", False)
        }
        assert writable == {"/tmp"}


def test_workers_bind_and_the_init_job_owns(render: Render) -> None:
    objects = render()
    worker = environment(kind(objects, "Deployment")["spec"]["template"])
    assert worker["HAYRUNNER_PROVISION"]["value"] == "false"
    assert "HAYRUNNER_PROVISION" not in environment(kind(objects, "Job")["spec"]["template"])


@pytest.mark.parametrize("values", VALUES)
def test_every_variable_it_sets_is_a_setting_that_takes_the_value(
    render: Render, values: str | None
) -> None:
    for pod in pods(render(values)):
        given = {
            name.removeprefix("HAYRUNNER_").lower(): entry.get("value", "secret")
            for name, entry in environment(pod).items()
            if name.startswith("HAYRUNNER_")
        }
        assert set(given) <= set(Settings.model_fields)
        Settings.model_validate(given)


def test_the_init_job_creates_the_consumer_of_every_agent_first(render: Render) -> None:
    job = kind(render("keda"), "Job")
    hooks = job["metadata"]["annotations"]
    assert hooks["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert hooks["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    arguments = job["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments == [
        "init", "--agent", "support", "--agent", "order-status", "--agent", "n",
    ]  # fmt: skip
    env = environment(job["spec"]["template"])
    assert env["HAYRUNNER_REPLICAS"]["value"] == "3"
    assert env["HAYRUNNER_NAMESPACE"]["value"] == "staging"


@pytest.mark.parametrize("values", VALUES)
def test_the_init_job_uses_nothing_that_is_installed_after_it(
    render: Render, values: str | None
) -> None:
    objects = render(values)
    later = {manifest["metadata"]["name"] for manifest in objects if manifest["kind"] != "Job"}
    for job in (manifest for manifest in objects if manifest["kind"] == "Job"):
        spec = job["spec"]["template"]["spec"]
        assert "serviceAccountName" not in spec
        used = {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume}
        assert not used & later


def test_the_service_selects_the_workers_and_not_the_init_job(render: Render) -> None:
    objects = render()
    selector = kind(objects, "Service")["spec"]["selector"].items()
    worker = kind(objects, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    job = kind(objects, "Job")["spec"]["template"]["metadata"]["labels"].items()
    assert selector <= worker
    assert not selector <= job


def test_each_agent_has_a_trigger_on_its_own_consumer(render: Render) -> None:
    spec = kind(render("keda"), "ScaledObject")["spec"]
    assert spec["scaleTargetRef"]["name"] == "hay-hayrunner"
    consumers = [trigger["metadata"]["consumer"] for trigger in spec["triggers"]]
    assert consumers == [
        subjects.consumer_name("staging", agent) for agent in ("support", "order-status", "n")
    ]
    for trigger in spec["triggers"]:
        assert all(isinstance(value, str) for value in trigger["metadata"].values())
        assert trigger["metadata"]["stream"] == "AGENT_REQUESTS"
        assert trigger["metadata"]["account"] == "no"
        assert trigger["metadata"]["lagThreshold"] == "12"
        assert trigger["metricType"] == "AverageValue"
    assert spec["fallback"] == {"failureThreshold": 3, "replicas": 2}


def test_backlogs_of_several_agents_add_up(render: Render) -> None:
    spec = kind(render("keda"), "ScaledObject")["spec"]
    modifiers = spec["advanced"]["scalingModifiers"]
    assert modifiers["formula"] == " + ".join(trigger["name"] for trigger in spec["triggers"])
    assert modifiers["target"] == "12"
    assert "scalingModifiers" not in kind(render("full"), "ScaledObject")["spec"]["advanced"]


def test_the_monitoring_address_can_be_resolved_from_another_namespace(render: Render) -> None:
    (trigger,) = kind(render(None, "keda.enabled=true"), "ScaledObject")["spec"]["triggers"]
    endpoint = trigger["metadata"]["natsServerMonitoringEndpoint"]
    assert endpoint == "nats-headless.agents.svc:8222"
    assert trigger["metadata"]["account"] == "$G"


def test_secrets_are_referred_to_and_never_copied(render: Render) -> None:
    objects = render("secrets")
    for pod in pods(objects):
        env = environment(pod)
        for name in ("HAYRUNNER_NATS_TOKEN", "HAYRUNNER_NATS_USER", "HAYRUNNER_NATS_PASSWORD"):
            assert env[name]["valueFrom"]["secretKeyRef"]["name"] == "nats-login"
        files = dict(secret_files(pod))
        assert {
            name: files[env[name]["value"]]
            for name in env
            if "CREDENTIALS" in name or "TLS" in name
        } == {
            "HAYRUNNER_NATS_CREDENTIALS": ("nats-worker", "worker.creds"),
            "HAYRUNNER_NATS_TLS_CA": ("nats-tls", "ca.crt"),
            "HAYRUNNER_NATS_TLS_CERT": ("nats-tls", "tls.crt"),
            "HAYRUNNER_NATS_TLS_KEY": ("nats-tls", "client.key"),
        }
    worker = environment(kind(objects, "Deployment")["spec"]["template"])
    assert worker["OPENAI_API_KEY"]["valueFrom"]["secretKeyRef"] == {
        "name": "model-provider",
        "key": "key",
    }
    assert "OPENAI_API_KEY" not in environment(kind(objects, "Job")["spec"]["template"])


def test_files_of_agents_arrive_as_written_and_a_change_rolls_the_workers(render: Render) -> None:
    objects = render("full")
    files = kind(objects, "ConfigMap")
    assert files["data"]["support.py"].startswith("from hayrunner import Agent\n\n\nclass")
    assert "{{ a template's }}" in files["data"]["support.py"]
    assert files["data"]["notes.yaml"] == "on: yes"
    pod = kind(objects, "Deployment")["spec"]["template"]
    (volume,) = (v for v in pod["spec"]["volumes"] if "configMap" in v)
    assert volume["configMap"]["name"] == files["metadata"]["name"]
    changed = kind(render("full", "agents.files.notes\\.yaml=else"), "Deployment")
    before = pod["metadata"]["annotations"]["checksum/agents"]
    assert changed["spec"]["template"]["metadata"]["annotations"]["checksum/agents"] != before


def test_a_long_release_name_still_gives_valid_names(render: Render) -> None:
    objects = render(
        None, "keda.enabled=true", "agents.files.a\\.py=x", release="r" * 25 + "-" + "s" * 27
    )
    names = [(manifest["kind"], manifest["metadata"]["name"]) for manifest in objects]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 and not name.endswith("-") for _, name in names)
