"""The page of one version: what it shows, to whom, that its commands work, and that nothing in it runs."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from html import unescape
from typing import Any

import pytest

from adaptersoup.cli.app import run as run_cli
from service.http.pages.adapter import snippets
from tests.service.http.pages.signed import Signed, active, elements, read
from tests.service.servers import Live, World

HOSTILE = '"><script>alert(1)</script><a href="javascript:alert(2)">x</a> {{7*7777}} {% raw %} <style>*{}</style>'
TRAINING = {"steps": 160, "loss": 3.25, "note": HOSTILE, HOSTILE: "x", "curve": [1.0, 0.5], "<b>": {"deep": HOSTILE}}


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    card = {
        "description": f"Line one\n{HOSTILE}",
        "license": HOSTILE,
        "tags": ["court"],
        "metadata": {HOSTILE: HOSTILE},
    }
    world.push("acme/law", seed=1, domain="law", card=card, provenance={"training": TRAINING})
    world.push("acme/law", seed=2, domain="law")
    world.push("other/food", seed=3, domain="recipes")
    client = world.client
    recipe = {"ingredients": [{"ref": "acme/law@1", "weight": 3}, {"ref": "other/food"}]}
    assert client.post("/v1/soups", json={"recipe": recipe, "name": "acme/mix", "wait": 60}).status_code == 201
    client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 1})
    client.patch("/v1/namespaces/acme", json={"protected_aliases": ["prod"]})
    return world


@pytest.fixture(scope="module")
def browser(stocked: World) -> Signed:
    return Signed(stocked, stocked.key(["read", "infer"], ["acme"]))


def test_the_twin_has_what_the_routes_give(stocked: World, browser: Signed) -> None:
    there = browser.get("/models/acme/law@1.json").json()
    headers = {"authorization": ""}
    assert browser.get("/models/acme/law@1.json", headers=headers).status_code == 401
    api = stocked.client
    assert there["adapter"] == api.get("/v1/adapters/acme/law@1").json()
    assert there["files"] == api.get("/v1/adapters/acme/law@1/files").json()["data"]
    assert there["lineage"] == api.get("/v1/adapters/acme/law@1/lineage").json()
    assert there["aliases"] == [{"alias": "prod", "protected": True}]
    assert there["versions"] == ["acme/law@2", "acme/law@1"]
    assert there["used"] == {"requests": 0, "tokens_in": 0, "tokens_out": 0}


@pytest.mark.parametrize(("name", "version"), [("law", "@2"), ("law@1", "@1"), ("law@prod", "@1")])
def test_a_name_an_alias_and_a_version_lead_to_a_page(browser: Signed, name: str, version: str) -> None:
    assert f'law<span class="at">{version}</span>' in browser.page(f"/models/acme/{name}")


def test_the_page_shows_digests_sizes_and_both_ways_of_the_lineage(browser: Signed) -> None:
    page, there = browser.page("/models/acme/law@1"), browser.get("/models/acme/law@1.json").json()
    for file in there["files"]:
        assert file["digest"] in page
    assert there["adapter"]["digest"] in page
    assert 'href="/models/acme/mix@1"' in page
    soup = browser.page("/models/acme/mix@1")
    assert "Why this soup" in soup
    assert "0.75" in soup


def test_an_ingredient_of_another_namespace_is_its_digest(browser: Signed) -> None:
    soup = browser.page("/models/acme/mix@1")
    assert "other/food" not in soup
    assert "in a namespace that this key does not see" in read(soup)


def test_files_can_be_fetched_and_are_what_their_digest_says(browser: Signed) -> None:
    for file in browser.get("/models/acme/law@1.json").json()["files"]:
        answer = browser.get(f"/models/acme/law@1/files/{file['name']}")
        assert (answer.status_code, len(answer.content)) == (200, file["size"])
        assert f"sha256:{hashlib.sha256(answer.content).hexdigest()}" == file["digest"]
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
    assert browser.get("/models/acme/law@1/files/nothing").status_code == 404


def test_a_browser_keeps_no_file_that_others_could_see_after_signing_out(browser: Signed, world: World) -> None:
    """A program that comes with its key keeps it, and asks whether it is still the same."""
    for path in ("README.md", "adapter_model.safetensors"):
        place = f"/models/acme/law@1/files/{path}"
        for headers, status in (({}, 200), ({"range": "bytes=0-9"}, 206)):
            answer = browser.get(place, headers=headers)
            assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store")
        answer = Signed(world).get(place, headers=world.headers(world.admin))
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "private, no-cache")


def test_what_is_not_there_and_what_is_anothers_are_the_same_page(browser: Signed) -> None:
    texts = set()
    for name in ("acme/nothing", "other/food", "other/nothing"):
        answer = browser.get(f"/models/{name}")
        assert answer.status_code == 404
        texts.add(re.sub(r"<code>[0-9a-f]{32}</code>", "", answer.text.replace(name, "the name")))
    assert len(texts) == 1
    assert browser.get("/models/acme/NO!").status_code == 400


def test_a_retired_version_is_told_as_such(stocked: World, browser: Signed) -> None:
    stocked.push("acme/gone", seed=9)
    stocked.client.delete("/v1/adapters/acme/gone")
    answer = browser.get("/models/acme/gone@1")
    assert answer.status_code == 410
    assert "retired" in read(answer.text)


def test_nothing_that_a_person_wrote_runs(browser: Signed) -> None:
    page = browser.page("/models/acme/law@1")
    assert active(page) == []
    assert "<script>alert(1)</script>" in unescape(page)
    assert "{{7*7777}}" in page


@pytest.mark.parametrize("host", ["evil.test/x", "a b", "$(id)", '"', "a;b", "x:1:2", "a:999999"])
def test_a_host_that_is_none_gets_into_no_command(browser: Signed, host: str) -> None:
    page = unescape(browser.get("/models/acme/law@1", headers={"host": host}).text)
    assert f"{host}/v1" not in page
    assert "http://127.0.0.1:8000/v1/completions" in page


def shown_snippets(live: Live, browser: Signed) -> dict[str, str]:
    page = browser.get("/models/acme/law@2", headers={"host": live.url.removeprefix("http://")}).text
    return {
        unescape(title): unescape(text)
        for title, text in re.findall(
            r'<pre tabindex="0" aria-label="([^"]*)"><code>(.*?)</code></pre>', page, re.DOTALL
        )
    }


def test_the_commands_that_are_shown_work(live: Live, stocked: World, browser: Signed, tmp_path: Any) -> None:
    shown = shown_snippets(live, browser)
    secret = stocked.key(["read", "infer"], ["acme"])
    environment = {"PATH": "/usr/bin:/bin", "SOUP_KEY": secret}
    done = subprocess.run(["bash", "-c", shown["curl"]], env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout)["model"] == "acme/law@2"
    for title, words in (("Command line (soup)", 4), ("Fetch its directory (soup)", 3)):
        *_, command = shown[title].splitlines()
        arguments = [one.strip('"') for one in re.findall(r'"[^"]*"|\S+', command)]
        assert arguments[0] == "soup"
        assert len(arguments) >= words
        arguments = [str(tmp_path / "adapter") if one == "adapter" else one for one in arguments[1:]]
        assert run_cli([*arguments, "--url", live.url, "--key", secret]) == 0
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    code = shown["Python (openai)"].replace('os.environ["SOUP_KEY"]', repr(secret))
    exec(compile(code, "snippet", "exec"), {})


def test_what_gives_no_text_is_only_fetched() -> None:
    assert [one.title for one in snippets("http://x", "a/b@1", answers_text=False)] == ["Fetch its directory (soup)"]


def test_the_lineage_is_drawn_with_weights(browser: Signed) -> None:
    (texts,) = browser.plots(browser.page("/models/acme/mix"))
    assert {"acme/law@1, 0.75", "acme/mix@1"} <= texts
    assert browser.get("/models/acme/mix/nothing.svg").status_code == 404
    assert browser.get("/models/acme/mix/lineage.svg?theme=blue").status_code == 400


def test_every_link_of_the_page_leads_somewhere(browser: Signed) -> None:
    links = {at["href"] for tag, at in elements(browser.page("/models/acme/law@1")) if tag == "a" and "href" in at}
    assert len(links) > 6
    for link in links - {"#content"}:
        assert browser.get(link).status_code in {200, 303}, link
