"""Cooking by a form, and the pages of jobs: what is asked for, what is refused, what came of it, who sees it."""

from __future__ import annotations

import re
from html import unescape
from typing import Any, get_args

import pytest

from registry.errors import InvalidSample
from registry.spec import Effort
from service.client.samples import split_texts
from service.http.pages.cook import WHAT
from tests.service.http.pages.signed import Signed, active, read
from tests.service.servers import World

PASSAGES = [f"The court held that contract number {number} was void for want of consideration." for number in range(25)]
TEXT = "\r\n\r\n".join(PASSAGES)
HOSTILE = "</textarea><script>alert(1)</script>\"'<b>{{7*7}}"


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    for number, domain in enumerate(("law", "food", "news")):
        sample = {"texts": [f"{domain} {text} {number}" for text in PASSAGES]}
        job = world.push(f"acme/{domain}", seed=number + 1, domain=domain, sample=sample)["job"]
        world.client.get(f"/v1/jobs/{job}/events")  # ends with it
    return world


@pytest.fixture(scope="module")
def browser(stocked: World) -> Signed:
    return Signed(stocked, stocked.key(["read", "write"], ["acme"]))


def cook(browser: Signed, **fields: str) -> Any:
    return browser.send("/cook", "/cook", **fields)


@pytest.fixture(scope="module")
def cooked(browser: Signed) -> str:
    """Where the job of a cook is, which has ended."""
    answer = cook(browser, sample=TEXT, effort="instant", name="acme/contracts")
    assert answer.status_code == 303, read(answer.text)
    place = str(answer.headers["location"])
    assert browser.get(f"{place}/events").text.rstrip().rpartition("\n")[0].endswith("event: done")
    return place


def test_a_form_asks_for_what_the_api_is_asked_for(stocked: World, browser: Signed, cooked: str) -> None:
    job = stocked.client.get(f"/v1{cooked}").json()
    assert (job["kind"] in {"cook", "search"}, job["state"]) == (True, "succeeded")
    assert job["result"]["sample"]["received"] == len(PASSAGES)
    audit = stocked.client.get("/v1/audit", params={"subject": job["id"]}).json()["data"]
    assert [one["action"] for one in audit] == ["soup.ask"]
    assert browser.get(f"{cooked}.json").json()["id"] == job["id"]


def test_what_came_of_it_is_a_report(stocked: World, browser: Signed, cooked: str) -> None:
    page, result = browser.page(cooked), stocked.client.get(f"/v1{cooked}").json()["result"]
    said = read(page)
    assert result["reason"] in said
    if result["abstained"]:
        assert "The base model is the answer" in said
        assert "nothing that was tried is known to do better" in said
    else:
        assert result["model"] in said
    assert "Cancel it" not in said
    assert active(page) == []
    names = re.findall(rf'href="{cooked}/([a-z-]+)\.csv"', page)
    assert names
    for name in names:
        assert browser.get(f"{cooked}/{name}.csv").status_code == 200


def test_the_form_says_what_can_be_asked_for(browser: Signed) -> None:
    told = browser.get("/cook.json").json()
    assert told["base_models"] == ["tiny"]
    assert list(told["efforts"]) == list(get_args(Effort)) == list(WHAT)
    page = browser.page("/cook")
    assert 'id="effort-instant" value="instant" checked' in page
    assert active(page) == []


@pytest.mark.parametrize(
    ("fields", "status", "why"),
    [
        ({"sample": ""}, 422, "Paste some text"),
        ({"sample": " \r\n\r\n "}, 422, "Paste some text"),
        ({"sample": "One paragraph."}, 422, "at least 5 are needed"),
        ({"sample": '{"text": 1}'}, 422, "The sample, line 1,"),
        ({"sample": TEXT, "effort": "huge"}, 400, "effort"),
        ({"sample": TEXT, "name": "no-namespace"}, 400, "has no namespace"),
        ({"sample": TEXT, "name": "other/x"}, 403, "may not write in namespace"),
        ({"sample": TEXT, "base_model": "nothing"}, 400, "is not on the allowlist"),
    ],
)
def test_what_cannot_be_cooked_is_said_beside_the_form(
    browser: Signed, fields: dict[str, str], status: int, why: str
) -> None:
    answer = cook(browser, **{"effort": "instant", **fields})
    assert answer.status_code == status, read(answer.text)
    assert why in read(answer.text)
    assert 'role="alert"' in answer.text
    if fields["sample"].strip():
        assert fields["sample"].splitlines()[0] in unescape(answer.text)  # nobody types it twice


def test_what_was_typed_comes_back_as_text(browser: Signed) -> None:
    answer = cook(browser, sample=HOSTILE, name=HOSTILE, effort=HOSTILE)
    assert active(answer.text) == []
    assert HOSTILE in unescape(answer.text)


def test_json_lines_and_paragraphs_are_told_apart_as_files_are() -> None:
    assert split_texts('{"text": "a"}\r\n{"text": "b"}', what="x") == ["a", "b"]
    assert split_texts("a\r\n \r\nb\nc", what="x") == ["a", "b\nc"]
    with pytest.raises(InvalidSample, match="x holds no text"):
        split_texts(" \n", what="x")


def test_cooking_needs_the_scope_and_a_form_of_ours(stocked: World, browser: Signed) -> None:
    reader = Signed(stocked, stocked.key(["read"], ["acme"]))
    assert reader.get("/cook").status_code == 403
    assert 'href="/cook"' not in reader.page("/models")
    for path in ("/cook", "/jobs/job-0000000000000000/cancel"):
        answer = reader.client.post(path, data={"form": reader.token("/models"), "sample": TEXT})
        assert answer.status_code == 403
        assert "lacks the scope" in read(answer.text)
        forged = browser.client.post(path, data={"form": "0" * 64, "sample": TEXT})
        assert forged.status_code == 403
        assert "not of this session" in read(forged.text)


# --- jobs -------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(stocked: World) -> str:
    """A job that waits for an hour."""
    with stocked.registry.database.write() as catalogue:
        return catalogue.jobs.enqueue(
            "fit", {"pool": {"namespaces": ["acme"]}}, namespace="acme", created_by="nobody", delay=3600.0
        ).id


def test_jobs_are_listed_by_kind_and_state(browser: Signed, waiting: str) -> None:
    listed = browser.get("/jobs.json").json()["data"]
    page = browser.page("/jobs")
    assert re.findall(r'href="/jobs/(job-\w+)"', page) == [one["id"] for one in listed]
    queued = browser.get("/jobs.json?kind=fit&state=queued").json()["data"]
    assert waiting in {one["id"] for one in queued}
    assert {(one["kind"], one["state"]) for one in queued} == {("fit", "queued")}
    older = re.search(r'rel="next" href="([^"]+)"', browser.page("/jobs?limit=1"))
    assert older is not None
    assert browser.get(unescape(older[1])).status_code == 200
    assert "No such job" in read(browser.page("/jobs?state=failed&kind=train"))


def test_a_job_that_waits_can_be_cancelled_once_and_stays_so(browser: Signed, waiting: str) -> None:
    page = browser.page(f"/jobs/{waiting}")
    assert "It waits for its turn." in read(page)
    assert f'data-follow="/jobs/{waiting}/events"' in page
    assert '<noscript><meta http-equiv="refresh"' in page
    answer = browser.send(f"/jobs/{waiting}/cancel", f"/jobs/{waiting}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{waiting}")
    page = browser.page(f"/jobs/{waiting}")
    assert "cancelled" in read(page)
    assert "data-follow" not in page
    assert "refresh" not in page


def test_a_job_of_another_namespace_does_not_exist(stocked: World, cooked: str, waiting: str) -> None:
    outside = Signed(stocked, stocked.key(["read", "write"], ["other"]))
    for place in (cooked, f"/jobs/{waiting}", "/jobs/job-0000000000000000"):
        for path in (place, f"{place}.json", f"{place}/events", f"{place}/weights.csv"):
            assert outside.get(path).status_code == 404, path
        form = {"form": outside.token("/jobs")}
        assert outside.client.post(f"{place}/cancel", data=form).status_code == 404
    assert outside.get("/jobs.json").json()["data"] == []


def test_a_job_that_worked_with_wider_rights_shows_no_names(stocked: World) -> None:
    """The result of a cook over more than a key sees is not shown, as over the API."""
    admin = Signed(stocked, stocked.admin)
    place = str(cook(admin, sample=TEXT, effort="instant", name="acme/wide").headers["location"])
    admin.get(f"{place}/events")
    narrow = Signed(stocked, stocked.key(["read"], ["acme"]))
    page = narrow.page(place)
    assert "The answer" not in page
    assert narrow.get(f"{place}.json").json()["result"] is None
    assert narrow.get(f"{place}/left-out.csv").status_code == 404
    assert "The answer" in admin.page(place)


def test_a_job_that_failed_says_why(stocked: World, browser: Signed) -> None:
    with stocked.registry.database.write() as catalogue:
        id = catalogue.jobs.enqueue(
            "fit", {"pool": {"namespaces": ["acme"]}}, namespace="acme", created_by="nobody", delay=3600.0
        ).id
    sql = "UPDATE jobs SET state = 'failed', error = ? WHERE id = ?"
    with stocked.runtime.database.engine.begin() as connection:
        connection.exec_driver_sql(sql, ('{"code": "invalid_sample", "message": "<b>No text</b> was left."}', id))
    page = browser.page(f"/jobs/{id}")
    assert "<b>No text</b> was left." in unescape(page)
    assert "<b>" not in page
