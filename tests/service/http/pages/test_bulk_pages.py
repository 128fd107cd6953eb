"""Many models changed at once: what is shown first, what is done to each, and what one is refused for."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

import pytest

from service.http.pages import bulk
from tests.browser import Browser
from tests.service.http.pages.page_checks import check_looks, look_at, press_on, signed_in
from tests.service.http.pages.page_session import HOSTILE, PageSession, check_says, read
from tests.service.servers import Live, World

REFS = ("acme/one@1", "acme/two@1", "acme/three@1")
TICKED = "/models/edit?" + "&".join(f"ref={ref}" for ref in REFS)


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    """Three versions, of which a protected alias points at one, and one of another namespace."""
    for seed, name in enumerate(("one", "two", "three"), 1):
        world.push(f"acme/{name}", seed=seed, domain=HOSTILE if seed == 1 else "law")
    world.push("other/secret", seed=4, domain="confidential", card={"tags": ["draft"]})
    world.client.put("/v1/adapters/acme/two/aliases/prod", json={"version": 1})
    world.client.patch("/v1/namespaces/acme", json={"protected_aliases": ["prod"]})
    return world


@pytest.fixture(autouse=True)
def _as_before(stocked: World) -> None:
    """The versions as they were before any test: none retired, each with its tags."""
    for seed, ref in enumerate(REFS, 1):
        stocked.client.post(f"/v1/adapters/{ref}/restore")
        card = {"tags": ["draft", f"t{seed}"], "description": "kept", "metadata": {"by": "ana"}}
        stocked.client.patch(f"/v1/adapters/{ref}", json={"card": card})


def tags(world: World, ref: str) -> list[str]:
    return list(world.client.get(f"/v1/adapters/{ref}").json()["card"]["tags"])


def rows(page: str) -> dict[str, str]:
    """The outcome of each version, as the page says it."""
    texts = [read(row).strip() for row in page.split("</table>")[0].split("<tr>")[2:]]
    return dict(text.split(" ", 1) for text in texts)


def test_what_is_ticked_is_shown_before_anything_is_changed(stocked: World, browser: PageSession) -> None:
    assert "Change 3 versions" in read(browser.page(TICKED))
    assert [row["ref"] for row in browser.get(TICKED.replace("/edit?", "/edit.json?")).json()["data"]] == list(REFS)
    assert tags(stocked, REFS[0]) == ["draft", "t1"]


def test_what_a_search_finds_is_counted_and_no_more_than_the_key_sees(browser: PageSession) -> None:
    assert {row["ref"] for row in browser.get("/models/edit.json?tag=draft").json()["data"]} == set(REFS)
    page = browser.page("/models/edit?tag=draft")
    assert "All models with tag draft" in read(page)
    assert "secret" not in page
    assert 'href="/models/edit?tag=draft"' in browser.page("/models?tag=draft")
    assert "/models/edit?" not in browser.page("/models")  # not all that there is by a slip
    assert "No model matches" in browser.page("/models/edit?tag=none")


def test_tags_are_changed_and_all_else_of_the_cards_stays(stocked: World, browser: PageSession) -> None:
    fields = {"refs": " ".join(REFS), "add": "reviewed, v2", "remove": "draft t1", "do": "tags"}
    check_says(browser.send("/models/edit", TICKED, **fields), 200, "3 versions are changed None was refused.")
    for number, ref in enumerate(REFS, 1):
        card = stocked.client.get(f"/v1/adapters/{ref}").json()["card"]
        assert set(card["tags"]) == {"reviewed", "v2", *([] if number == 1 else [f"t{number}"])}
        assert (card["description"], card["metadata"]) == ("kept", {"by": "ana"})
    assert "0 versions are changed 3 needed no change." in read(browser.send("/models/edit", TICKED, **fields).text)
    done = [row["subject"] for row in stocked.client.get("/v1/audit?action=adapter.change").json()["data"]]
    assert set(REFS) <= set(done)


def test_what_one_is_refused_for_keeps_no_other_from_it(stocked: World, browser: PageSession) -> None:
    """A protected alias points at one, another is in a namespace that the key does not see, a third is gone."""
    refs = " ".join([*REFS, "other/secret@1", "acme/none@1", "acme/one", "sha256:x", HOSTILE.split()[0]])
    outcomes = rows(browser.send("/models/edit", TICKED, refs=refs, do="retire", count="8").text)
    assert outcomes["acme/one@1"] == outcomes["acme/three@1"] == "✓ changed"
    assert "only an admin can retire it" in outcomes["acme/two@1"]
    for unseen in ("other/secret@1", "acme/none@1"):
        assert f"There is no adapter {unseen}, or this key does not see it." in outcomes[unseen]
    assert "namespace/name@version" in outcomes["acme/one"]
    states = [stocked.client.get(f"/v1/adapters/{ref}").status_code for ref in (*REFS, "other/secret@1")]
    assert states == [410, 200, 410, 200]


def test_where_all_are_refused_the_answer_has_the_status_of_the_first(browser: PageSession) -> None:
    fields = {"refs": "other/secret@1 acme/none@1", "do": "retire", "count": "2"}
    check_says(browser.send("/models/edit", TICKED, **fields), 404, "2 were refused")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"do": "tags"}, "Name a tag"),
        ({"do": "tags", "add": "NOT!"}, "NOT!"),
        ({"do": "retire"}, "To retire 3, type that number"),
        ({"do": "retire", "count": "2"}, "To retire 3, type that number"),
    ],
)
def test_what_cannot_be_done_is_said_above_the_form_and_nothing_is_done(
    stocked: World, browser: PageSession, fields: dict[str, str], message: str
) -> None:
    answer = browser.send("/models/edit", TICKED, refs=" ".join(REFS), **fields)
    check_says(answer, 400, message)
    check_says(answer, 400, "Change 3 versions")
    assert tags(stocked, REFS[0]) == ["draft", "t1"]


def test_what_is_wrong_is_said_where_some_that_were_ticked_are_gone(browser: PageSession) -> None:
    many = " ".join(f"acme/none@{number}" for number in range(1, 502))
    for refs, add, message in (
        (f"{REFS[0]} acme/none@1 NOT!", "", "Name a tag"),
        (many, "x", "501 versions"),
    ):
        check_says(browser.send("/models/edit", TICKED, refs=refs, do="tags", add=add), 400, message)
    assert browser.send("/models/edit", TICKED, refs="", do="tags", add="x").status_code == 400


@pytest.mark.parametrize("query", ["", "?q=", "?ref=acme/one@1&tag=draft", "?ref=acme/one", "?ref=base/tiny"])
def test_what_names_nothing_or_not_one_version_is_refused(browser: PageSession, query: str) -> None:
    assert {browser.get(f"{path}{query}").status_code for path in ("/models/edit", "/models/edit.json")} == {400}


def test_more_than_can_be_changed_at_once_is_refused_with_the_number(
    browser: PageSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "MAX_VERSIONS", 2)
    check_says(browser.get("/models/edit?tag=draft"), 413, "more than 2 versions")


def test_a_version_that_somebody_else_changes_meanwhile_is_refused(
    stocked: World, browser: PageSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    change = bulk.change_adapter

    def late(ns: str, name: str, *arguments: Any, **options: Any) -> Any:
        card = {"tags": ["draft", "of-another"], "description": "of another"}
        stocked.client.patch(f"/v1/adapters/{ns}/{name}", json={"card": card})
        return change(ns, name, *arguments, **options)

    fields = {"refs": REFS[0], "add": "reviewed", "do": "tags"}
    with monkeypatch.context() as patch:
        patch.setattr(bulk, "change_adapter", late)
        assert browser.send("/models/edit", TICKED, **fields).status_code == 412
    assert tags(stocked, REFS[0]) == ["draft", "of-another"]
    check_says(browser.send("/models/edit", TICKED, **fields), 200, "1 version is changed")
    assert tags(stocked, REFS[0]) == ["draft", "of-another", "reviewed"]
    assert stocked.client.get(f"/v1/adapters/{REFS[0]}").json()["card"]["description"] == "of another"


def test_keys_that_do_not_write_have_nothing_to_tick(stocked: World) -> None:
    assert 'type="checkbox"' not in PageSession(stocked, stocked.key(["read"], ["acme"])).page("/models")


def test_ticking_and_tagging_by_keyboard(chrome: Browser, live: Live, stocked: World) -> None:
    with signed_in(chrome, live.url, stocked.key(["read", "write"], ["acme"])) as page:
        page.open("/models")
        for ref in REFS[:2]:
            press_on(page, f'.tick[value="{ref}"]', " ")
        press_on(page, "#choose button")
        page.until("location.pathname === '/models/edit' && document.readyState === 'complete'")
        assert "Change 2 versions" in page.text("h1")
        look_at(page, page.path)
        page.fill("#add", "reviewed")
        page.press("Enter")
        page.until("document.querySelector('h1')?.innerText.includes('changed')")
        assert "2 versions are changed" in page.text("h1")
        check_looks(page)
    assert all("reviewed" in tags(stocked, ref) for ref in REFS[:2])


def test_an_owner_is_given_to_many_and_taken_away(stocked: World, browser: PageSession) -> None:
    def owned() -> set[str | None]:
        return {stocked.client.get(f"/v1/adapters/{ref}").json()["owner"] for ref in REFS}

    fields = {"refs": " ".join(REFS), "do": "owner"}
    answer = browser.send("/models/edit", TICKED, **fields, owner=f" {HOSTILE} ")
    check_says(answer, 200, "3 versions are changed None was refused.")
    assert owned() == {HOSTILE}
    listed = browser.get(f"/models/edit.json?owner={quote(HOSTILE)}").json()["data"]
    assert {row["ref"] for row in listed} >= set(REFS)  # other versions of the names too, where tests have made some
    for path in (TICKED, "/models", "/models/acme/two@1", f"/models?owner={quote(HOSTILE)}"):
        page = browser.page(path)
        assert HOSTILE in read(page) or escape(HOSTILE) in page
    for owner, status, message in (
        ("a\u202eb", 400, "U+202E"),
        (HOSTILE, 200, "3 needed no change."),
        (" ", 400, "Enter an owner"),
    ):
        check_says(browser.send("/models/edit", TICKED, **fields, owner=owner), status, message)
    assert owned() == {HOSTILE}, "a field that was left empty takes nothing away"
    browser.send("/models/edit", TICKED, **{**fields, "do": "no owner"}, owner="")
    assert owned() == {None}


def test_versions_whose_name_has_another_owner_now_are_said_to_be_changed(stocked: World, browser: PageSession) -> None:
    """The first of them brings it to all versions of the name, and the others are not as they were."""
    versions = [stocked.push("acme/several", seed=seed)["ref"] for seed in (11, 12, 13)]
    edit_path = f"/models/edit?ref={'&ref='.join(versions)}"
    fields = {"refs": " ".join(versions), "do": "owner", "owner": "us"}
    answer = read(browser.send("/models/edit", edit_path, **fields).text)
    assert "3 versions are changed None was refused." in answer
    assert answer.count("owner changed") == 3
    answer = read(browser.send("/models/edit", edit_path, **fields).text)
    assert ("3 needed no change." in answer, "owner changed" in answer) == (True, False)
