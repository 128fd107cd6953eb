"""`model: "auto"` and `/v1/route`: which adapters are mixed for a prompt, and what answers where none can be."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from registry.adapters import create, paper_config
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.select.pools import FitTarget, enqueue_fit
from registry.select.select import PromptSelection
from registry.spec import PoolSpec, PosteriorSpec
from tests.service.answers import answered, refusal
from tests.service.http.stock import fit_selector, push_embedded
from tests.service.servers import BASE_ID, World

SAMPLES = {
    "law": [f"The court held that contract number {number} was void and struck it out." for number in range(30)],
    "food": [f"Heat the oil, add {number} onions, and stir until they are golden brown." for number in range(30)],
}
REQUEST = {"model": "auto", "max_tokens": 2, "temperature": 0}
TEMPLATES = {BASE_ID: "{% for m in messages %}{{ m['content'] }}{% endfor %}"}


def key_of(world: World, namespace: str) -> dict[str, str]:
    return world.headers(world.key(["read", "write", "infer"], [namespace]))


@pytest.fixture(scope="module")
def fitted(world: World) -> World:
    for namespace, swap in (("acme", False), ("other", True)):
        for seed, (name, texts) in enumerate(SAMPLES.items()):
            label = name if not swap else f"{name}-of-others"
            push_embedded(world, f"{namespace}/{label}", texts, seed=seed, domain=label)
    fit_selector(world)
    return world


def ask(world: World, prompt: Any, namespace: str = "acme", **fields: Any) -> Any:
    return world.client.post(
        "/v1/completions", json={**REQUEST, "prompt": prompt, **fields}, headers=key_of(world, namespace)
    )


def refs(model: str) -> list[str]:
    """The adapters of a mixture's name, best first."""
    return [item.partition("*")[0] for item in model.split("+")]


@pytest.mark.parametrize("name", list(SAMPLES))
def test_a_prompt_is_answered_by_the_mixture_that_it_is_most_like(fitted: World, name: str) -> None:
    answer = ask(fitted, SAMPLES[name][7])
    model = answer.headers["x-soup-model"]
    assert answered(answer)["model"] == model
    assert refs(model)[0] == f"acme/{name}@1"
    assert set(refs(model)) <= {"acme/law@1", "acme/food@1"}, "no other namespace's"
    named = ask(fitted, SAMPLES[name][7], model=model)
    assert answer.json()["choices"] == named.json()["choices"]
    assert answer.headers["x-soup-digest"] == named.headers["x-soup-digest"]
    assert "x-soup-model" not in named.headers


def test_a_route_is_the_choice_without_an_answer(fitted: World) -> None:
    prompt = SAMPLES["law"][7]
    headers = key_of(fitted, "acme")
    chosen = fitted.client.post("/v1/route", json={"texts": [prompt]}, headers=headers).json()
    assert chosen["mixture"] == ask(fitted, prompt).headers["x-soup-model"]
    assert [adapter["ref"] for adapter in chosen["adapters"]] == refs(chosen["mixture"])
    assert chosen["model"] == "acme/law@1"
    assert 0 <= chosen["novelty"] <= 100
    answer = fitted.client.post("/v1/route", json={"texts": [" "]}, headers=headers)
    assert "chosen by the text of the prompt" in refusal(answer, 400)
    for base_model, base_id in (("", ""), ("base/nothing", "nothing")):
        answer = fitted.client.post("/v1/route", json={"texts": [prompt], "base_model": base_model}, headers=headers)
        assert f"no base model '{base_id}'" in refusal(answer, 404)
        assert answer.json()["error"]["param"] == "base_model"


@pytest.mark.parametrize(("share", "model"), [(0.4953, f"base/{BASE_ID}"), (0.5, "acme/law@1")])
def test_a_route_is_an_adapter_with_half_of_the_posterior_before_it_is_rounded(
    fitted: World, monkeypatch: pytest.MonkeyPatch, share: float, model: str
) -> None:
    selection = PromptSelection({"acme/law@1": share, "acme/food@1": 0.4}, novelty=50.0)
    monkeypatch.setattr("service.http.models.auto_model.select_for_prompt", lambda *_, **__: selection)
    answer = fitted.client.post("/v1/route", json={"texts": ["x"]}, headers=key_of(fitted, "acme"))
    assert (answered(answer)["model"], answer.json()["adapters"][0]["weight"]) == (model, 0.5)


def test_adapters_that_cannot_be_mixed_leave_the_best_one(fitted: World) -> None:
    config = paper_config("parallel", bottleneck=4)
    weights = save_tensors(create(config, shape_of(fitted.runtime.bases[BASE_ID].entry), seed=9).state_dict())
    files = {"adapter_model.safetensors": {"base64": base64.b64encode(weights).decode()}}
    push_embedded(fitted, "mixed/law", SAMPLES["law"], seed=3, domain="law")
    push_embedded(fitted, "mixed/food", SAMPLES["food"], domain="food", config=config.model_dump(), files=files)
    fit_selector(fitted, namespace="mixed")
    prompts = [SAMPLES["law"][7], SAMPLES["food"][7]]
    route = fitted.client.post("/v1/route", json={"texts": prompts}, headers=key_of(fitted, "mixed")).json()
    best, _second = (adapter["ref"] for adapter in route["adapters"])
    assert route["mixture"] == best
    assert ask(fitted, prompts, "mixed").headers["x-soup-model"] == best


def test_a_stream_says_it_too(fitted: World) -> None:
    answer = ask(fitted, SAMPLES["law"][3], stream=True)
    model = answer.headers["x-soup-model"]
    assert refs(model)[0] == "acme/law@1"
    assert f'"model": "{model}"' in answer.text


def test_of_a_conversation_what_the_user_said_decides(fitted: World) -> None:
    messages = [
        {"role": "system", "content": "oil"},
        {"role": "user", "content": SAMPLES["law"][7]},
    ]
    answer = fitted.client.post(
        "/v1/chat/completions", json={**REQUEST, "messages": messages}, headers=key_of(fitted, "acme")
    )
    assert refs(answered(answer)["model"])[0] == "acme/law@1"


def test_a_retired_adapter_is_not_chosen_and_the_base_model_answers_for_the_last(fitted: World) -> None:
    prompt = SAMPLES["food"][7]
    fitted.client.delete("/v1/adapters/acme/food@1")
    assert ask(fitted, prompt).headers["x-soup-model"] == "acme/law@1"
    fitted.client.delete("/v1/adapters/acme/law@1")
    assert ask(fitted, prompt).headers["x-soup-model"] == f"base/{BASE_ID}"
    for name in SAMPLES:
        fitted.client.post(f"/v1/adapters/acme/{name}@1/restore")
    assert refs(ask(fitted, prompt).headers["x-soup-model"])[0] == "acme/food@1"


@pytest.mark.parametrize("prompt", [[1, 2, 3], "  "])
def test_without_text_nothing_can_be_chosen(fitted: World, prompt: Any) -> None:
    assert "chosen by the text of the prompt" in refusal(ask(fitted, prompt), 400)


def test_nothing_is_chosen_for_a_key_beyond_its_rate_limit(fitted: World) -> None:
    key = fitted.client.post("/v1/keys", json={"name": "k", "namespaces": ["acme"], "scopes": ["infer"]}).json()
    fitted.client.patch(f"/v1/keys/{key['id']}/limits", json={"requests_per_minute": 1})
    answer, refused = (
        fitted.client.post("/v1/completions", json={**REQUEST, "prompt": prompt}, headers=fitted.headers(key["secret"]))
        for prompt in (SAMPLES["law"][7], "  ")  # a choice would refuse the second
    )
    assert refs(answered(answer)["model"])[0] == "acme/law@1"
    assert "1 requests a minute; 0 are left" in refusal(refused, 429)
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


def test_where_nothing_was_fitted_it_says_what_to_do(fitted: World) -> None:
    answer = ask(fitted, "x", "other")
    assert "run `soup fit` once" in refusal(answer, 503)
    assert "retry-after" not in answer.headers
    pool = PoolSpec(base_fingerprint=fitted.runtime.bases[BASE_ID].shape.fingerprint, namespaces=("other",))
    target = FitTarget(BASE_ID, pool, PosteriorSpec())
    with fitted.registry.database.write() as catalogue:
        job = enqueue_fit(catalogue, target, namespace="other", created_by="key-1", delay=3600)
    answer = ask(fitted, "x", "other")
    assert "one is being fitted" in refusal(answer, 503)
    assert answer.headers["retry-after"] == "2"
    fitted.client.post(f"/v1/jobs/{job.id}/cancel")


def test_adapters_are_chosen_by_it_or_named(fitted: World) -> None:
    answer = ask(fitted, "x", adapters=[{"ref": "acme/law", "weight": 1}])
    assert "'adapters' cannot be combined" in refusal(answer, 400)


@pytest.mark.parametrize(("path", "body"), [("/v1/perplexity", {"texts": ["x"]}), ("/v1/embeddings", {"input": "x"})])
def test_other_calls_name_a_model(fitted: World, path: str, body: dict[str, Any]) -> None:
    assert fitted.client.post(path, json={"model": "auto", **body}).status_code == 404
