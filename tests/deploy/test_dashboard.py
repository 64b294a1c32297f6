"""The Grafana dashboard asks for nothing that a worker does not show."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hayrunner.telemetry.definitions import ALL
from hayrunner.telemetry.metrics import Metrics
from hayrunner.telemetry.model_meter import CallLabels

FILE = Path(__file__).parents[2] / "deploy/dashboards/hayrunner.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]

_SERIES = re.compile(r"\b((?:hayrunner|gen_ai_client)_[a-z0-9_]+)")
_SELECTED = re.compile(r"([a-z_]+)(?:=~|!~|!=|=)\"")
_GROUPED = re.compile(r"by \(([^)]*)\)")


def shown() -> dict[str, set[str]]:
    """The names of the series in a worker's exposition, and their labels."""
    metrics = Metrics(["support"])
    metrics.run_started("support", queue_wait_s=1)
    metrics.run_left("support", duration_s=1)
    metrics.run_ended("support", outcome="failed", error_code="internal")
    metrics.redelivered("support")
    metrics.dead_letter("support", "internal")
    call = CallLabels(agent="support", provider="openai", model="m")
    metrics.model_called(call, duration_s=1, first_chunk_s=1, error_code="internal")
    metrics.tokens_used(call, input_tokens=1, output_tokens=1)
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(metrics.exposition().decode())
        for sample in family.samples
    }


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_series_and_labels_that_there_are(query: str) -> None:
    labels_of = shown()
    [series] = _SERIES.findall(re.sub(r"by \([^)]*\)|\{[^}]*\}", "", query))
    assert series in labels_of

    used = set(_SELECTED.findall(query))
    for group in _GROUPED.findall(query):
        used |= {label.strip() for label in group.split(",")}
    assert used <= labels_of[series]
    assert query.count("(") == query.count(")")
    if series.endswith(("_total", "_bucket", "_sum", "_count")):
        # A counter as it is says how long the worker has been up.
        assert f"rate({series}" in query


def test_what_a_legend_shows_is_what_its_query_groups_by() -> None:
    for panel in PANELS:
        for target in panel.get("targets", []):
            named = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            grouped = {
                label.strip()
                for group in _GROUPED.findall(target["expr"])
                for label in group.split(",")
            }
            assert named == grouped - {"le"}, panel["title"]


def test_every_metric_of_a_worker_is_in_it() -> None:
    queries = " ".join(QUERIES)
    assert [d.name for d in ALL if d.prometheus_name not in queries] == []


def test_ids_are_unique_and_panels_do_not_lie_on_each_other() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        taken = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        assert place["x"] + place["w"] <= 24
        cells |= taken


def test_it_works_with_whatever_data_source_there_is() -> None:
    sources = [
        target["datasource"]["uid"] for panel in PANELS for target in panel.get("targets", [])
    ]
    assert {*sources} == {"${datasource}"}
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = {name for query in QUERIES for name in re.findall(r"\$(\w+)", query)}
    assert used - {"__rate_interval"} <= variables
