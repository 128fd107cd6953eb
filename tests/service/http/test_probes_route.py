"""Probes over HTTP: taken when they are asked for, shown to who may read the adapter, gone with it."""

from __future__ import annotations

import base64
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import update

from adaptersoup.client.openai_server import OpenAIServer
from registry.adapters.weights import load_tensors, save_tensors, scale_output
from registry.catalogue.tables import adapters
from registry.errors import Busy
from registry.probes.scale_fit import SCALES
from registry.spec import PROBE_TEXTS
from tests.adaptersoup.cli.outcome import done, refused
from tests.service.answers import answered, refusal
from tests.service.http.stock import push_embedded
from tests.service.servers import BASE_ID, CONFIG, Live, Soup, World, adapter_weights

LAW, TAX = 11, 12
"""Seeds of two adapters."""


@pytest.fixture(scope="module", autouse=True)
def _pushed(world: World) -> None:
    world.push("team/law", seed=LAW)
    world.push("secret/tax", seed=TAX)


def push_scaled(world: World, name: str, scale: float) -> dict[str, Any]:
    """Push the adapter of LAW with its output scaled."""
    tensors = scale_output(load_tensors(adapter_weights(world.runtime, seed=LAW)), CONFIG, scale)
    data = base64.b64encode(save_tensors(tensors)).decode()
    return world.push(name, files={"adapter_model.safetensors": {"base64": data}})


def probe(world: World, ref: str = "team/law", **headers: str) -> Any:
    return world.client.get(f"/v1/adapters/{ref}/probe", headers=headers)


def diagnosis(live: Live, model: str, *, key: str | None = None, base: bool = True) -> dict[str, Any]:
    """The diagnosis of a model of the live server as team/law."""
    server, texts = OpenAIServer(live.url, live.world.admin), probe(live.world).json()["texts"]
    body = {
        "model": server.next_tokens(model, texts),
        "base": server.next_tokens(BASE_ID, texts) if base else None,
    }
    headers = live.world.headers(key or live.world.admin)
    return dict(answered(live.world.client.post("/v1/adapters/team/law/probe", json=body, headers=headers)))


def test_a_diagnosis_that_needs_other_scales_adds_them_to_the_probe(live: Live) -> None:
    digest = probe(live.world).json()["digest"]

    def scales() -> tuple[float, ...]:
        with live.world.runtime.database.read() as catalogue:
            return catalogue.probes.adapter(digest).scales

    assert diagnosis(live, "team/law")["verdict"] == "same"
    assert scales() == ()
    diagnosis(live, "secret/tax")
    assert scales() == SCALES


def test_a_probe_of_a_base_model_that_was_replaced_is_not_taken(world: World) -> None:
    world.push("team/stale", seed=51)
    with world.runtime.database.engine.begin() as connection:
        replaced = update(adapters).where(adapters.c.name == "stale")
        connection.execute(replaced.values(base_fingerprint=f"sha256:{9:064x}"))
    assert "another state of base model" in refusal(probe(world, "team/stale"), 422)
    assert world.client.delete("/v1/adapters/team/stale@1").status_code == 200  # later tests check every adapter


def test_a_probe_has_the_readings_of_the_adapter_and_its_base(world: World) -> None:
    body = probe(world).json()
    assert (body["adapter"], body["base_model"]) == ("team/law@1", BASE_ID)
    assert len(body["texts"]) == len(body["base"]) == len(body["readings"]) == PROBE_TEXTS
    assert body["texts"] == probe(world, "secret/tax").json()["texts"]
    assert body["base"] == probe(world, "secret/tax").json()["base"] != body["readings"]


def test_models_of_a_server_are_named_for_what_they_are(live: Live) -> None:
    push_scaled(live.world, "faults/twice", 2.0)
    assert diagnosis(live, "team/law")["verdict"] == diagnosis(live, "team/law", base=False)["verdict"] == "same"
    assert diagnosis(live, BASE_ID)["verdict"] == "base_only"
    twice = diagnosis(live, "faults/twice", key=live.world.key(["infer"], ["team"]))
    assert (twice["verdict"], twice["factor"]) == ("wrong_scale", 2.0)


def test_another_adapter_is_named_to_who_may_read_it_alone(live: Live) -> None:
    assert probe(live.world, "secret/tax").status_code == 200
    assert diagnosis(live, "secret/tax")["served"] == "secret/tax@1"
    foreign = diagnosis(live, "secret/tax", key=live.world.key(["infer"], ["team"]))
    assert (foreign["verdict"], foreign["served"]) == ("broken", None)


@pytest.mark.parametrize(
    "model",
    [
        *([], 7, [{"a": -1.0}], [{"a": -1.0}] * (PROBE_TEXTS + 1)),
        *([tokens] * PROBE_TEXTS for tokens in ({}, {"a": 1.0}, {"a": "x"}, {"\x00": -1.0})),
        [{str(number): -1.0 for number in range(100)}] * PROBE_TEXTS,
    ],
)
def test_bad_readings_are_refused(world: World, model: object) -> None:
    assert world.client.post("/v1/adapters/team/law/probe", json={"model": model}).status_code in (400, 422)


def test_an_adapter_without_an_effect_is_warned_about_at_each_push(world: World) -> None:
    for _ in range(2):
        (warning,) = push_scaled(world, "team/nothing", 0.0)["warnings"]
        assert "has no effect" in warning


def test_a_busy_engine_is_asked_again_and_no_push_waits_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(
            world.runtime.services.engine, "submit_all", Mock(side_effect=Busy("The queue is full.", retry_after=1))
        )
        assert world.push("team/late", seed=21)["warnings"] == []
        assert probe(world, "team/late").status_code == 429
    assert probe(world, "team/late").status_code == 200


def test_a_probe_is_taken_when_the_sample_is_embedded(world: World) -> None:
    complete = {"model": BASE_ID, "prompt": "a", "max_tokens": 1}
    assert world.client.post("/v1/completions", json=complete).status_code == 200  # the base model is in memory
    digest = push_embedded(world, "team/sampled", [f"passage number {number}" for number in range(20)], seed=61)[
        "digest"
    ]
    with world.runtime.database.read() as catalogue:
        assert catalogue.probes.adapter(digest) is not None


def test_an_older_version_is_named_though_nobody_asked_for_its_probe(live: Live) -> None:
    live.world.push("team/law", seed=71)
    assert diagnosis(live, "team/law@1")["served"] == "team/law@1"
    live.world.client.post("/v1/adapters/team/law@2/purge")


def test_a_probe_goes_with_the_last_version_of_its_adapter(world: World) -> None:
    for name in ("team/first", "team/second"):
        world.push(name, seed=31)
    digest = probe(world, "team/first").json()["digest"]
    for name, remains in (("first", True), ("second", False)):
        assert world.client.post(f"/v1/adapters/team/{name}@1/purge").status_code == 200
        with world.runtime.database.read() as catalogue:
            assert (catalogue.probes.adapter(digest) is not None) is remains


def test_the_command_says_what_a_server_serves(live: Live, command: Soup) -> None:
    live.world.push("team/law", seed=LAW)
    options = ("--registry", live.url, "--key", live.world.admin, "--server-key", live.world.admin)
    v1 = f"{live.url}/v1"
    assert "with status 404" in refused(command("doctor", "--url", v1, "--model", "x=team/law", *options))
    assert "team/law@1  same" in done(command("doctor", "--url", live.url, "--model", "team/law", *options))[0]
    code, out, _ = command("doctor", "--url", live.url, "--model", f"{BASE_ID}=team/law", *options)
    assert (code, "base only" in out) == (3, True)
    models = [flag for name in ("team/law", BASE_ID) for flag in ("--model", f"{name}=team/law")]
    typo = refused(command("doctor", "--url", live.url, *models, "--base-model", "typo", *options))
    assert typo.count("'typo'") == 2


def test_the_command_checks_every_listed_adapter_and_sends_no_key_of_the_registry(
    live: Live, command: Soup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOUP_KEY", live.world.admin)
    options = ("--registry", live.url, "--url", live.url)
    code, _, err = command("doctor", *options)
    assert (code, "with status 401" in err) == (1, True)
    key = live.world.key(["read", "infer"], ["team"])
    out, _ = done(command("doctor", *options, "--server-key", key, "--json"))
    assert '"model": "team/law"' in out
    assert "secret" not in out


def test_a_run_that_checks_nothing_fails(live: Live, command: Soup) -> None:
    nobody = live.world.key(["infer"], ["nobody"])
    addresses = ("--registry", live.url, "--url", live.url)
    outcome = command("doctor", *addresses, "--key", nobody, "--server-key", live.world.admin)
    assert "use --model" in refused(outcome)
