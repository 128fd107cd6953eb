"""The playground without scripts, the stream that its script reads, its sliders, and models that are compared."""

from __future__ import annotations

import csv
import json
import math
import re
from html import unescape
from unittest.mock import AsyncMock
from urllib.parse import parse_qs, urlsplit

import pytest

from registry.errors import Busy, Cancelled, Internal, SoupError
from service.http.pages.playground import SLIDERS, Playground
from service.http.problems import status_of
from tests.browser import Browser
from tests.service.answers import refusal
from tests.service.http.pages.page_checks import check_looks, press_on, signed_in
from tests.service.http.pages.page_session import HOSTILE, PageSession, check_says, elements, read
from tests.service.http.stock import TEMPLATE, cook_soup
from tests.service.servers import BASE_ID, Live, World

TEMPLATES = {"chatty": TEMPLATE + "{% if add_generation_prompt %}assistant: {% endif %}"}


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    world.push("acme/law", seed=1, domain="law")
    world.push("acme/food", seed=2, domain=HOSTILE)
    world.push("acme/code", seed=4, domain="code")
    world.push("other/secret", seed=3, domain="hidden-domain")
    cook_soup(world, "acme/mix", {"acme/law@1": 3, "acme/food": 1})
    return world


def spans(page: str) -> str:
    """The text of the coloured tokens of a page's first answer."""
    (answer, *_) = re.findall(r"data-text>(.*?)</div>", page, re.DOTALL)
    return unescape("".join(re.findall(r'<span class="token [^>]*>(.*?)</span>', answer, re.DOTALL)))


def test_it_begins_with_the_models_of_its_address(browser: PageSession) -> None:
    playground = Playground.model_validate(browser.get("/playground.json?model=acme/law&model=acme/mix").json())
    assert playground.models == ["acme/law", "acme/mix"]
    assert {"acme/law@1", "acme/food@1", "acme/mix@1"} < set(playground.suggested)
    assert not [model for model in playground.suggested if "secret" in model]
    page = browser.page("/playground?model=acme/law&model=acme/mix")
    assert re.findall(r'name="model-\d"[^>]*value="([^"]*)"', page) == ["acme/law", "acme/mix", "", ""]
    assert browser.get("/playground?" + "&".join(["model=x"] * 5)).status_code == 400


def test_answers_are_those_of_the_api(stocked: World, browser: PageSession) -> None:
    fields = {"model-1": "acme/law@1", "model-2": "acme/mix", "kind": "text", "prompt": "The\r\ncourt ", "seed": "7"}
    answer = browser.send("/playground", "/playground", **fields, max_tokens="12", temperature="0.9")
    request = {"prompt": "The\ncourt ", "max_tokens": 12, "temperature": 0.9, "seed": 7, "logprobs": 4}
    same = stocked.client.post("/v1/completions", json={"model": "acme/law@1", **request}).json()["choices"][0]
    assert spans(answer.text) == same["text"]
    assert answer.text.count('class="reply"') == 3  # and the empty one, for the script
    assert f"{100 * math.exp(same['logprobs']['token_logprobs'][0]):.1f} %" in read(answer.text)


def test_the_script_reads_the_stream_of_the_api(browser: PageSession) -> None:
    answer = browser.send(
        "/playground/events", "/playground", **{"model-1": "acme/law"}, kind="text", prompt="x", max_tokens="3"
    )
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    choices = [json.loads(event)["choices"][0] for event in events[:-1]]
    assert sum(len(choice["logprobs"]["tokens"]) for choice in choices if choice["logprobs"]) == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "x"}, "Name a model to ask."),
        ({"model-1": "acme/law", "prompt": "  "}, "Write something to ask."),
        ({"model-1": "acme/law", "prompt": "x", "temperature": "hot"}, "temperature"),
        ({"model-1": "acme/law", "prompt": "x", "max_tokens": "-1"}, "max_tokens"),
        ({"model-1": "acme/law", "prompt": "x", "kind": "chat", "before": "[{"}, "The conversation"),
        ({"model-1": "other/secret", "prompt": "x"}, "There is no"),
        ({"model-1": HOSTILE, "prompt": HOSTILE}, "not valid"),
    ],
)
def test_what_cannot_be_asked_is_said_once(browser: PageSession, fields: dict[str, str], message: str) -> None:
    page = browser.send("/playground", "/playground", **fields)
    events = browser.send("/playground/events", "/playground", **fields)
    assert message in events.json()["error"]["message"]
    check_says(page, events.status_code, message)
    assert fields["prompt"].strip() in unescape(page.text)  # what was typed is not lost


BEFORE = [
    "5",
    "[5]",
    '[{"role": "system", "content": "x"}]',
    '[{"role": "user", "content": ["x"]}]',
    '[{"role": "user"}]',
    '[{"role": "user", "content": "x", "content": "y"}]',
    json.dumps([{"role": "user", "content": "x"}] * 201),
]


@pytest.mark.parametrize("history", BEFORE)
def test_what_was_said_before_is_turns_of_text(browser: PageSession, history: str) -> None:
    fields = {"model-1": "base/chatty", "kind": "chat", "prompt": "x", "before": history}
    assert refusal(browser.send("/playground/events", "/playground", **fields), 400).startswith("The conversation")


@pytest.mark.parametrize("error", [Internal("SECRET"), Busy("Later.", retry_after=7)])
def test_an_error_is_told_as_the_api_tells_it(
    browser: PageSession, monkeypatch: pytest.MonkeyPatch, error: SoupError
) -> None:
    for route in ("playground.completions", "compare.compare_with_first"):
        monkeypatch.setattr(f"service.http.pages.{route}", AsyncMock(side_effect=error))
    fields = {"model-1": "acme/law", "model-2": "acme/mix", "prompt": "x", "text": "x"}
    for path in ("/playground", "/compare"):
        answer = browser.send(path, f"{path}?{BOTH}", **fields)
        assert answer.status_code == status_of(error)
        assert "SECRET" not in answer.text
        assert answer.headers.get("retry-after") == ("7" if isinstance(error, Busy) else None)


def test_nobody_else_is_asked_once_the_client_has_gone(browser: PageSession, monkeypatch: pytest.MonkeyPatch) -> None:
    completions = AsyncMock(side_effect=Cancelled("The client has gone."))
    monkeypatch.setattr("service.http.pages.playground.completions", completions)
    browser.send("/playground", "/playground", **{"model-1": "acme/law", "model-2": "acme/mix", "prompt": "x"})
    assert [call.args[1].model for call in completions.await_args_list] == ["acme/law"]


def test_a_conversation_of_a_base_without_a_template_is_refused_beside_others(browser: PageSession) -> None:
    fields = {"model-1": "acme/law", "kind": "chat", "prompt": "x"}
    assert "has no chat template" in read(browser.send("/playground", "/playground", **fields).text)


def test_a_conversation_goes_on_where_it_was(stocked: World, browser: PageSession) -> None:
    assert Playground.model_validate(browser.get("/playground.json").json()).chat == ["chatty"]
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    fields = {"kind": "chat", "system": "Be brief.", "before": json.dumps(history), "prompt": "z", "seed": "3"}
    page = browser.send("/playground", "/playground", **{"model-1": "base/chatty"}, **fields, max_tokens="5")
    messages = [{"role": "system", "content": "Be brief."}, *history, {"role": "user", "content": "z"}]
    request = {"model": "base/chatty", "messages": messages, "seed": 3, "max_tokens": 5, "temperature": 0.7}
    same = stocked.client.post("/v1/chat/completions", json=request).json()["choices"][0]["message"]["content"]
    reply = re.search(r"data-text>(.*?)</div>", page.text, re.DOTALL)
    assert unescape(re.sub("<[^>]*>", "", reply[1])).strip() == same.strip()


# --- compare ---------------------------------------------------------------------------------------------

BOTH = "model=acme/law&model=acme/mix@1"


def test_models_are_told_side_by_side(browser: PageSession) -> None:
    models = browser.get(f"/compare.json?{BOTH}").json()["models"]
    assert [model["model"] for model in models] == ["acme/law@1", "acme/mix@1"]
    assert models[1]["ingredients"] == {"acme/law@1": "0.75", "acme/food@1": "0.25"}
    assert "Ingredients by weight" in browser.page(f"/compare?{BOTH}")
    rows = list(csv.reader(browser.get(f"/compare/recipes.csv?{BOTH}").text.splitlines()))
    assert rows[0] == ["Ingredient", "acme/law@1", "acme/mix@1"]
    assert sorted(rows[1:]) == [["acme/food@1", "", "0.25"], ["acme/law@1", "", "0.75"]]


def test_nothing_is_compared_before_something_is_named(browser: PageSession) -> None:
    assert "Properties" not in browser.page("/compare")
    unknown = browser.get("/compare?model=acme/law&model=other/secret")
    check_says(unknown, 404, "There is no")
    assert "hidden-domain" not in unknown.text


def test_a_text_is_measured_as_the_api_measures_it(stocked: World, browser: PageSession) -> None:
    texts = [f"The court held that contract {number} was void." for number in range(4)]
    fields = {"model-1": "acme/law@1", "model-2": "acme/mix@1", "text": "\n\n".join(texts)}
    page = browser.send("/compare", f"/compare?{BOTH}", **fields)
    request = {"model": "acme/mix@1", "baseline": "acme/law@1", "texts": texts}
    same = stocked.client.post("/v1/perplexity", json=request).json()
    csv_answer = browser.send("/compare", f"/compare?{BOTH}", **fields, **{"as": "csv"})
    assert csv_answer.headers["content-type"].startswith("text/csv")
    first, second = list(csv.reader(csv_answer.text.splitlines()))[1:]
    assert float(first[1]) == pytest.approx(same["baseline"]["perplexity"])
    assert [float(cell) for cell in second[1:]] == pytest.approx(
        [same["perplexity"], same["baseline"]["difference"], *same["baseline"]["interval"]]
    )
    (texts,) = browser.plots(page.text)
    reach = (same["baseline"]["interval"][1] - same["baseline"]["interval"][0]) / 2
    assert f"{same['baseline']['difference']:+.4f} ± {reach:.4f}" in texts


def test_every_model_is_scored_once(stocked: World, browser: PageSession) -> None:
    def used() -> dict[str, int]:
        rows = stocked.client.get("/v1/usage", params={"by": "model"}).json()["data"]
        return {row["model"]: row["tokens_in"] for row in rows}

    tokens_before = used()
    fields = {"model-1": f"base/{BASE_ID}", "model-2": "acme/law@1", "model-3": "acme/mix@1", "text": "The court."}
    page = browser.send("/compare", f"/compare?{BOTH}", **fields)
    assert page.status_code == 200, read(page.text)
    counted = {model: tokens - tokens_before.get(model, 0) for model, tokens in used().items()}
    assert counted[f"base/{BASE_ID}"] == counted["acme/law@1"] == counted["acme/mix@1"] > 0
    rows = re.findall(r"<tbody>(.*?)</tbody>", page.text, re.DOTALL)[-1].count("<tr>")
    assert rows == 3


def test_models_of_other_bases_are_not_scored(browser: PageSession) -> None:
    fields = {"model-1": "acme/law", "model-2": "base/chatty", "text": "The court."}
    check_says(browser.send("/compare", f"/compare?{BOTH}", **fields), 400, "different base models")


def test_one_model_under_two_names_is_one(browser: PageSession) -> None:
    digest = browser.get("/compare.json?model=acme/law").json()["models"][0]["facts"]["Digest"]
    models = browser.get(f"/compare.json?model=&model=acme/law&model={digest}&model=acme/law@1").json()["models"]
    assert [model["model"] for model in models] == ["acme/law@1"]


def test_a_reader_is_offered_models_to_compare(stocked: World) -> None:
    assert '<option value="acme/law@1">' in PageSession(stocked, stocked.key(["read"], ["acme"])).page("/compare")


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model-1": "acme/law"}, 400, "Name at least two models"),
        ({"model-1": "acme/law", "model-2": "acme/nothing"}, 404, "There is no"),
    ],
)
def test_what_cannot_be_measured_keeps_the_text(
    browser: PageSession, fields: dict[str, str], status: int, message: str
) -> None:
    page = browser.send("/compare", f"/compare?{BOTH}", **fields, text=HOSTILE)
    check_says(page, status, message)
    assert HOSTILE in unescape(page.text)


# --- sliders ---------------------------------------------------------------------------------------------


def test_a_mixture_is_asked_beside_its_adapters_and_not_stored(stocked: World) -> None:
    browser = PageSession(stocked, stocked.key(["infer"], ["acme"]))
    fields = {"mix-1": "acme/law@1", "weight-1": "3", "mix-2": " acme/food@1 ", "weight-2": "1", "mix-3": ""}
    answer = browser.send("/playground/mix", "/playground", **fields, **{"weight-3": "0.5"})
    assert answer.status_code == 303
    place = urlsplit(answer.headers["location"])
    query = parse_qs(place.query)
    mixture, *beside = query["model"]
    assert (place.path, beside) == ("/playground", ["acme/law@1", "acme/food@1"])
    assert query["mix"] == ["acme/law@1*3", "acme/food@1*1"]
    assert mixture == "acme/law@1*3+acme/food@1*1"
    page = browser.page(answer.headers["location"])
    values = {at.get("id", ""): at.get("value", "") for tag, at in elements(page) if tag == "input"}
    inputs = [values[name] for name in ("model-1", "mix-1", "weight-1", "slider-2")]
    assert inputs == [mixture, "acme/law@1", "3", "1.0"]
    twin = browser.get(answer.headers["location"].replace("?", ".json?", 1)).json()
    assert twin["mix"] == [{"ref": "acme/law@1", "weight": 3.0}, {"ref": "acme/food@1", "weight": 1.0}]


def test_one_adapter_alone_is_that_adapter(browser: PageSession) -> None:
    fields = {"mix-1": "acme/law@1", "weight-1": "0.2", "mix-2": "acme/food", "weight-2": "0"}
    answer = browser.send("/playground/mix", "/playground", **fields)
    assert parse_qs(urlsplit(answer.headers["location"]).query)["model"] == ["acme/law@1", "acme/food"]


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({}, 400, "Name an adapter"),
        ({"mix-1": "acme/law", "weight-1": "0"}, 400, "a weight above zero"),
        ({"mix-1": "a" * 201, "weight-1": "1"}, 400, "is not valid"),
        ({"mix-1": "acme/law+acme/style", "weight-1": "1"}, 400, "one adapter in each row"),
        ({"mix-1": "acme/law", "weight-1": "-1"}, 400, "from 0 to 1000"),
        ({"mix-1": "acme/law", "weight-1": "nan"}, 400, "from 0 to 1000"),
        ({"mix-1": "acme/law", "weight-1": "1001"}, 400, "from 0 to 1000"),
        ({"mix-1": "acme/law", "weight-1": HOSTILE}, 400, "from 0 to 1000"),
        ({"mix-1": HOSTILE, "weight-1": "1"}, 400, "This did not work"),
        ({"mix-1": "acme/nothing", "weight-1": "1"}, 404, "acme/nothing"),
        ({"mix-1": "other/secret", "weight-1": "1"}, 404, "other/secret"),
    ],
)
def test_what_cannot_be_mixed_is_said(browser: PageSession, fields: dict[str, str], status: int, message: str) -> None:
    check_says(browser.send("/playground/mix", "/playground", **fields), status, message)


def test_an_address_with_a_recipe_that_is_none_is_refused(browser: PageSession) -> None:
    parameters, names = ["mix=acme/law*1"] * (SLIDERS + 1), ["acme/law*1"] * (SLIDERS + 1)
    for query in ("mix=*1", "mix=acme/law*x", "&".join(parameters), "mix=" + "%2B".join(names)):
        assert browser.get(f"/playground?{query}").status_code == 400, query
        assert browser.get(f"/playground.json?{query}").status_code == 400, query


def test_sliders_write_a_mixture_which_answers_beside_its_adapters(chrome: Browser, live: Live, stocked: World) -> None:
    with signed_in(chrome, live.url, stocked.key(["read", "infer"], ["acme"])) as page:
        page.open("/playground?model=acme/law@1")
        page.fill("#prompt", "The court ")
        page.evaluate("document.querySelector('#max_tokens').value = '4'")
        page.fill("#mix-1", "acme/code@1")
        page.fill("#mix-2", "acme/food@1")
        press_on(page, "#slider-1", "ArrowRight", 10)
        assert page.evaluate("document.querySelector('#weight-1').value") == "0.6"
        page.evaluate("document.querySelector('#weight-2').value = ''")
        page.fill("#weight-2", "0.2")
        assert page.evaluate("document.querySelector('#slider-2').value") == "0.2"
        press_on(page, "[data-mix-button]")
        page.until("document.querySelectorAll('.answers [data-table]:not([hidden])').length === 3")
        mixture = "acme/code@1*0.6+acme/food@1*0.2"
        assert page.evaluate("document.querySelector('#model-1').value") == mixture
        assert page.text(".answers .reply:nth-child(1) h2") == mixture
        assert page.evaluate("document.querySelector('#prompt').value") == "The court "
        check_looks(page)
        page.evaluate("document.querySelector('#mix-1').value = ''")
        page.fill("#mix-1", "acme/nothing")
        page.evaluate("document.querySelector('[data-mix-button]').click()")
        page.until("!document.querySelector('[data-mix] [data-problem]').hidden")
        assert "acme/nothing" in page.text("[data-mix] [data-problem]")
        assert all("404" in message for message in page.console_messages)  # the browser says so of the request
        page.console_messages.clear()
