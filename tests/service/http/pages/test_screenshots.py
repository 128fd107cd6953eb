"""Pictures of the pages for the documentation, of a server that is filled here: four trained adapters and a soup.

`make screenshots` has them written into the documentation (`SCREENSHOTS` names the folder); otherwise they are looked
at and thrown away, so that what makes them goes on working.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from registry.base_model import LoadedBase
from registry.names import sha256_digest
from tests.browser import Browser, Page
from tests.repository import REPOSITORY
from tests.service.http.pages.page_checks import signed_in
from tests.service.http.stock import fit_selector
from tests.service.servers import BASE_ID, Live, World
from tests.service.without_processes import trains_here

pytestmark = [pytest.mark.slow, pytest.mark.long]

MOST = 140_000
"""Bytes of a picture."""
PICTURES = REPOSITORY / "docs" / "how-to" / "pictures"
WORDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "law": (
        ("The court held", "The judge found", "The appeal claimed"),
        ("that the contract of the seller", "that the lease of the tenant", "that the will of the widow"),
        ("was void.", "was binding on both parties.", "had been signed too late.", "could not be enforced."),
    ),
    "kitchen": (
        ("Heat the oil", "Melt the butter", "Warm the broth"),
        ("in a heavy pan, add the onions", "over a low flame, add the garlic", "in the oven, add the carrots"),
        ("and stir until golden.", "and cover with a lid.", "and season with salt.", "and serve with rice."),
    ),
    "sport": (
        ("The striker scored", "The keeper saved", "The captain missed"),
        ("in the second half of the final", "from the edge of the box", "after a long pass from the left"),
        ("and the crowd rose.", "and the match went on.", "before the whistle blew.", "to win the cup."),
    ),
    "weather": (
        ("Rain moves in", "Fog forms", "Strong wind blows"),
        ("from the west in the morning", "over the hills at night", "along the coast until noon"),
        ("and clears by evening.", "with a high of ten degrees.", "and frost is likely.", "before it turns dry."),
    ),
}
NOVEL = [
    f"{first} that the recipe of the {person} {last}"
    for first, person, last in product(
        ("The court held", "The judge found", "The appeal claimed"),
        ("cook", "baker", "widow"),
        (
            "was void: heat the oil and stir until golden.",
            "was binding: melt the butter and season with salt.",
            "had been signed too late: warm the broth and serve with rice.",
        ),
    )
]
SPEC: dict[str, Any] = {
    "adapter": {"bottleneck": 8},
    "recipe": {"steps": 120, "batch": 4, "block": 32, "learning_rate": 0.02},
}


@pytest.fixture(scope="module")
def filled(world: World, base: LoadedBase) -> World:
    """A server as somebody has it after an hour: everything on it came about as it would there, but in one process."""
    client, headers = world.client, world.headers(world.key(["read", "write", "infer"], ["team"]))

    def ended(answer: Any) -> Any:
        assert answer.status_code in {201, 202}, answer.text
        client.get(f"/v1/jobs/{answer.json()['id']}/events")
        job = client.get(f"/v1/jobs/{answer.json()['id']}").json()
        assert job["state"] == "succeeded", job
        return job["result"]

    for domain, alternatives in WORDS.items():
        data = b"".join(json.dumps({"text": " ".join(phrases)}).encode() + b"\n" for phrases in product(*alternatives))
        client.put(f"/v1/blobs/{sha256_digest(data)}", content=data, headers=headers)
        training = {
            "name": f"team/{domain}",
            "domain": domain,
            "base_model": BASE_ID,
            "texts": sha256_digest(data),
            "spec": SPEC,
            "valid_share": 0.25,
            "card": {"tags": ["reviewed"] if domain == "law" else []},
        }
        with pytest.MonkeyPatch.context() as patch:
            trains_here(patch, base)
            ended(client.post("/v1/trainings", json=training, headers=headers))
        job = client.get("/v1/jobs", params={"kind": "embed"}).json()["data"][0]["id"]
        client.get(f"/v1/jobs/{job}/events")
    client.put("/v1/adapters/team/law/aliases/prod", json={"version": 1})
    client.patch("/v1/namespaces/team", json={"protected_aliases": ["prod"]})
    fit_selector(world, namespace="team")
    cook = {"sample": {"texts": NOVEL}, "effort": "quick", "name": "team/menus", "wait": 0}
    assert not ended(client.post("/v1/soups", json=cook, headers=headers))["abstained"]
    ended(client.post("/v1/evaluations", json={}, headers=headers))
    return world


@pytest.fixture(scope="module")
def page(chrome: Browser, live: Live, filled: World) -> Iterator[Page]:
    with signed_in(chrome, live.url, filled.key(["read", "write", "infer"], ["team"])) as page:
        page.look(width=1100)
        yield page


@pytest.fixture
def take_picture(page: Page, tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Takes the picture of a name: it is small enough, and in the documentation already."""
    folder = Path(os.environ.get("SCREENSHOTS") or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)

    def take(name: str, **region: Any) -> None:
        page.evaluate("document.activeElement.blur()")
        page.picture(folder / f"{name}.png", **region)
        assert 5_000 < (folder / f"{name}.png").stat().st_size < MOST, name
        assert (PICTURES / f"{name}.png").is_file(), "run `make screenshots` and commit what it writes"

    return take


@pytest.mark.parametrize(
    ("name", "path", "text", "high"),
    [
        ("models", "/models", "team/menus", 960),
        ("soup", "/soups/team/menus@1", "lower perplexity than the base model", 1000),
        ("matrix", "/matrix", "all 16 pairs are evaluated", 790),
    ],
)
def test_a_page(page: Page, take_picture: Callable[..., None], name: str, path: str, text: str, high: int) -> None:
    page.open(path)
    assert text in page.text("main")
    take_picture(name, high=high)


def test_cook(page: Page, take_picture: Callable[..., None]) -> None:
    page.open("/cook")
    page.fill("#sample", "\n\n".join(NOVEL[:5]))
    take_picture("cook", high=900)


def test_map(page: Page, take_picture: Callable[..., None]) -> None:
    page.open("/map")
    page.fill("#text", "\n\n".join(NOVEL[:8]))
    page.click("#place ~ form button")
    page.until("document.querySelector('img.plot[src*=\"&x=\"]') !== null && document.readyState === 'complete'")
    take_picture("map", high=1000)


def test_playground(page: Page, take_picture: Callable[..., None]) -> None:
    page.open("/playground?model=team/law@1&model=team/kitchen@1&mix=team/law@1*0.6&mix=team/kitchen@1*0.4")
    page.fill("#prompt", "The court")
    page.evaluate("document.querySelector('#max_tokens').value = '24'")
    page.evaluate("document.querySelector('#temperature').value = '0'")
    page.click("[data-begin]")
    page.until("document.querySelectorAll('.answers [data-table]:not([hidden])').length === 2")
    take_picture("playground", high=1180)


def test_training(page: Page, take_picture: Callable[..., None], filled: World) -> None:
    id = filled.client.get("/v1/jobs", params={"kind": "train"}).json()["data"][0]["id"]
    page.open(f"/trainings/{id}")
    take_picture("training", high=990)
