"""The page that pushes a folder: what it sends, that it goes on where it ended, and who may have it do so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from registry.base_model import shape_of
from registry.errors import Unavailable
from registry.formats import AdapterContents, write_directory
from registry.names import sha256_digest
from registry.spec import Card, LoraConfig
from service.http.pages import push
from tests.browser import Browser, Page
from tests.service.http.pages.page_checks import check_looks, findings, press_on, signed_in
from tests.service.http.pages.page_session import HOSTILE, PageSession
from tests.service.lora_pushes import CONFIG as LORA
from tests.service.lora_pushes import lora_weights
from tests.service.servers import BASE_ID, CONFIG, Live, World, adapter_weights

TEXTS = [f"The court held that contract number {number} was void." for number in range(25)]


@pytest.fixture
def ours(world: World, tmp_path: Path) -> Path:
    """A folder of ours, with a sample, a card, and a file that is nobody's."""
    card = Card(tags=("court",), description=HOSTILE)
    weights = adapter_weights(world.runtime, seed=1)
    contents = AdapterContents(config=CONFIG, weights=weights, domain="law", base_model=BASE_ID, texts=TEXTS, card=card)
    folder = write_directory(tmp_path / "My Law", contents).path
    (folder / "optimizer.pt").write_bytes(b"not sent")
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1" / "adapter_config.json").write_text("{}")
    return folder


@pytest.fixture
def pefts(world: World, tmp_path: Path) -> Path:
    """A folder as PEFT writes it."""
    shape = shape_of(world.runtime.bases[BASE_ID].entry, world.runtime.settings.cache)
    config = LoraConfig.model_validate(LORA)
    contents = AdapterContents(config=config, weights=lora_weights(world, seed=2), base_model=BASE_ID, shape=shape)
    folder = write_directory(tmp_path / "lora", contents).path
    (folder / "soup.json").unlink()
    (folder / "README.md").unlink()
    assert "peft_type" in json.loads((folder / "adapter_config.json").read_text())
    return folder


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts so small that a folder has several."""
    monkeypatch.setattr(push, "PART_BYTES", 1000)


def pushed(page: Page) -> str:
    """The message of the page once its push has ended."""
    page.until("document.querySelector('[data-said] a, [data-problem]:not([hidden])') !== null")
    return page.text("[data-said]") + page.text("[data-problem]:not([hidden])")


# --- in a browser -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secret(world: World) -> str:
    return world.key(["read", "write"], ["acme"])


@pytest.fixture(scope="module")
def signed_page(chrome: Browser, live: Live, secret: str) -> Iterator[Page]:
    with signed_in(chrome, live.url, secret) as page:
        yield page


@pytest.fixture
def page(signed_page: Page) -> Page:
    """The page of pushes, which has asked for nothing yet."""
    signed_page.open("/push")
    signed_page.requested_urls.clear()
    return signed_page


def drop(page: Page, folder: Path, name: str = "") -> None:
    """Drop a folder, and have it called something else than the page proposes."""
    page.drop("[data-target]", folder)
    page.until("document.querySelector('#name').value !== ''")
    if name:
        page.evaluate(f"document.querySelector('#name').value = '{name}'")


def test_a_folder_is_dropped_and_pushed_with_all_that_it_says(page: Page, world: World, ours: Path) -> None:
    drop(page, ours)
    assert page.evaluate("document.querySelector('#name').value") == "acme/my-law"
    assert page.evaluate("document.querySelector('#domain').placeholder") == "law"
    assert "1 more, which are not sent" in page.text("[data-files]")
    page.fill("#tags", "reviewed")
    page.press("Enter")
    assert pushed(page) == "Pushed: acme/my-law@1 25 sequences: about 100 are better."
    check_looks(page)
    size = (ours / "adapter_model.safetensors").stat().st_size
    assert len([url for url in page.requested_urls if "/push/uploads/" in url and "digest=" not in url]) >= -(
        -size // 1000
    )
    page.requested_urls.clear()
    page.click("[data-begin]")  # all of it is there already
    page.until("document.querySelector('[data-begin]').disabled === false")
    assert pushed(page).startswith("Pushed: acme/my-law@1")
    assert not [url for url in page.requested_urls if "/push/uploads/" in url]
    page.press("Enter")  # the link has the focus
    page.until("location.pathname === '/models/acme/my-law@1' && document.readyState === 'complete'")
    row = world.client.get("/v1/adapters/acme/my-law").json()
    assert (row["domain"], row["card"]["tags"], row["card"]["description"]) == ("law", ["court", "reviewed"], HOSTILE)
    assert row["weights_blob"] == sha256_digest((ours / "adapter_model.safetensors").read_bytes())
    assert row["sample"]["kept"] == 25


def test_a_folder_of_pefts_is_chosen_by_its_field(page: Page, world: World, ours: Path, pefts: Path) -> None:
    drop(page, ours)
    page.choose("#folder", pefts)
    page.until("document.querySelector('#name').value === 'acme/lora'")  # no name of the folder before
    page.evaluate("document.querySelector('#name').value = 'acme/chosen'")
    press_on(page, "[data-begin]")
    assert "does not name the domain" in pushed(page)
    assert findings(page) == []
    assert all("400" in message for message in page.console_messages)  # the browser says so of the request
    page.console_messages.clear()
    page.fill("#domain", "law")
    page.press("Enter")
    page.until("document.querySelector('[data-said] a') !== null")
    assert "acme/chosen@1" in page.text("[data-said]")
    row = world.client.get("/v1/adapters/acme/chosen").json()
    assert (row["config"]["method"], row["domain"]) == ("lora", "law")


def test_what_was_sent_before_is_not_sent_again(page: Page, world: World, secret: str, ours: Path) -> None:
    """By another program with the same key, or by this page before it was closed."""
    data = adapter_weights(world.runtime, seed=77)
    (ours / "adapter_model.safetensors").write_bytes(data)
    headers = world.headers(secret)
    body = {"digest": sha256_digest(data), "size": len(data)}
    id = world.client.post("/v1/blobs/uploads", json=body, headers=headers).json()["id"]
    half = len(data) // 2
    sent = world.client.patch(
        f"/v1/blobs/uploads/{id}", content=data[:half], headers={**headers, "content-range": f"0-{half - 1}"}
    )
    assert sent.status_code == 202
    drop(page, ours, "acme/gone-on")
    page.click("[data-begin]")
    assert pushed(page).startswith("Pushed: acme/gone-on@1")
    assert len([url for url in page.requested_urls if url.endswith(f"/push/uploads/{id}")]) == -(
        -(len(data) - half) // 1000
    )


def test_a_server_that_is_away_for_a_moment_is_asked_again_and_goes_on(
    page: Page, world: World, ours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (ours / "adapter_model.safetensors").write_bytes(adapter_weights(world.runtime, seed=78))
    add, ranges = push.add_part, []

    async def sometimes(*arguments: Any) -> Any:
        ranges.append(arguments[-1])
        if len(ranges) == 2:
            raise Unavailable("Not now.")
        return await add(*arguments)

    monkeypatch.setattr(push, "add_part", sometimes)
    drop(page, ours, "acme/patient")
    page.click("[data-begin]")
    assert pushed(page).startswith("Pushed: acme/patient@1")
    assert ranges[1] == ranges[2] == "1000-1999"
    assert all("503" in message for message in page.console_messages)
    page.console_messages.clear()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("adapter_config.json", "The folder has no adapter_config.json"),
        ("adapter_model.safetensors", "optimizer.pt is a pickle"),
    ],
)
def test_a_folder_that_is_no_adapters_is_told_before_anything_is_sent(
    page: Page, ours: Path, change: str, message: str
) -> None:
    (ours / change).unlink()
    page.drop("[data-target]", ours)
    page.until("!document.querySelector('[data-problem]').hidden")
    assert message in page.text("[data-problem]")
    assert not [url for url in page.requested_urls if "/push/" in url]


def test_a_key_that_is_revoked_meanwhile_is_told_so(chrome: Browser, live: Live, world: World, ours: Path) -> None:
    key = world.client.post("/v1/keys", json={"name": "k", "scopes": ["read", "write"], "namespaces": ["acme"]}).json()
    with signed_in(chrome, live.url, key["secret"]) as page:
        page.open("/push")
        drop(page, ours)
        world.client.delete(f"/v1/keys/{key['id']}")
        page.click("[data-begin]")
        assert pushed(page) == "Your session has ended: sign in on another page, then push again."
        page.console_messages.clear()


# --- over HTTP --------------------------------------------------------------------------------------------


CONFIG_TEXT = json.dumps({"domain": "law", "base_model": BASE_ID, "config": CONFIG.model_dump(mode="json")})


@pytest.fixture(scope="module")
def browser(world: World, secret: str) -> PageSession:
    return PageSession(world, secret)


def uploaded(browser: PageSession, data: bytes) -> str:
    """Upload some bytes as the page's script does; their digest."""
    headers = {"soup-form": browser.token("/push")}
    body = {"digest": sha256_digest(data), "size": len(data)}
    id = browser.client.post("/push/uploads", json=body, headers=headers).json()["id"]
    span = {**headers, "content-range": f"0-{len(data) - 1}"}
    assert browser.client.patch(f"/push/uploads/{id}", content=data, headers=span).status_code == 202
    assert browser.client.put(f"/push/uploads/{id}?digest={body['digest']}", headers=headers).status_code == 201
    return str(body["digest"])


def test_what_the_page_begins_with(browser: PageSession, world: World) -> None:
    twin = browser.get("/push.json").json()
    assert (twin["namespaces"], twin["base_models"]) == (["acme"], [BASE_ID])
    assert twin["most_bytes"] == world.runtime.settings.max_blob_bytes


def test_uploads_and_blobs_of_others_are_not_there(world: World, browser: PageSession) -> None:
    data = adapter_weights(world.runtime, seed=5)
    other_browser = PageSession(world, world.key(["read", "write"], ["other"]))
    digest = uploaded(other_browser, data)
    headers = {"soup-form": other_browser.token("/push")}
    open_one = other_browser.client.post(
        "/push/uploads", json={"digest": sha256_digest(b"y"), "size": 1}, headers=headers
    )
    id = open_one.json()["id"]
    assert browser.get("/push/uploads", params={"digest": digest}).json() == {"there": False, "upload": None}
    assert browser.get("/push/uploads", params={"digest": sha256_digest(b"y")}).json()["upload"] is None
    assert other_browser.get("/push/uploads", params={"digest": sha256_digest(b"y")}).json()["upload"]["id"] == id
    mine = {"soup-form": browser.token("/push"), "content-range": "0-0"}
    assert browser.client.patch(f"/push/uploads/{id}", content=b"y", headers=mine).status_code == 404
    fields = {"name": "acme/stolen", "adapter_config.json": CONFIG_TEXT, "adapter_model.safetensors": digest}
    assert browser.send("/push/manifest", "/push", **fields).status_code == 404
    their_fields = {**fields, "name": "other/own"}
    assert browser.send("/push/manifest", "/push", **their_fields).status_code == 403
    assert other_browser.send("/push/manifest", "/push", **their_fields).status_code == 201


@pytest.fixture(scope="module")
def weights(world: World, browser: PageSession) -> str:
    """The digest of weights that were uploaded."""
    return uploaded(browser, adapter_weights(world.runtime, seed=6))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adapter_config.json": None}, "no adapter_config.json"),
        ({"adapter_model.safetensors": None}, "no adapter_model.safetensors"),
        ({"adapter_config.json": "{"}, "adapter_config.json"),
        ({"adapter_config.json": '{"domain": "x"}'}, "config"),
        ({"adapter_config.json": '{"peft_type": "LORA"}'}, "domain"),
        ({"adapter_config.json": '{"peft_type": "LORA"}', "domain": "law"}, "r"),
        ({"adapter_model.safetensors": "../../etc/passwd"}, "adapter_model.safetensors"),
        ({"name": HOSTILE}, "name"),
        ({"tags": HOSTILE}, "tags"),
        ({"README.md": "---\ntags: {a: b}\n---\n"}, "tags"),
        ({"samples.jsonl": "sha256:" + "0" * 64, "embeddings.safetensors": "sha256:" + "0" * 64}, "keep one"),
        ({"embeddings.safetensors": "sha256:" + "0" * 64}, "the encoder of embeddings.safetensors"),
    ],
)
def test_a_folder_that_cannot_be_pushed_is_refused_with_the_reason(
    world: World, browser: PageSession, weights: str, changes: dict[str, str | None], message: str
) -> None:
    fields = {"name": "acme/x", "adapter_config.json": CONFIG_TEXT, "adapter_model.safetensors": weights, **changes}
    answer = browser.send(
        "/push/manifest", "/push", **{name: value for name, value in fields.items() if value is not None}
    )
    assert answer.status_code == 400, answer.text
    assert message in json.dumps(answer.json())
    assert world.client.get("/v1/adapters/acme/x").status_code == 404


def test_a_text_that_is_too_long_is_refused_with_its_length(browser: PageSession, weights: str) -> None:
    long = " " * (push.MAX_TEXT_LENGTH + 1)
    fields = {"name": "acme/x", "adapter_config.json": long, "adapter_model.safetensors": weights}
    answer = browser.send("/push/manifest", "/push", **fields)
    assert (answer.status_code, "use `soup push`" in answer.text) == (400, True)
