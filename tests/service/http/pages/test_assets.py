"""Files of the pages: who gets them, for how long they are kept, that others' are as published, how large they are."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from service.http import docs_page
from service.http.pages.assets import FILES, VENDORED
from tests.service.http.pages.page_checks import AXE
from tests.service.http.pages.page_session import PageSession, elements
from tests.service.servers import World

MOST = 150_000
"""Bytes of the first page with all that it loads, packed."""


@pytest.mark.parametrize("folder", [VENDORED, AXE, docs_page.FILES])
def test_what_others_wrote_is_as_it_was_published(folder: Path) -> None:
    published = json.loads((folder / "VENDORED.json").read_text())
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    assert digests.pop("VENDORED.json")
    assert digests == published["sha256"]


def test_files_are_kept_for_ever_by_their_digest_and_asked_for_again_without(world: World) -> None:
    browser = PageSession(world, world.key(["read", "write"], ["acme"]))
    places = {at.get("href") or at["src"] for tag, at in elements(browser.page("/push")) if tag in {"link", "script"}}
    assert {re.split(r"[/?]", place)[2] for place in places} == set(FILES)
    for place in places:
        answer = browser.get(place)
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.content == FILES[re.split(r"[/?]", place)[2]][0].read_bytes()
        plain = browser.get(place.partition("?")[0], headers={"accept-encoding": "identity"})
        assert plain.headers["cache-control"] == "no-cache"
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content
        revalidated = browser.get(place, headers={"if-none-match": answer.headers["etag"]})
        assert (revalidated.status_code, revalidated.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing", "..%2Fassets.py", "%2e%2e%2f", "VENDORED.json", "soup.css%00"])
def test_no_other_file_is_one(world: World, name: str) -> None:
    assert PageSession(world).get(f"/assets/{name}").status_code in {401, 404}


def test_the_first_page_is_small(world: World) -> None:
    page = PageSession(world).page("/sign-in")
    loaded = {at.get("href") or at.get("src", "") for tag, at in elements(page) if tag in {"link", "script", "img"}}
    names = {re.split(r"[/?]", place)[2] for place in loaded}
    assert names == {"soup.css", "soup.js", "htmx.min.js", "icon.svg"}
    files = sum(len(gzip.compress(FILES[name][0].read_bytes())) for name in names)
    assert len(gzip.compress(page.encode())) + files < MOST
