"""The pages of trainings and of fitted selectors, and the losses of whatever was trained or tuned."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from registry.base_model import LoadedBase
from registry.names import sha256_digest
from service.http.pages.losses import MAX_ROWS, losses_table, training_losses, tuning_losses
from tests.browser import Browser
from tests.registry.catalogue_rows import statements
from tests.service.http.pages.page_checks import look_at, signed_in
from tests.service.http.pages.page_session import HOSTILE, PageSession, read
from tests.service.http.stock import cook_soup, fit_selector, push_embedded, queue_job, set_job
from tests.service.servers import BASE_ID, Live, World
from tests.service.without_processes import trains_here

TEXTS = [f"The judge of court {number} held that contract {number * 7} was void." for number in range(60)]
SPEC: dict[str, Any] = {
    "adapter": {"bottleneck": 4},
    "recipe": {"steps": 4, "batch": 2, "block": 32, "learning_rate": 0.01},
}
HISTORY = {
    "best_step": 20,
    "train_history": [[10, 3.5], [20, 3.0], [30, 2.5]],
    "valid_history": [[0, 4.0], [20, 3.25], [30, 3.5]],
}


@pytest.fixture(scope="module")
def stocked(world: World) -> World:
    """Two domains with a fitted selector, a soup that it chose for, and a training that succeeded."""
    for seed, (name, text) in enumerate({"law": "The court held number {}.", "food": "Heat {} onions."}.items()):
        push_embedded(world, f"acme/{name}", [text.format(number) for number in range(25)], seed=seed, domain=name)
    world.push("acme/long", seed=3, domain=HOSTILE, provenance={"training": HISTORY})
    return world


@pytest.fixture(scope="module")
def trained(stocked: World, base: LoadedBase) -> str:
    """The id of a training that has pushed its adapter."""
    client = stocked.client
    data = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
    assert client.put(f"/v1/blobs/{sha256_digest(data)}", content=data).status_code == 201
    body = {
        "name": "acme/trained",
        "domain": HOSTILE,
        "base_model": BASE_ID,
        "texts": sha256_digest(data),
        "spec": SPEC,
        "valid_share": 0.4,
        "card": {"description": HOSTILE},
    }
    with pytest.MonkeyPatch.context() as patch:
        trains_here(patch, base)
        id = client.post("/v1/trainings", json=body).json()["id"]
        client.get(f"/v1/jobs/{id}/events")
    assert client.get(f"/v1/jobs/{id}").json()["state"] == "succeeded"
    return str(id)


# --- trainings --------------------------------------------------------------------------------------------


def test_a_training_shows_what_came_of_it_and_the_losses_of_its_record(
    stocked: World, browser: PageSession, trained: str
) -> None:
    (listed,) = browser.get("/trainings.json?state=succeeded").json()["data"]
    assert (listed["name"], listed["adapter"]) == ("acme/trained", "acme/trained@1")
    assert listed["job"] == browser.get(f"/jobs/{trained}.json").json()
    assert 'href="/models/acme/trained@1"' in browser.page("/trainings")
    training = browser.get(f"/trainings/{trained}.json").json()
    record = stocked.client.get("/v1/adapters/acme/trained").json()["provenance"]["training"]
    assert training["losses"] == {
        "by": "step",
        "best": record["best_step"],
        "training": record["train_history"],
        "held_out": record["valid_history"],
    }
    assert training["asked"]["spec"]["recipe"]["steps"] == 4
    page = browser.page(f"/trainings/{trained}")
    (texts,) = browser.plots(page)
    assert {"held out", "in training", "step"} <= texts
    assert f'href="/jobs/{trained}"' in page
    rows = list(csv.DictReader(browser.get(f"/trainings/{trained}/losses.csv").text.splitlines()))
    assert [float(row["Held-out loss"]) for row in rows if row["Held-out loss"]] == [
        loss for _, loss in record["valid_history"]
    ]


def test_the_version_that_was_trained_has_the_same_losses(browser: PageSession, trained: str) -> None:
    losses = browser.get("/models/acme/trained@1.json").json()["losses"]
    assert losses == browser.get(f"/trainings/{trained}.json").json()["losses"]
    assert "Training curve" in browser.page("/models/acme/trained@1")
    model_csv, training_csv = (
        browser.get(f"{path}/losses.csv").text for path in ("/models/acme/trained@1", f"/trainings/{trained}")
    )
    assert model_csv == training_csv
    assert browser.get("/models/acme/law@1/losses.csv").status_code == 404
    assert "curve" not in browser.page("/models/acme/law@1")


def test_a_tuned_soup_has_the_losses_of_its_passes(stocked: World, browser: PageSession) -> None:
    report = {
        "passes": 2,
        "kept": 1,
        "rate": "0.005",
        "losses": [3.5, 3.25, 3.4],
        "trained_losses": [3.3, 3.0],
        "trainings": 1,
    }
    cook_soup(stocked, "acme/tuned", {"acme/law": 1, "acme/food": 1}, {"search": {"tuning": report}})
    with stocked.runtime.database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE adapters SET tuned_on = ? WHERE name = 'tuned'", ("sha256:" + "1" * 64,))
    assert browser.get("/models/acme/tuned@1.json").json()["losses"] == {
        "by": "pass",
        "best": 1,
        "training": [[1, 3.3], [2, 3.0]],
        "held_out": [[0, 3.5], [1, 3.25], [2, 3.4]],
    }
    assert "Tuning curve" in browser.page("/models/acme/tuned@1")


def queue_training(world: World, *, name: str = "acme/none", reach: tuple[str, ...] = ("acme",)) -> str:
    """A training that waits, asked for by a key that reads `reach`."""
    request = {"name": name, "domain": "x", "base_model": BASE_ID}
    arguments = {"request": request, "reach": list(reach), "scope": ["acme"], "request_id": "r", "key": "0" * 64}
    return queue_job(world, "train", arguments)


def test_of_a_training_that_failed_there_is_nothing_to_draw(stocked: World, browser: PageSession) -> None:
    id = queue_training(stocked)
    assert "The plot appears with the first losses" in browser.page(f"/trainings/{id}")
    stocked.client.post(f"/v1/jobs/{id}/cancel")
    assert "ended without an adapter" in browser.page(f"/trainings/{id}")
    assert browser.get(f"/trainings/{id}/losses.csv").status_code == 404
    id = queue_training(stocked, reach=("acme", "other"))
    assert "acme/none" not in browser.page(f"/trainings/{id}")
    assert browser.get(f"/trainings/{id}.json").json()["asked"] is None


def test_of_one_that_came_to_nothing_its_own_losses_are_drawn_with_its_error(
    stocked: World, browser: PageSession
) -> None:
    def failed(reach: tuple[str, ...], error: str) -> str:
        id = queue_training(stocked, reach=reach)
        with stocked.registry.database.write() as catalogue:
            catalogue.curves.put(id, {"train_history": [[1, 9.0]]})
            catalogue.curves.put(id, HISTORY)
        report = json.dumps({"done": 30, "total": 100, "message": ""})
        error_body = json.dumps({"code": "invalid_parameter", "message": error})
        set_job(stocked, id, state="failed", progress=report, error=error_body)
        return id

    id = failed(("acme",), f"Training diverged at step 31. {HOSTILE}")
    losses = browser.get(f"/trainings/{id}.json").json()["losses"]
    assert (losses["held_out"], losses["best"]) == (HISTORY["valid_history"], 20)
    page = browser.page(f"/trainings/{id}")
    assert "It failed after step 30 of 100, and nothing was pushed: Training diverged at step 31." in read(page)
    assert len(browser.plots(page)) == 1
    assert browser.get(f"/trainings/{id}/losses.csv").text.count("\n") == 5
    hidden = failed(("acme", "other"), "Not for this key.")
    assert browser.get(f"/trainings/{hidden}.json").json()["losses"] is None
    assert "Not for this key" not in browser.page(f"/trainings/{hidden}")
    assert browser.get(f"/trainings/{hidden}/losses.csv").status_code == 404


def test_what_is_no_training_and_what_is_anothers_are_not_there(
    stocked: World, browser: PageSession, trained: str
) -> None:
    fit = next(job["id"] for job in stocked.client.get("/v1/jobs").json()["data"] if job["kind"] != "train")
    outsider = PageSession(stocked, stocked.key(["read"], ["other"]))
    for asks, id in ((browser, fit), (browser, "job-" + "0" * 16), (outsider, trained)):
        for path in ("", ".json", "/losses.csv"):
            assert asks.get(f"/trainings/{id}{path}").status_code == 404, (id, path)
    assert outsider.get("/trainings.json").json()["data"] == []
    assert "acme" not in outsider.page("/trainings")


def test_a_training_whose_adapter_was_retired_says_so(stocked: World, browser: PageSession, trained: str) -> None:
    stocked.client.delete("/v1/adapters/acme/trained")
    assert "which is retired or purged" in read(browser.page(f"/trainings/{trained}"))
    assert browser.get(f"/trainings/{trained}.json").json()["gone"] is True
    assert stocked.client.post("/v1/adapters/acme/trained@1/restore").status_code == 200
    assert browser.get(f"/trainings/{trained}.json").json()["gone"] is False


def test_a_live_adapter_without_a_record_is_not_said_to_be_gone(stocked: World, browser: PageSession) -> None:
    id = queue_training(stocked, name="acme/law")
    stocked.client.post(f"/v1/jobs/{id}/cancel")
    set_job(stocked, id, result='{"adapter": "acme/law@1"}')
    page = read(browser.page(f"/trainings/{id}"))
    assert "pushed without a training record" in page
    assert "were removed" not in page
    stocked.client.delete("/v1/adapters/acme/law@1")
    assert "The adapter and its training record were removed" in read(browser.page(f"/trainings/{id}"))
    stocked.client.post("/v1/adapters/acme/law@1/restore")


# --- what is read of a record -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "history",
    [
        HOSTILE,
        {"0": 1.0},
        [[0, HOSTILE]],
        [[0, None]],
        [[True, 1.0]],
        [[0]],
        [1.0, 2.0],
        [[2, 1.0], [1, 1.0]],
        [[0, 1e300]],
        [[-1, 1.0]],
        [[2**60, 1.0]],
        [[0, 1.0], [0, 2.0]],
    ],
)
def test_a_record_that_is_not_as_our_trainer_writes_it_is_not_drawn(history: Any) -> None:
    assert training_losses({"valid_history": history, "train_history": history, "best_step": HOSTILE}) is None
    half = training_losses({"valid_history": history, "train_history": [[1, 2.0]], "best_step": history})
    assert (half.held_out, half.best) == ([], None)


def test_a_best_step_that_is_true_is_no_step() -> None:
    assert training_losses({"valid_history": [[0, 2.0], [1, 1.0]], "best_step": True}).best is None


def test_a_long_history_is_a_short_table_that_has_the_best_and_the_last_step() -> None:
    history = [[step, 5.0 - step / 1000] for step in range(0, 1000, 2)]
    losses = training_losses({"valid_history": history, "best_step": 734})
    steps = [row[0] for row in losses_table(losses, max_rows=MAX_ROWS).rows]
    assert len(steps) <= MAX_ROWS + 2
    assert {0, 734, 998} <= set(steps)
    assert len(losses_table(losses).rows) == 500


def test_evidence_of_before_says_what_it_knows() -> None:
    report = {"passes": 1, "kept": 0, "rate": "0.005", "losses": [3.5, 3.6], "trainings": 1}
    losses = tuning_losses([{"search": {"tuning": report}}, {"search": None}, {}])
    assert (losses.training, losses.held_out, losses.best) == ([], [(0, 3.5), (1, 3.6)], 0)
    assert tuning_losses([{"search": {}}]) is None


# --- selectors --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(stocked: World) -> str:
    """The id of a selector, and a soup that was cooked with it."""
    selector = fit_selector(stocked)
    chosen = {"selector": selector}
    cook_soup(stocked, "acme/chosen", {"acme/law": 1, "acme/food": 2}, chosen, chosen)
    return selector


def test_a_selector_shows_its_pool_its_measurements_and_who_was_chosen_with_it(
    stocked: World, browser: PageSession, fitted: str
) -> None:
    assert fitted in {selector["id"] for selector in browser.get("/selectors.json").json()["data"]}
    body = browser.get(f"/selectors/{fitted}.json").json()
    there = stocked.client.get(f"/v1/selectors/{fitted}").json()
    assert body["selector"] == there
    assert body["used_by"] == ["acme/chosen@1"]
    page = read(browser.page(f"/selectors/{fitted}"))
    for text in ("Posterior selector", "held out accuracy", "acme, base tiny", "In use", "acme/chosen@1"):
        assert text in page
    rows = list(csv.DictReader(browser.get(f"/selectors/{fitted}/members.csv").text.splitlines()))
    assert [row["Adapter"] for row in rows] == [member["ref"] for member in there["members"]]


def test_a_selector_that_measures_nothing_is_listed_too(stocked: World, browser: PageSession, fitted: str) -> None:
    uniform = fit_selector(stocked, "uniform")
    page = read(browser.page("/selectors"))
    assert uniform in page
    assert fitted in page


def test_a_pool_is_read_once_for_all_its_selectors_in_a_list(stocked: World, browser: PageSession, fitted: str) -> None:
    with statements(stocked.registry.database) as statements_before:
        browser.page("/selectors")
    fit_selector(stocked, seed=1)
    with statements(stocked.registry.database) as statements_after:
        browser.page("/selectors")
    pools = [sum("FROM adapters" in statement for statement in run) for run in (statements_before, statements_after)]
    assert pools[0] == pools[1] > 0


def test_what_a_selector_does_not_know_yet_is_named(stocked: World, browser: PageSession, fitted: str) -> None:
    texts = [f"Goals of player {number} in the match." for number in range(25)]
    push_embedded(stocked, "acme/sport", texts, seed=9, domain=HOSTILE)
    page = browser.page(f"/selectors/{fitted}")
    there = browser.get(f"/selectors/{fitted}.json").json()["selector"]
    assert ("acme/sport@1" in page) == ("acme/sport@1" in there["not_yet_included"]) is True


# --- in a browser -----------------------------------------------------------------------------------------


def test_they_are_looked_at(chrome: Browser, live: Live, trained: str, fitted: str) -> None:
    with signed_in(chrome, live.url, live.world.key(["read", "write"], ["acme"])) as page:
        for path in (
            "/trainings",
            f"/trainings/{trained}",
            "/models/acme/long@1",
            "/selectors",
            f"/selectors/{fitted}",
        ):
            look_at(page, path)
