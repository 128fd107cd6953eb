"""Cooking by a form, and the pages of jobs: what is asked for, what is refused, what came of it, who sees it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from itertools import islice
from typing import Any, get_args

import httpx2
import pytest

from registry.spec import Cooked, Effort, Recipe, RecipeIngredient, Spent
from service.http.pages.cook import EFFORT_HINTS
from service.http.routes import jobs
from tests.service.http.pages.cook_evidence import evidence
from tests.service.http.pages.page_session import PageSession, check_says, read
from tests.service.http.stock import queue_job, set_job
from tests.service.servers import Live, World

SETTINGS = {"job_workers": 0, "default_effort": "tune"}  # what is asked for waits, and nothing is computed
PASSAGES = [
    f"The court held that contract\nnumber {number} was void for want of consideration." for number in range(25)
]
TEXT = "\n\n".join(PASSAGES).replace("\n", "\r\n")  # as browsers send a text field
HOSTILE = "</textarea><script>alert(1)</script>\"'<b>{{7*7777}}"


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    world.push("acme/law", seed=1, domain="law")
    return world


def cook(browser: PageSession, **fields: str) -> Any:
    return browser.send("/cook", "/cook", **fields)


def ended(world: World, place: str, *, abstained: bool = True) -> str:
    """A job of a cook, ended with what one that weighed adapters gives: a browser sees a real one to its end."""
    about = {"model": "base/tiny", "digest": None, "soup_id": None} if abstained else _of_law(world)
    cooked = Cooked(abstained=abstained, reason="Because.", evidence=evidence(), spent=Spent(seconds=7.4), **about)
    id = place.rpartition("/")[2]
    set_job(world, id, state="succeeded", result=cooked.model_dump_json(), started_at=1, finished_at=8400001)
    return place


def _of_law(world: World) -> dict[str, Any]:
    with world.registry.database.read() as catalogue:
        row = catalogue.adapters.list(None, name="acme/law", limit=1, cursor=None).rows[0]
    recipe = Recipe(
        base_fingerprint=row.base_fingerprint, ingredients=(RecipeIngredient(digest=row.digest, weight="1"),)
    )
    return {"model": row.ref, "digest": row.digest, "soup_id": row.id, "recipe": recipe}


def test_a_form_asks_for_what_the_api_is_asked_for(stocked: World, browser: PageSession) -> None:
    place = cook(browser, sample=TEXT, effort="quick", control="yes", name="acme/contracts").headers["location"]
    job = stocked.client.get(f"/v1{place}").json()
    assert (job["kind"], job["state"]) == ("search", "queued")
    audit = stocked.client.get("/v1/audit", params={"subject": job["id"]}).json()["data"]
    assert [(entry["action"], entry["detail"]["name"]) for entry in audit] == [("soup.ask", "acme/contracts")]
    with stocked.registry.database.read() as catalogue:
        arguments = catalogue.jobs.get(None, job["id"]).arguments
    request = json.loads(stocked.registry.blobs.read(arguments["request"]))["request"]
    assert (request["effort"], request["control"], request["sample"]["texts"]) == ("quick", True, PASSAGES)
    assert arguments["scope"] == ["acme"]
    assert browser.get(f"{place}.json").json()["id"] == job["id"]


@pytest.mark.parametrize("abstained", [True, False])
def test_what_came_of_it_is_a_report(stocked: World, browser: PageSession, abstained: bool) -> None:
    place = ended(stocked, cook(browser, sample=TEXT, effort="quick").headers["location"], abstained=abstained)
    events = browser.get(f"{place}/events")
    assert events.headers["content-type"].startswith("text/event-stream")
    assert events.text.startswith("event: done\ndata: ")
    page = browser.page(place)
    text = read(page)
    assert ("The base model is the answer" in text) == abstained
    assert ("no candidate is known to do better" in text) == abstained
    assert ('href="/models/acme/law@1"' in page) == (not abstained or "acme/law@1" in text)
    for words in ("Because.", "Duration 7.4 s", "after 8.4 s"):
        assert words in text
    assert "Cancel" not in text
    names = re.findall(rf'href="{place}/([a-z-]+)\.csv"', page)
    assert {"differences", "candidates", "left-out"} <= set(names)
    for name in names:
        assert browser.get(f"{place}/{name}.csv").status_code == 200


def test_the_form_says_what_can_be_asked_for(browser: PageSession) -> None:
    options = browser.get("/cook.json").json()
    assert options["base_models"] == ["tiny"]
    assert list(options["efforts"]) == list(get_args(Effort)) == list(EFFORT_HINTS)
    assert 'id="effort-tune" value="tune" checked' in browser.page("/cook")


def test_the_default_effort_of_the_form_is_queued_where_tuning_is_forbidden(
    stocked: World, browser: PageSession
) -> None:
    """Its cook takes `quick` instead, and says why."""
    namespace = "/v1/namespaces/acme"
    assert stocked.client.patch(namespace, json={"tuning": "forbid"}).status_code == 200
    place = cook(browser, sample=TEXT, effort="tune").headers["location"]
    with stocked.registry.database.read() as catalogue:
        arguments = catalogue.jobs.get(None, place.rpartition("/")[2]).arguments
    request = json.loads(stocked.registry.blobs.read(arguments["request"]))["request"]
    assert (request["effort"], arguments["effort"]) == (None, "tune")
    assert stocked.client.patch(namespace, json={"tuning": "allow"}).status_code == 200


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"sample": ""}, 422, "Paste some text"),
        ({"sample": " \r\n\r\n "}, 422, "Paste some text"),
        ({"sample": "One paragraph."}, 422, "send at least 5"),
        ({"sample": '{"text": 1}'}, 422, "The sample, line 1,"),
        ({"sample": TEXT, "effort": "huge"}, 400, "effort"),
        ({"sample": TEXT, "name": "other/x"}, 403, "may not write in namespace"),
        ({"sample": TEXT, "base_model": "nothing"}, 400, "is not on the allowlist"),
    ],
)
def test_what_cannot_be_cooked_is_said_beside_the_form(
    browser: PageSession, fields: dict[str, str], status: int, message: str
) -> None:
    answer = cook(browser, **{"effort": "instant", **fields})
    check_says(answer, status, message)
    assert 'role="alert"' in answer.text
    if fields["sample"].strip():
        assert fields["sample"].splitlines()[0] in unescape(answer.text)  # nobody types it twice


def test_what_was_typed_comes_back_as_text(browser: PageSession) -> None:
    assert HOSTILE in unescape(cook(browser, sample=HOSTILE, name=HOSTILE, effort=HOSTILE).text)


@pytest.mark.parametrize("packed", ["\x1f\ufffd\x08", "\x00", "text \ufffd"])
def test_what_a_browser_makes_of_a_packed_file_is_no_sample(browser: PageSession, packed: str) -> None:
    check_says(cook(browser, sample=packed + TEXT), 422, "unpack it first")


# --- jobs -------------------------------------------------------------------------------------------


@pytest.fixture
def waiting(stocked: World) -> str:
    """A job that waits for an hour."""
    return queue_job(stocked)


def test_jobs_are_listed_by_kind_and_state(browser: PageSession, waiting: str) -> None:
    listed = browser.get("/jobs.json").json()["data"]
    assert re.findall(r'href="/jobs/(job-\w+)"', browser.page("/jobs")) == [job["id"] for job in listed]
    queued = browser.get("/jobs.json?kind=fit&state=queued").json()["data"]
    assert waiting in {job["id"] for job in queued}
    assert {(job["kind"], job["state"]) for job in queued} == {("fit", "queued")}
    older = re.search(r'rel="next" href="([^"]+)"', browser.page("/jobs?limit=1"))
    assert browser.get(unescape(older[1])).status_code == 200
    assert "No matching jobs" in read(browser.page("/jobs?state=failed&kind=train"))


def test_a_job_that_waits_can_be_cancelled_once_and_stays_so(browser: PageSession, waiting: str) -> None:
    page = browser.page(f"/jobs/{waiting}")
    assert "Waiting in the queue." in read(page)
    assert f'data-follow="/jobs/{waiting}/events"' in page
    assert '<noscript><meta http-equiv="refresh"' in page
    answer = browser.send(f"/jobs/{waiting}/cancel", f"/jobs/{waiting}")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{waiting}")
    page = browser.page(f"/jobs/{waiting}")
    assert "cancelled" in read(page)
    assert "data-follow" not in page
    assert "refresh" not in page


ENDS: dict[str, Callable[[World, PageSession, dict[str, Any]], Any]] = {
    "signed out": lambda _, browser, key: browser.send("/sign-in/out", "/jobs"),
    "revoked": lambda world, _, key: world.client.delete(f"/v1/keys/{key['id']}"),
    "without the scope": lambda world, _, key: changed(world, key, scopes=["infer"]),
    "of another namespace": lambda world, _, key: changed(world, key, namespaces=["other"]),
}


def changed(world: World, key: dict[str, Any], **fields: Any) -> None:
    assert world.client.patch(f"/v1/keys/{key['id']}", json=fields).status_code == 200


@pytest.mark.parametrize(
    ("path", "by", "end"),
    [("/jobs/{}/events", "session", "signed out"), ("/jobs/{}/events", "session", "revoked")]
    + [("/v1/jobs/{}/events", "key", end) for end in ("revoked", "without the scope", "of another namespace")],
)
def test_who_follows_a_job_is_told_nothing_more_once_signed_out_or_revoked(
    live: Live, waiting: str, path: str, by: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "KEEPALIVE_SECONDS", 0.02)
    world, about = live.world, {"name": "k", "scopes": ["read"], "namespaces": ["acme"]}
    key = world.client.post("/v1/keys", json=about).json()
    browser = PageSession(world, key["secret"])
    session_cookie = f"soup-session={browser.client.cookies['soup-session']}"
    headers = {"cookie": session_cookie} if by == "session" else {"authorization": f"Bearer {key['secret']}"}
    with httpx2.stream("GET", live.url + path.format(waiting), headers=headers, timeout=30) as answer:
        lines = answer.iter_lines()
        assert next(lines) == "event: progress"
        while next(lines) != ": still running":
            pass
        ENDS[end](world, browser, key)
        with world.registry.database.read() as catalogue:
            assert catalogue.jobs.get(None, waiting).state == "queued"
        rest = list(islice(lines, 400))
        assert len(rest) < 400, "the stream has no end"
        assert set(rest) <= {"", ": still running"}


def test_a_job_that_worked_with_wider_rights_shows_no_names(stocked: World) -> None:
    """The result of a cook over more than a key sees is not shown, as over the API."""
    admin = PageSession(stocked, stocked.admin)
    place = str(cook(admin, sample=TEXT, effort="quick", name="acme/wide").headers["location"])
    ended(stocked, place)
    narrow = PageSession(stocked, stocked.key(["read"], ["acme"]))
    assert "Result" not in narrow.page(place)
    assert narrow.get(f"{place}.json").json()["result"] is None
    assert narrow.get(f"{place}/left-out.csv").status_code == 404
    assert "Result" in admin.page(place)


def test_a_job_that_failed_says_why(stocked: World, browser: PageSession) -> None:
    id = queue_job(stocked)
    error = {"code": "invalid_sample", "message": "<b>No text</b> was left."}
    set_job(stocked, id, state="failed", error=json.dumps(error))
    page = browser.page(f"/jobs/{id}")
    assert "<b>No text</b> was left." in unescape(page)
    assert "<b>" not in page
