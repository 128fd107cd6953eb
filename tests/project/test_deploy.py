"""Alerts, dashboard and unit of `deploy/`: every metric they name is one that a server has, and the files are read."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from service.settings import Settings
from service.settings.limits import MIB
from tests.service.proxies import INFERENCE
from tests.service.servers import BASE_ID, World, open_world, write_bases

DEPLOY = Path("deploy")
NAME = re.compile(r"\b(?:soup|process)_[a-z_]+")
SELECTOR = re.compile(r"\b((?:soup|process)_[a-z_]+)\{([^}]*)\}")
BY_TRAFFIC = {"soup_http_requests_total"}
"""By status and route: the alerts on it are about rates, to which the first request is nothing."""


@pytest.fixture(scope="module")
def world(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("deploy")
    yield from open_world(folder / "data", write_bases(folder / "bases.toml", {BASE_ID: tiny_base_dir}))


@pytest.fixture(scope="module")
def labels_by_sample(world: World) -> dict[str, set[str]]:
    """Names of samples with their labels, of a server that has done a little of everything."""
    job = world.push("acme/one", sample={"texts": [f"passage {number} of a domain" for number in range(30)]})["job"]
    assert world.client.get(f"/v1/jobs/{job}/events").status_code == 200  # to its end
    world.client.get("/readyz")
    world.client.get("/v1/adapters/acme/none")
    world.client.post("/v1/completions", json={"model": "acme/one", "prompt": "a", "max_tokens": 2})
    key = world.client.post("/v1/keys", json={"name": "k", "scopes": ["infer"], "namespaces": ["acme"]}).json()
    world.client.patch(f"/v1/keys/{key['id']}/limits", json={"requests_per_minute": 1})
    for _ in range(2):
        world.client.post(
            "/v1/perplexity", json={"model": f"base/{BASE_ID}", "texts": ["a b"]}, headers=world.headers(key["secret"])
        )
    families = text_string_to_metric_families(world.client.get("/metrics").text)
    labels: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


def expressions() -> dict[str, str]:
    """The expressions of alerts and panels, by their names."""
    rules = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in json.loads((DEPLOY / "grafana" / "adaptersoup.json").read_text())["panels"]
        for target in panel["targets"]
    }
    return {rule["alert"]: rule["expr"] for rule in rules} | panels


def test_what_alerts_look_for_is_counted_from_the_start(world: World) -> None:
    """Prometheus sees no increase in what first appears at 1: the first damaged blob would alert nobody."""
    fresh = text_string_to_metric_families(world.app.state.metrics.render().decode())
    there = {(sample.name, tuple(sorted(sample.labels.items()))) for family in fresh for sample in family.samples}
    looked_for = {
        (name, label, value)
        for expression in expressions().values()
        for name, selector in SELECTOR.findall(expression)
        if name not in BY_TRAFFIC
        for label, value in re.findall(r'([a-z_]+)="([^"]*)"', selector)
    }
    assert ("soup_http_errors_total", "code", "damaged_blob") in looked_for
    for name, label, value in looked_for:
        assert any(sample_name == name and (label, value) in labels for sample_name, labels in there), (
            name,
            label,
            value,
        )


def test_a_server_that_nobody_probes_alerts_beside_one_that_is_probed(tiny_base_dir: Path, tmp_path: Path) -> None:
    counted = re.search(r"\((\w+) unless on \(instance, job\) (\w+)\)", expressions()["SoupNotProbed"])
    assert counted is not None
    for world in open_world(tmp_path / "data", write_bases(tmp_path / "bases.toml", {BASE_ID: tiny_base_dir})):
        unprobed = world.app.state.metrics.render().decode()
        assert world.client.get("/readyz").status_code == 200
        probed = world.app.state.metrics.render().decode()
        assert [[f"\n{name} " in text for name in counted.groups()] for text in (unprobed, probed)] == [
            [True, False],
            [True, True],
        ]


def test_alerts_and_dashboard_ask_for_what_there_is(labels_by_sample: dict[str, set[str]]) -> None:
    queries = expressions()
    assert len(queries) > 30
    for place, expression in queries.items():
        names = set(NAME.findall(expression))
        assert names or "up{" in expression, place
        assert names <= set(labels_by_sample), (place, names - set(labels_by_sample))
        labels = {label for name in names for label in labels_by_sample[name]} | {"instance", "job"}
        assert set(re.findall(r'([a-z_]+)\s*(?:=~|!=|=)\s*"', expression)) <= labels, place


def test_the_page_says_what_every_metric_of_ours_is(labels_by_sample: dict[str, set[str]]) -> None:
    page = Path("docs/how-to/watch-a-server.md").read_text()
    starts = [name.removesuffix("...") for name in re.findall(r"`((?:soup|process)_[a-z_.]+)`", page)]
    for name in (sample for sample in labels_by_sample if not sample.endswith("_created")):  # when a counter began
        assert any(name.startswith(start) for start in starts), name
    for alert in (name for name in expressions() if name.startswith("Soup")):
        assert f"`{alert}`" in page


def test_the_environment_file_names_settings(tmp_path: Path) -> None:
    lines = (DEPLOY / "systemd" / "environment.example").read_text().splitlines()
    names = [line.lstrip("# ").partition("=")[0] for line in lines if re.match(r"(# )?SOUP_[A-Z_]+=", line)]
    assert names
    assert {name.removeprefix("SOUP_").lower() for name in names} <= set(Settings.model_fields)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "adaptersoup.service").read_text()
    unit = tmp_path / "adaptersoup.service"
    unit.write_text(text.replace("/opt/adaptersoup/bin/soup", shutil.which("true") or ""))  # it looks for the program
    completed = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    assert "adaptersoup.service" not in completed.stderr, completed.stderr


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")
def test_nginx_takes_its_file(tmp_path: Path) -> None:
    text = re.sub(r"ssl_certificate.*;| ssl http2", "", (DEPLOY / "nginx" / "adaptersoup.conf").read_text())
    file = tmp_path / "nginx.conf"
    file.write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{text}\n}}\n")
    command = ["nginx", "-t", "-p", str(tmp_path), "-e", str(tmp_path / "log"), "-c", str(file)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr


def test_nginx_buffers_at_most_the_largest_json_body() -> None:
    """It writes bodies of inference to its disk before any server has checked the key."""
    text = (DEPLOY / "nginx" / "several-servers.conf").read_text()
    for location in re.findall(r"location [^{]*\{([^}]*proxy_pass[^}]*)\}", text):
        limit = re.search(r"client_max_body_size (\d+)m;", location)
        buffers = "proxy_request_buffering off;" not in location
        assert (limit and int(limit[1]) * MIB) == (Settings.model_fields["max_json_bytes"].default if buffers else None)


def test_envoy_hashes_the_model_of_inference_and_sends_no_write_twice() -> None:
    """Envoy is not in Debian: where it is installed `tests/service/test_proxies.py` tries it."""
    listener = yaml.safe_load((DEPLOY / "envoy" / "adaptersoup.yaml").read_text())["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    metrics, by_model, inference, rest = manager["route_config"]["virtual_hosts"][0]["routes"]
    assert metrics["direct_response"] == {"status": 403}
    targets = ["/metrics", "/%6Detrics", "/%6d%65%74%72%69%63%73", "/metric", "/v1/metrics"]
    denied = [bool(re.fullmatch(metrics["match"]["safe_regex"]["regex"], target)) for target in targets]
    assert denied == [True, True, True, False, False]
    assert by_model["route"]["hash_policy"] == [{"header": {"header_name": "x-soup-model"}}]
    assert by_model["match"]["safe_regex"] == inference["match"]["safe_regex"]
    paths = {*INFERENCE, "/v1/models", "/v1/completions/more", "/v1/adapters"}
    assert {path for path in paths if re.fullmatch(inference["match"]["safe_regex"]["regex"], path)} == {*INFERENCE}
    assert "retry_policy" not in rest["route"]
