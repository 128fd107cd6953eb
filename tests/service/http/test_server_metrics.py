"""Metrics of a whole server: the queue, ends of jobs, blobs, disk, keys; one that lacks leaves the others."""

from __future__ import annotations

import math
import re
import shutil
from unittest.mock import Mock

import pytest
from prometheus_client.parser import text_string_to_metric_families

from registry.errors import Unavailable
from tests.postgres import KINDS
from tests.service.cluster import until
from tests.service.servers import World

DATABASES = KINDS
pytestmark = pytest.mark.one_database  # journeys ask each kind what these do


def samples(world: World) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    text = world.client.get("/metrics").text
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(world: World, name: str, **labels: str) -> float | None:
    return samples(world).get((name, tuple(sorted(labels.items()))))


def test_a_job_is_counted_with_its_seconds(world: World) -> None:
    ended_before = value(world, "soup_jobs_ended_total", kind="embed", outcome="succeeded") or 0
    job = world.push("acme/one", sample={"texts": [f"passage {number} of a domain" for number in range(30)]})["job"]
    until(lambda: (value(world, "soup_jobs_ended_total", kind="embed", outcome="succeeded") or 0) > ended_before)
    assert world.client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"
    metrics = samples(world)
    kind = (("kind", "embed"),)
    assert metrics["soup_jobs_queued", kind] == metrics["soup_jobs_running", kind] == 0
    assert metrics["soup_jobs_oldest_queued_seconds", kind] == 0


def test_a_failure_is_counted_by_its_code(world: World) -> None:
    recipe = {"ingredients": [{"ref": "acme/nobody", "weight": 1.0}]}
    assert world.client.post("/v1/soups", json={"recipe": recipe, "wait": 60}).status_code == 404
    until(lambda: value(world, "soup_jobs_ended_total", kind="cook", outcome="failed") == 1)
    assert value(world, "soup_job_errors_total", code="not_found") == 1
    assert value(world, "soup_job_errors_total", code="damaged_blob") == 0


def test_errors_by_code_of_routes_gate_and_framework(world: World) -> None:
    def count(code: str) -> float:
        return value(world, "soup_http_errors_total", code=code) or 0

    codes = ("not_found", "unauthenticated", "invalid_parameter", "method_not_allowed", "damaged_blob")
    counts_before = {code: count(code) for code in codes}
    world.client.get("/v1/adapters/acme/none-of-this")
    world.client.get("/v1/adapters", headers={"authorization": "Bearer nothing"})
    world.client.post("/v1/perplexity", json={"model": 5})
    world.client.get("/v1/nothing-at-all")
    world.client.delete("/v1/perplexity")
    assert {code: count(code) - counts_before[code] for code in codes} == {
        "not_found": 2,
        "unauthenticated": 1,
        "invalid_parameter": 1,
        "method_not_allowed": 1,
        "damaged_blob": 0,
    }


def test_disk_blobs_keys_process_and_readiness_are_there(world: World) -> None:
    world.client.get("/readyz")
    metrics = samples(world)
    usage = shutil.disk_usage(world.runtime.settings.data)
    for name, labels, least, most in (
        ("soup_disk_bytes", (("folder", "data"),), usage.total, usage.total),
        ("soup_disk_free_bytes", (("folder", "blobs"),), 1, usage.total),
        ("soup_blobs", (), 0, math.inf),
        ("soup_keys", (("state", "active"),), 1, math.inf),
        ("soup_ready", (), 1, 1),
        ("soup_ready_age_seconds", (), 0, 60),
        ("process_resident_memory_bytes", (), 1, math.inf),
    ):
        assert least <= metrics[name, labels] <= most, name


@pytest.mark.parametrize("error", [OSError("no such folder"), ValueError("nobody thought of it")])
def test_a_part_that_cannot_be_found_out_leaves_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("service.http.metrics.shutil.disk_usage", Mock(side_effect=error))
    failures_before = value(world, "soup_metrics_failures_total", part="disk") or 0
    metrics = samples(world)
    assert metrics["soup_metrics_failures_total", (("part", "disk"),)] == failures_before + 1
    assert not [name for name, _ in metrics if name.startswith("soup_disk")]
    assert metrics["soup_keys", (("state", "active"),)] >= 1


def test_without_its_database_a_server_still_has_metrics(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world.registry.database, "read", Mock(side_effect=Unavailable("The database does not answer.")))
    world.app.state.metrics.render()
    text = world.app.state.metrics.render().decode()
    assert "soup_disk_bytes" in text
    assert "soup_keys{" not in text
    for part_name in ("jobs", "keys"):
        (count,) = re.findall(rf'soup_metrics_failures_total{{part="{part_name}"}} (\S+)', text)
        assert float(count) >= 1
