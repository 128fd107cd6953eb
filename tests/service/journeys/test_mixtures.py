"""Several adapters in one request: the soup of that recipe by hand, with nothing stored."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from registry.cook import mix
from service.access.keys import Principal
from service.http.models.metering import split
from service.http.models.mixture_names import mixture_name, parse_mixture
from service.http.models.named_models import resolve_model
from service.http.schemas.wire import MixedAdapter
from service.mixtures import UNLOADED_MIXTURES, Mixtures
from tests.service.answers import refusal
from tests.service.servers import BASE_ID, DECLARED, World

ADAPTERS = [{"ref": "acme/law", "weight": 0.7}, {"ref": "other/style", "weight": 0.5}]
NAME = "acme/law*0.7+other/style*0.5"
ADMIN = Principal("key-admin", None, frozenset({"admin"}))
ASKED = {"model": BASE_ID, "prompt": "0 1", "max_tokens": 8, "temperature": 0, "logprobs": 0}


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    for seed, name in enumerate(("acme/law", "other/style", "acme/plain")):
        world.push(name, seed=seed, provenance=DECLARED)
    return world


def complete(world: World, **changes: Any) -> Any:
    return world.client.post("/v1/completions", json={**ASKED, **changes})


def test_a_mixture_is_the_soup_of_its_recipe_with_nothing_stored(stocked: World) -> None:
    rows = len(stocked.client.get("/v1/adapters").json()["data"])
    mixed, named = complete(stocked, adapters=ADAPTERS), complete(stocked, model=NAME)
    assert len(stocked.client.get("/v1/adapters").json()["data"]) == rows
    soup = stocked.client.post("/v1/soups", json={"recipe": {"ingredients": ADAPTERS}, "name": "acme/soup", "wait": 60})
    stored = complete(stocked, model="acme/soup")
    for answer in (mixed, named):
        assert answer.headers["x-soup-digest"] == soup.json()["digest"] == stored.headers["x-soup-digest"]
        assert (answer.json()["choices"], answer.json()["model"]) == (stored.json()["choices"], NAME)
    assert mixed.json()["choices"] != complete(stocked).json()["choices"], "the base alone says something else"


def test_perplexity_takes_mixtures_too(stocked: World) -> None:
    texts = ["THE COURT HELD", "heat the oil"]
    answers = [
        stocked.client.post("/v1/perplexity", json={"texts": texts, **model}).json()
        for model in ({"model": BASE_ID, "adapters": ADAPTERS}, {"model": NAME, "baseline": BASE_ID})
    ]
    assert answers[0]["mean_nll"] == answers[1]["mean_nll"] != answers[1]["baseline"]["mean_nll"]


def test_one_adapter_is_that_adapter_under_its_own_name(stocked: World) -> None:
    stocked.push("zzz/copy", seed=0, provenance=DECLARED)
    row = stocked.client.get("/v1/adapters/acme/law").json()
    assert complete(stocked, model="acme/law*3").headers["x-soup-digest"] == row["digest"]
    resolved = resolve_model(stocked.runtime.services, ADMIN, "acme/law*3")
    assert [adapter.ref for adapter, _ in resolved.rows] == ["acme/law@1"]


@given(st.lists(st.tuples(st.sampled_from(["acme/law", "a/b@prod"]), st.floats(0, 1000)), min_size=1, max_size=5))
def test_a_mixtures_name_is_read_as_it_was_written(adapters: list[tuple[str, float]]) -> None:
    mixed = [MixedAdapter(ref=ref, weight=weight) for ref, weight in adapters]
    assert [(item.ref, item.weight) for item in parse_mixture(mixture_name(mixed))] == [
        (ref, pytest.approx(weight, abs=1e-9)) for ref, weight in adapters
    ]


def test_a_mixture_that_was_evicted_is_mixed_again(stocked: World) -> None:
    planned = resolve_model(stocked.runtime.services, ADMIN, NAME).planned
    adapter = Mixtures().adapter(planned)
    first, second = adapter.load(), adapter.load()
    assert first is not second
    assert planned.digest_of(first) == planned.digest_of(second) == adapter.digest


def test_nothing_is_mixed_for_who_only_reads_or_is_beyond_a_limit(
    stocked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mix.PlannedRecipe, "mix_tensors", Mock(side_effect=AssertionError("it is mixed")))
    name = "acme/law*4+acme/plain*5"
    assert stocked.client.get("/compare.json", params={"model": [BASE_ID, name]}).status_code == 200
    limited = stocked.client.post("/v1/keys", json={"name": "slow", "scopes": ["infer"], "namespaces": ["acme"]}).json()
    assert stocked.client.patch(f"/v1/keys/{limited['id']}/limits", json={"tokens_per_minute": 1}).status_code == 200
    headers = stocked.headers(limited["secret"])
    assert stocked.client.post("/v1/completions", json={**ASKED, "model": name}, headers=headers).status_code in (
        413,
        429,
    )


def test_a_mixture_is_mixed_once_however_many_ask_for_it(stocked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = resolve_model(stocked.runtime.services, ADMIN, "acme/law*1+acme/plain*3").planned
    reordered = resolve_model(stocked.runtime.services, ADMIN, "acme/plain*3+acme/law").planned
    mixtures, all_ask, count = Mixtures(), threading.Barrier(4), []
    real = mix.PlannedRecipe.mix_tensors

    def counted(planned: mix.PlannedRecipe) -> Any:
        count.append(planned)
        all_ask.wait(60)
        return real(planned)

    def ask_meanwhile() -> Any:
        all_ask.wait(60)
        return mixtures.adapter(planned)

    monkeypatch.setattr(mix.PlannedRecipe, "mix_tensors", counted)
    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(mixtures.adapter, planned), *(pool.submit(ask_meanwhile) for _ in range(3))]
    adapters = [future.result() for future in asking]
    assert mixtures.adapter(reordered) == adapters[0]
    assert [adapter.digest for adapter in adapters] == [adapters[0].digest] * 4
    assert len(count) == 1


def test_mixtures_of_refused_requests_do_not_stay_in_memory(stocked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    mixed: list[weakref.ref[Tensor]] = []
    real = mix.PlannedRecipe.mix_tensors

    def watched(planned: mix.PlannedRecipe) -> Any:
        tensors = real(planned)
        mixed.append(weakref.ref(next(iter(tensors.values()))))
        return tensors

    monkeypatch.setattr(mix.PlannedRecipe, "mix_tensors", watched)
    for number in range(3 * UNLOADED_MIXTURES):
        model = f"acme/law*{number + 1}+acme/plain*100"
        assert "max_tokens" in refusal(complete(stocked, model=model, max_tokens=100_000))
    gc.collect()
    assert len(mixed) == 3 * UNLOADED_MIXTURES
    assert sum(tensor() is not None for tensor in mixed) <= UNLOADED_MIXTURES


def test_a_mixture_whose_tensors_were_dropped_before_its_first_load_is_mixed_again(stocked: World) -> None:
    mixtures = Mixtures()
    plans = [
        resolve_model(stocked.runtime.services, ADMIN, f"acme/law*{number + 1}+acme/plain*200").planned
        for number in range(UNLOADED_MIXTURES + 1)
    ]
    adapters = [(plan, mixtures.adapter(plan)) for plan in plans if plan is not None]
    assert [plan.digest_of(adapter.load()) for plan, adapter in adapters] == [a.digest for _, a in adapters]


def test_one_that_cannot_be_mixed_is_tried_again_the_next_time(stocked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "acme/law*2+acme/plain*5"

    with monkeypatch.context() as patch:
        patch.setattr(mix.PlannedRecipe, "mix_tensors", Mock(side_effect=MemoryError))
        assert complete(stocked, model=name).status_code >= 500
    assert complete(stocked, model=name).status_code == 200


def test_usage_is_counted_for_each_adapter_in_the_proportions_of_their_weights(stocked: World) -> None:
    key = stocked.key(["infer"], ["acme", "other"])
    body = {**ASKED, "model": NAME, "prompt": "0 1 2 3 10 21 32 43"}
    answer = stocked.client.post("/v1/completions", json=body, headers=stocked.headers(key)).json()
    stocked.runtime.services.usage.write()
    rows = stocked.client.get("/v1/usage", params={"by": "model"}, headers=stocked.headers(key)).json()["data"]
    used = {row["model"]: row for row in rows}
    assert used.keys() == {"acme/law@1", "other/style@1"}
    for tokens, total in (("tokens_in", "prompt_tokens"), ("tokens_out", "completion_tokens")):
        law, style = (used[name][tokens] for name in ("acme/law@1", "other/style@1"))
        assert law + style == answer["usage"][total]
        assert law == pytest.approx(answer["usage"][total] * 7 / 12, abs=1)
    assert [used[name]["requests"] for name in ("acme/law@1", "other/style@1")] == [1, 0]


@pytest.mark.parametrize(("total", "shares"), [(10, [0.5, 0.5]), (7, [0.583, 0.417]), (1, [0.4, 0.3, 0.3]), (0, [1.0])])
def test_parts_of_a_number_sum_to_it(total: int, shares: list[float]) -> None:
    portions = split(total, shares)
    assert sum(portions) == total
    assert all(abs(portion - total * share) <= 1 for portion, share in zip(portions, shares, strict=True))


def test_rights_are_those_of_each_ingredient(stocked: World) -> None:
    headers = stocked.headers(stocked.key(["infer"], ["acme"]))
    for model in ({"model": NAME}, {"model": BASE_ID, "adapters": ADAPTERS}):
        answer = stocked.client.post("/v1/completions", json={**ASKED, **model}, headers=headers)
        assert "other/style" in refusal(answer, 404)


@pytest.mark.parametrize(
    ("changes", "status", "sentence"),
    [
        *(
            ({"model": f"acme/law*{weight}+other/style"}, 400, "weights from 0 to 1000")
            for weight in ("x", "nan", "-1", "inf", "")
        ),
        ({"model": "acme/law*0+other/style*0"}, 400, "Every weight of the recipe is 0"),
        ({"model": "+".join(["acme/law"] * 65)}, 400, "65 adapters; at most 64"),
        ({"model": "acme/law+" * 1111 + "acme/law"}, 400, "2000 characters"),
        ({"model": "acme/law+" + "a" * 201}, 400, "not valid"),
        ({"model": "acme/law+"}, 400, "not valid"),
        ({"adapters": [{**ADAPTERS[0], "layers": {"x": 1}}, ADAPTERS[1]]}, 400, "layers"),
        ({"adapters": ADAPTERS[:1] * 65}, 400, "at most 64"),
        ({"model": "acme/law", "adapters": ADAPTERS}, 400, "set 'model' to it"),
        ({"model": "acme/law+acme/nowhere"}, 404, "acme/nowhere"),
    ],
)
def test_what_cannot_be_mixed_is_refused_in_a_sentence(
    stocked: World, changes: dict[str, Any], status: int, sentence: str
) -> None:
    assert sentence in refusal(complete(stocked, **changes), status)


def test_a_mixture_with_an_adapter_that_was_retired_is_gone(stocked: World) -> None:
    stocked.client.delete("/v1/adapters/acme/plain@1")
    assert "acme/plain" in refusal(complete(stocked, model="acme/law+acme/plain"), 410)


def test_embeddings_of_a_mixture_are_those_of_its_soup(stocked: World) -> None:
    body = {"recipe": {"ingredients": ADAPTERS}, "name": "acme/embeds", "wait": 60}
    digest = stocked.client.post("/v1/soups", json=body).json()["digest"]
    vectors = {}
    for model, more in (("acme/embeds", {}), (NAME, {}), (BASE_ID, {"adapters": ADAPTERS}), (f"base/{BASE_ID}", {})):
        answer = stocked.client.post("/v1/embeddings", json={"model": model, "input": "heat the oil", **more})
        assert answer.status_code == 200, answer.text
        vectors[model] = answer.json()["data"][0]["embedding"]
        assert (answer.headers["x-soup-digest"] == digest) == (model != f"base/{BASE_ID}")
    assert vectors["acme/embeds"] == vectors[NAME] == vectors[BASE_ID] != vectors[f"base/{BASE_ID}"]
