"""The page of one version: what it shows, to whom, that its commands work, and that nothing in it runs."""

from __future__ import annotations

import json
import re
import subprocess
from html import unescape
from typing import Any

import pytest

from adaptersoup.cli.app import run as run_cli
from registry.names import sha256_digest
from service.http.pages.adapter import snippets
from tests.service.http.pages.page_session import PageSession, check_says, elements, read
from tests.service.http.stock import cook_soup
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
    cook_soup(world, "acme/mix", {"acme/law@1": 3, "other/food": 1})
    client.put("/v1/adapters/acme/law/aliases/prod", json={"version": 1})
    client.patch("/v1/namespaces/acme", json={"protected_aliases": ["prod"]})
    return world


def test_the_twin_has_what_the_routes_give(stocked: World, browser: PageSession) -> None:
    there, api = browser.get("/models/acme/law@1.json").json(), stocked.client
    expected = {
        "adapter": api.get("/v1/adapters/acme/law@1").json(),
        "files": api.get("/v1/adapters/acme/law@1/files").json()["data"],
        "lineage": api.get("/v1/adapters/acme/law@1/lineage").json(),
        "aliases": [{"alias": "prod", "protected": True}],
        "versions": ["acme/law@2", "acme/law@1"],
        "used": {"requests": 0, "tokens_in": 0, "tokens_out": 0},
    }
    assert {name: there[name] for name in expected} == expected


@pytest.mark.parametrize(("name", "version"), [("law", "@2"), ("law@1", "@1"), ("law@prod", "@1")])
def test_a_name_an_alias_and_a_version_lead_to_a_page(browser: PageSession, name: str, version: str) -> None:
    assert f'law<span class="at">{version}</span>' in browser.page(f"/models/acme/{name}")


def test_the_page_shows_digests_sizes_and_both_ways_of_the_lineage(browser: PageSession) -> None:
    page, there = browser.page("/models/acme/law@1"), browser.get("/models/acme/law@1.json").json()
    for file in there["files"]:
        assert file["digest"] in page
    assert there["adapter"]["digest"] in page
    assert 'href="/models/acme/mix@1"' in page
    soup = browser.page("/models/acme/mix@1")
    assert ">Report</a>" in soup
    assert "0.75" in soup


def test_the_lineage_lists_the_newest_soups(stocked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cook_soup(stocked, "acme/newer", {"acme/law@1": 1, "other/food": 1})
    monkeypatch.setattr("service.http.answers.lineage.CHILDREN", 1)
    children = stocked.client.get("/v1/adapters/acme/law@1/lineage").json()["children"]
    assert [child["ref"] for child in children] == ["acme/newer@1"]


def test_an_ingredient_of_another_namespace_is_its_digest(browser: PageSession) -> None:
    soup = browser.page("/models/acme/mix@1")
    assert "other/food" not in soup
    assert "in a namespace that your key cannot see" in read(soup)


def test_files_can_be_fetched_and_are_what_their_digest_says(browser: PageSession, world: World) -> None:
    """A browser keeps none of them; a program may, and asks whether they are still the same."""
    for file in browser.get("/models/acme/law@1.json").json()["files"]:
        place = f"/models/acme/law@1/files/{file['name']}"
        answer = browser.get(place)
        assert (answer.status_code, len(answer.content)) == (200, file["size"])
        assert sha256_digest(answer.content) == file["digest"]
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["content-security-policy"].startswith("default-src 'none'")
        range_answer = browser.get(place, headers={"range": "bytes=0-9"})
        assert (range_answer.status_code, range_answer.headers["cache-control"]) == (206, "no-store")
        assert answer.headers["cache-control"] == "no-store"
        program_answer = PageSession(world).get(place, headers=world.headers(world.admin))
        assert (program_answer.status_code, program_answer.headers["cache-control"]) == (200, "private, no-cache")
    assert browser.get("/models/acme/law@1/files/nothing").status_code == 404


def test_what_is_no_name_is_refused(browser: PageSession) -> None:
    assert browser.get("/models/acme/NO!").status_code == 400


def test_a_retired_version_is_told_as_such(stocked: World, browser: PageSession) -> None:
    stocked.push("acme/gone", seed=9)
    stocked.client.delete("/v1/adapters/acme/gone")
    check_says(browser.get("/models/acme/gone@1"), 410, "retired")


def test_nothing_that_a_person_wrote_runs(browser: PageSession) -> None:
    page = browser.page("/models/acme/law@1")
    assert "<script>alert(1)</script>" in unescape(page)
    assert "{{7*7777}}" in page


@pytest.mark.parametrize("host", ["evil.test/x", "a b", "$(id)", '"', "a;b", "x:1:2", "a:999999"])
def test_a_host_that_is_none_gets_into_no_command(browser: PageSession, host: str) -> None:
    page = unescape(browser.get("/models/acme/law@1", headers={"host": host}).text)
    assert f"{host}/v1" not in page
    assert "http://127.0.0.1:8000/v1/completions" in page


def shown_snippets(live: Live, browser: PageSession) -> dict[str, str]:
    page = browser.get("/models/acme/law@2", headers={"host": live.url.removeprefix("http://")}).text
    return {
        unescape(title): unescape(text)
        for title, text in re.findall(
            r'<pre tabindex="0" aria-label="([^"]*)"><code>(.*?)</code></pre>', page, re.DOTALL
        )
    }


def test_the_commands_that_are_shown_work(live: Live, stocked: World, browser: PageSession, tmp_path: Any) -> None:
    commands = shown_snippets(live, browser)
    secret = stocked.key(["read", "infer"], ["acme"])
    environment = {"PATH": "/usr/bin:/bin", "SOUP_KEY": secret}
    done = subprocess.run(["bash", "-c", commands["curl"]], env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout)["model"] == "acme/law@2"
    for title, words in (("Command line (soup)", 4), ("Fetch its directory (soup)", 3)):
        *_, command = commands[title].splitlines()
        arguments = [argument.strip('"') for argument in re.findall(r'"[^"]*"|\S+', command)]
        assert arguments[0] == "soup"
        assert len(arguments) >= words
        arguments = [str(tmp_path / "adapter") if argument == "adapter" else argument for argument in arguments[1:]]
        assert run_cli([*arguments, "--url", live.url, "--key", secret]) == 0
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    exec(compile(commands["Python (openai)"].replace('os.environ["SOUP_KEY"]', repr(secret)), "snippet", "exec"), {})


def test_what_gives_no_text_is_only_fetched() -> None:
    assert [snippet.title for snippet in snippets("http://x", "a/b@1", answers_text=False)] == [
        "Fetch its directory (soup)"
    ]


def test_the_lineage_is_drawn_with_weights(browser: PageSession) -> None:
    (texts,) = browser.plots(browser.page("/models/acme/mix"))
    assert {"acme/law@1, 0.75", "acme/mix@1"} <= texts
    assert browser.get("/models/acme/mix/nothing.svg").status_code == 404
    assert browser.get("/models/acme/mix/lineage.svg?theme=blue").status_code == 400


def test_every_link_of_the_page_leads_somewhere(browser: PageSession) -> None:
    links = {at["href"] for tag, at in elements(browser.page("/models/acme/law@1")) if tag == "a" and "href" in at}
    assert len(links) > 6
    for link in links - {"#content", "/docs"}:
        assert browser.get(link).status_code in {200, 303}, link
    assert browser.client.get("/docs").status_code == 200  # has scripts of its own
