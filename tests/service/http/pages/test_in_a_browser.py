"""The pages in Chromium: by keyboard alone, in both schemes and widths, with their scripts, under their policy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser, Page
from tests.service.http.pages.cook_evidence import evidence
from tests.service.http.pages.page_checks import check_looks, findings, look_at, press_on, signed_in
from tests.service.http.stock import cook_soup, fit_selector, push_embedded, queue_job
from tests.service.servers import Live

SAMPLES = {
    "law": [f"The court held that contract number {number} was void." for number in range(25)],
    "food": [f"Heat the oil, add {number} onions and stir." for number in range(25)],
}
HOSTILE = '"><script>console.error("ran")</script><img src=x onerror=console.error("ran")>'


@pytest.fixture(scope="module")
def stocked(live: Live) -> Live:
    world = live.world
    push_embedded(world, "acme/law", SAMPLES["law"], seed=1, domain="law", card={"description": "of contracts"})
    push_embedded(world, "acme/food", SAMPLES["food"], seed=2, domain="food")
    world.push("acme/hostile", seed=3, domain=HOSTILE, card={"description": HOSTILE, "license": HOSTILE})
    world.client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 1})
    world.client.patch("/v1/namespaces/acme", json={"protected_aliases": ["prod"]})
    return live


@pytest.fixture(scope="module")
def page(chrome: Browser, stocked: Live) -> Iterator[Page]:
    """A page that has signed in, by keyboard alone."""
    with chrome.page(stocked.url) as page:
        page.open("/models?kind=adapter")
        assert page.path == "/sign-in?next=%2Fmodels%3Fkind%3Dadapter"
        look_at(page, "/sign-in")
        page.open("/sign-in?next=%2Fmodels%3Fkind%3Dadapter")
        page.type(stocked.world.key(["read", "write", "infer"], ["acme"]))
        page.press("Enter")
        page.until("location.pathname === '/models' && document.readyState === 'complete'")
        yield page


@pytest.fixture(autouse=True)
def _quiet(page: Page) -> Iterator[None]:
    """Nothing is said, and nothing asked for elsewhere, in any test."""
    yield
    assert (page.console_messages, page.foreign) == ([], [])


def test_signing_in_by_keyboard_leads_to_the_page_that_was_asked_for(page: Page) -> None:
    assert page.path == "/models?kind=adapter"
    assert "acme/law@1" in page.text("main")
    check_looks(page)


def test_a_list_follows_what_is_typed_and_its_address_too(page: Page) -> None:
    page.open("/models")
    page.fill("#q", "contr")
    page.until("document.querySelectorAll('#found tbody tr').length === 1")
    assert "acme/law@1" in page.text("#found")
    assert page.path.startswith("/models?q=contr&")
    assert page.evaluate("document.activeElement.id") == "q"
    page.open(page.path)  # the address says it all
    assert "acme/food" not in page.text("#found")


def test_the_first_tab_skips_to_the_content_and_focus_is_seen(page: Page) -> None:
    page.open("/models")
    page.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.press("Enter")
    page.press("Tab")
    assert page.evaluate("document.activeElement.id") == "q"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineWidth") == "3px"


def test_what_is_wrong_is_said_in_the_place_of_the_list_which_comes_back(page: Page) -> None:
    page.open("/models")
    page.click(".search summary")
    page.fill("#tag", "NO!")
    page.press("Enter")
    page.until("document.querySelector('#found h1') !== null")
    assert "NO!" in page.text("#found")
    page.evaluate("document.querySelector('#tag').value = ''")
    page.press("Enter")
    page.until("document.querySelector('#found tbody') !== null")
    assert all("400" in message for message in page.console_messages)
    page.console_messages.clear()


def test_a_key_that_ends_while_one_types_leads_to_the_form_to_sign_in(chrome: Browser, stocked: Live) -> None:
    client = stocked.world.client
    key = client.post("/v1/keys", json={"name": "k", "scopes": ["read"], "namespaces": ["acme"]}).json()
    with signed_in(chrome, stocked.url, key["secret"]) as signed_page:
        client.delete(f"/v1/keys/{key['id']}")
        signed_page.fill("#q", "law")
        signed_page.until("location.pathname === '/sign-in'")
        assert "next=%2Fmodels%3Fq%3Dlaw" in signed_page.path
        signed_page.console_messages.clear()  # the browser says so of the request


# --- the other pages --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cooked(stocked: Live) -> str:
    """A soup whose evidence says all that there is to say."""
    evidence_fields = evidence(hostile=HOSTILE).model_dump(mode="json")
    cook_soup(stocked.world, "acme/mix", {"acme/law": 1, "acme/food": 1}, evidence_fields)
    return "acme/mix@1"


def test_one_model_and_why_a_soup_is_as_it_is(page: Page, cooked: str) -> None:
    for path in ("/models/acme/hostile@1", f"/models/{cooked}", f"/soups/{cooked}"):
        look_at(page, path)
    page.click(".crumbs a:last-child")
    page.until("location.pathname === '/models/acme/mix@1' && document.readyState === 'complete'")


def test_cooking_by_a_dropped_file_and_looking_at_what_comes_of_it(page: Page, stocked: Live) -> None:
    look_at(page, "/cook")
    text = "\\n\\n".join(f"The court held contract {number} void." for number in range(20))
    page.evaluate(
        "(() => { const given = new DataTransfer();"
        f" given.items.add(new File([\"{text}\"], 'contracts.txt', {{type: 'text/plain'}}));"
        " document.querySelector('#sample').dispatchEvent(new DragEvent('drop', {dataTransfer: given, bubbles: true}));"
        " })()"
    )
    page.until("document.querySelector('#sample').value.includes('contract 19')")
    page.click("#effort-instant")
    page.click(".cook button")
    page.until("location.pathname.startsWith('/jobs/job-')")
    page.until("document.querySelector('.state.succeeded, .state.failed') !== null")  # without a hand on it
    assert "Result" in page.text("main"), page.text("main")
    job = stocked.world.client.get(f"/v1{page.path}").json()
    assert (job["state"], page.text(".state")) == ("succeeded", "✓ succeeded")
    assert job["result"]["reason"] in page.text(".answer")
    look_at(page, page.path)


def sign_in(page: Page, secret: str) -> None:
    page.fill("#key", secret)
    page.press("Enter")
    page.until("location.pathname === '/cook' && document.readyState === 'complete'")


def test_a_text_to_cook_outlives_the_session_of_its_key_alone(chrome: Browser, stocked: Live) -> None:
    text = "\n\n".join(f"The court held contract {number} void." for number in range(20))
    world = stocked.world
    with chrome.page(stocked.url) as page:

        def send_without_session() -> None:
            page.fill("#sample", text)
            page.fill("#name", "acme/kept")
            page.click("#effort-instant")
            page.call("Network.clearBrowserCookies")
            page.click(".cook button")
            page.until("location.pathname === '/sign-in' && document.readyState === 'complete'")
            assert page.path == "/sign-in?next=%2Fcook"

        writer = {"name": "w", "scopes": ["read", "write"], "namespaces": ["acme"]}
        first, second = (world.client.post("/v1/keys", json=writer).json()["secret"] for _ in range(2))
        sample = "document.querySelector('#sample').value"
        page.open("/sign-in?next=/cook")
        sign_in(page, first)
        send_without_session()
        sign_in(page, second)
        assert page.evaluate(sample + " + sessionStorage.length") == "0"
        assert not page.evaluate("document.querySelector('[data-kept]').checkVisibility()")
        send_without_session()
        page.open("/sign-in")  # not on the way back
        assert page.evaluate("sessionStorage.length") == 0
        page.open("/sign-in?next=/cook")
        sign_in(page, second)
        send_without_session()
        sign_in(page, second)
        assert page.evaluate(sample) == text
        other_fields = "[document.querySelector('#name').value, document.querySelector('#effort-instant').checked]"
        assert page.evaluate(other_fields) == ["acme/kept", True]
        assert "Your text is still here" in page.text("[data-kept]")
        assert findings(page) == []
        page.click(".cook button")
        ended = "!document.querySelector('[data-follow]')"  # before, the page loads itself again at any moment
        page.until(f"location.pathname.startsWith('/jobs/job-') && document.readyState === 'complete' && {ended}")
        assert page.evaluate("sessionStorage.length") == 0  # once it was taken
        page.open("/cook")
        assert page.evaluate("document.querySelector('#sample').value + document.cookie") == ""
        assert not page.evaluate("document.querySelector('[data-kept]').checkVisibility()")


def test_a_job_is_cancelled_by_keyboard_and_the_page_follows(page: Page, stocked: Live) -> None:
    look_at(page, f"/jobs/{queue_job(stocked.world)}")
    press_on(page, ".running button")
    page.until("document.querySelector('.state.cancelled') !== null")
    look_at(page, "/jobs")


def test_a_job_whose_session_ends_leads_to_the_form_to_sign_in(
    chrome: Browser, stocked: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.routes.jobs.KEEPALIVE_SECONDS", 0.05)
    client = stocked.world.client
    key = client.post("/v1/keys", json={"name": "k", "scopes": ["read"], "namespaces": ["acme"]}).json()
    with signed_in(chrome, stocked.url, key["secret"]) as signed_page:
        signed_page.open(f"/jobs/{queue_job(stocked.world)}")
        client.delete(f"/v1/keys/{key['id']}")
        signed_page.until("location.pathname === '/sign-in'")
        signed_page.console_messages.clear()  # the browser says so of the request


def test_one_prompt_is_put_to_two_models_side_by_side(page: Page, stocked: Live) -> None:
    """Both answers are those of the API, as they were streamed; the words of each are told apart."""
    page.open("/playground?model=acme/law@1&model=acme/food@1")
    page.fill("#prompt", "The court ")
    page.evaluate("document.querySelector('#seed').value = '3'")
    page.evaluate("document.querySelector('#max_tokens').value = '8'")
    press_on(page, "[data-begin]")
    page.until("document.querySelectorAll('.answers [data-table]:not([hidden])').length === 2")
    request = {"prompt": "The court ", "seed": 3, "max_tokens": 8, "temperature": 0.7}
    for number, ref in enumerate(("acme/law@1", "acme/food@1"), 1):
        reply = f".answers .reply:nth-child({number})"
        same = stocked.world.client.post("/v1/completions", json={"model": ref, **request}).json()["choices"][0]["text"]
        assert page.evaluate(f"document.querySelector('{reply} [data-text]').textContent.trim()") == same.strip()
        assert page.text(f"{reply} h2") == ref
        assert "8 tokens" in page.text(reply)
        assert page.evaluate(f"document.querySelectorAll('{reply} [data-rows] tr').length") == 8
        assert page.evaluate(f"document.querySelector('{reply} .token').title").count(" %") == 5
    assert page.path == "/playground?model=acme/law@1&model=acme/food@1"
    assert page.text(".playground .do").strip() == "Ask"  # nothing runs that could be stopped
    page.evaluate("document.querySelector('details').open = true")
    check_looks(page)


def test_what_a_model_refuses_stands_in_the_place_of_its_answer(page: Page) -> None:
    page.open("/playground?model=acme/law@1&model=acme/nothing")
    page.fill("#prompt", "x")
    page.evaluate("document.querySelector('#max_tokens').value = '2'")
    page.click("[data-begin]")
    page.until("document.querySelectorAll('.reply .problem:not([hidden])').length === 1")
    page.until("!document.querySelector('[data-begin]').disabled")
    assert "acme/nothing" in page.text(".reply .problem:not([hidden])")
    assert "2 tokens" in page.text(".answers")
    # the browser reports the request itself
    page.console_messages[:] = [line for line in page.console_messages if "404" not in line]


def test_an_answer_is_stopped_and_the_next_one_begun(page: Page) -> None:
    page.open("/playground?model=acme/law@1")
    page.fill("#prompt", "The court ")
    page.evaluate("document.querySelector('#max_tokens').value = '40'")
    stop_is_hidden = page.evaluate(
        "(async () => { const [form, stop] = ['ask', 'stop'].map((name) => document.querySelector(`[data-${name}]`));"
        " form.requestSubmit(); form.requestSubmit();"  # as by 'Mix and ask', which ends the first
        " for (let turn = 0; turn < 99; turn += 1) await null;"  # all that the first still does, and no answer
        " const { hidden } = stop; stop.click(); return hidden; })()"
    )
    assert not stop_is_hidden
    page.until("document.querySelector('.answers').innerText.includes('stopped')")
    page.click("[data-begin]")
    answers = "document.querySelector('.answers').innerText"
    page.until(f"{answers}.includes(' tokens') && !{answers}.includes('stopped')")  # drawn: it may end before 40


def test_models_are_compared_and_measured_on_a_text(page: Page, cooked: str) -> None:
    page.open(f"/compare?model=acme/law@1&model={cooked}")
    assert "Ingredients by weight" in page.text("main")
    page.fill("#text", "\n\n".join(SAMPLES["food"][:6]))
    page.click("#predict ~ form button")
    page.until("document.querySelector('#predict ~ figure img') !== null && document.readyState === 'complete'")
    assert "Perplexity on 6 passages" in page.text("main")
    assert "onions" in page.evaluate("document.querySelector('#text').value")
    check_looks(page)
    page.click(".pages a")
    page.until("location.pathname === '/playground' && document.readyState === 'complete'")
    assert page.evaluate("document.querySelector('#model-2').value") == cooked


def test_what_an_admin_sees(chrome: Browser, stocked: Live) -> None:
    """Usage, audit, engine and keys; a key is made by keyboard, and they sign out by mouse."""
    with signed_in(chrome, stocked.url, stocked.world.admin) as admin:
        for path in ("/usage?by=model", "/audit", "/engine", "/keys"):
            look_at(admin, path)
        admin.fill("#name", "for a reader")
        press_on(admin, "#scope-read", " ")
        admin.fill("#namespaces", "acme")
        admin.press("Enter")
        admin.until("document.querySelector('#secret') !== null && document.readyState === 'complete'")
        assert admin.text(".verdict").startswith("sk-soup-")
        admin.evaluate("window.before = 1")
        admin.call("Page.reload")  # the page of keys: the form is not sent again, and the secret is gone
        admin.until("window.before === undefined && document.readyState === 'complete'")
        assert (admin.path, admin.text(".verdict")) == ("/keys", "")
        admin.click(".me button")
        admin.until("location.pathname === '/sign-in' && document.readyState === 'complete'")


def test_a_text_is_placed_on_the_map(page: Page, stocked: Live) -> None:
    fit_selector(stocked.world)
    page.open("/map")
    page.fill("#text", "\n\n".join(SAMPLES["food"][:6]))
    page.click("#place ~ form button")
    page.until("document.querySelector('img.plot[src*=\"&x=\"]') !== null && document.readyState === 'complete'")
    assert "It is most similar to acme/food@1" in page.text(".answer")
    check_looks(page)
