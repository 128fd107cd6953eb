"""`model: "auto"`: what is chosen for a prompt, who sees it, and that nothing is chosen where nobody asked for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.service.answers import refusal
from tests.service.http.stock import fit_selector, push_embedded
from tests.service.servers import BASE_ID, World, with_template

SETTINGS = {"auto_model": True}
SAMPLES = {
    "law": [f"The court held that contract number {number} was void and struck it out." for number in range(30)],
    "food": [f"Heat the oil, add {number} onions, and stir until they are golden brown." for number in range(30)],
}
ASKED = {"model": "auto", "max_tokens": 2, "temperature": 0}


TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {BASE_ID: with_template(tiny_base_dir, tmp_path_factory.mktemp("chat"), TEMPLATE)}


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


def ask(world: World, prompt: Any, **fields: Any) -> Any:
    return world.client.post(
        "/v1/completions", json={**ASKED, "prompt": prompt, **fields}, headers=key_of(world, "acme")
    )


@pytest.mark.parametrize("name", list(SAMPLES))
def test_a_prompt_goes_to_the_adapter_that_it_is_most_like(fitted: World, name: str) -> None:
    answer = ask(fitted, SAMPLES[name][7])
    assert answer.status_code == 200, answer.text
    assert (answer.json()["model"], answer.headers["x-soup-model"]) == (f"acme/{name}@1", f"acme/{name}@1")
    named = ask(fitted, SAMPLES[name][7], model=f"acme/{name}@1")
    assert answer.json()["choices"] == named.json()["choices"]
    assert answer.headers["x-soup-digest"] == named.headers["x-soup-digest"]
    assert "x-soup-model" not in named.headers


def test_what_is_like_none_of_them_goes_to_the_base(fitted: World) -> None:
    answer = ask(fitted, "0x7f 0x45 0x4c 0x46")
    assert answer.headers["x-soup-model"] == f"base/{BASE_ID}"
    assert answer.json()["model"] == f"base/{BASE_ID}"


def test_a_stream_says_it_too(fitted: World) -> None:
    answer = ask(fitted, SAMPLES["law"][3], stream=True)
    assert answer.headers["x-soup-model"] == "acme/law@1"
    assert '"model": "acme/law@1"' in answer.text


def test_of_a_conversation_what_the_user_said_decides(fitted: World) -> None:
    messages = [
        {"role": "system", "content": "oil"},
        {"role": "user", "content": SAMPLES["law"][7]},
    ]
    answer = fitted.client.post(
        "/v1/chat/completions", json={**ASKED, "messages": messages}, headers=key_of(fitted, "acme")
    )
    assert answer.status_code == 200, answer.text
    assert (answer.json()["model"], answer.headers["x-soup-model"]) == ("acme/law@1", "acme/law@1")


def test_a_retired_adapter_is_not_chosen(fitted: World) -> None:
    fitted.client.delete("/v1/adapters/acme/food@1")
    assert ask(fitted, SAMPLES["food"][7]).headers["x-soup-model"] != "acme/food@1"
    fitted.client.post("/v1/adapters/acme/food@1/restore")
    assert ask(fitted, SAMPLES["food"][7]).headers["x-soup-model"] == "acme/food@1"


@pytest.mark.parametrize("prompt", [[1, 2, 3], "  "])
def test_without_text_nothing_can_be_chosen(fitted: World, prompt: Any) -> None:
    assert "chooses by the text of the prompt" in refusal(ask(fitted, prompt), 400)


def test_where_nothing_was_fitted_it_says_what_to_do(fitted: World) -> None:
    answer = fitted.client.post("/v1/completions", json={**ASKED, "prompt": "x"}, headers=key_of(fitted, "other"))
    assert "ask /v1/select once" in refusal(answer, 503)


def test_other_calls_name_a_model(fitted: World) -> None:
    for path, body in (("/v1/perplexity", {"texts": ["x"]}), ("/v1/embeddings", {"input": "x"})):
        assert fitted.client.post(path, json={"model": "auto", **body}).status_code == 404, path
