"""The documentation as a site: every link between its files leads somewhere, and its search finds sections."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from docs import generate, site
from tests.browser import Browser
from tests.service.http.pages.looked_at import check_looks

pytestmark = pytest.mark.slow


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """No line for each request."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    assert site.build(folder) == len(generate.pages())
    return folder


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_folder_of_other_files_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(FileExistsError, match="holds other files than a site"):
        site.build(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_every_link_leads_to_a_file_and_its_anchor(folder: Path) -> None:
    anchors = {
        file.relative_to(folder): set(re.findall(r' id="([^"]+)"', file.read_text())) for file in folder.rglob("*.html")
    }
    for page in anchors:
        for link in re.findall(r'(?:href|src)="([^"]+)"', (folder / page).read_text()):
            place, _, anchor = unescape(link).partition("#")
            if re.match(r"https?:", place):
                continue
            file = (folder / page.parent / place).resolve() if place else folder / page
            assert file.is_file(), f"{page}: {link}"
            if anchor:
                assert anchor in anchors[file.relative_to(folder.resolve())], f"{page}: {link}"


def test_sections_have_the_text_below_their_heading(folder: Path) -> None:
    text = (folder / "sections.js").read_text().removeprefix("window.SECTIONS = ").removesuffix(";\n")
    sections = {url: (title, heading, text) for title, heading, url, text in json.loads(text)}
    title, heading, text = sections["docs/reference/cli.html#soup-cook"]
    assert (title, heading) == ("Command line", "soup cook")
    assert "Cook a soup for a sample, or by a recipe." in text


def test_a_search_shows_sections_and_leads_to_them(chrome: Browser, address: str) -> None:
    with chrome.page(address) as page:
        page.open("/docs/how-to/install.html")
        page.evaluate("document.querySelector('#find').focus()")
        page.until("window.SECTIONS !== undefined")
        page.fill("#find", "soup cook")
        page.until("document.querySelectorAll('.results li').length > 3")
        assert "Command line: soup cook" in page.text(".results")
        check_looks(page)
        page.click(".results li a")
        page.until("location.hash !== '' && document.readyState === 'complete'")
        assert not page.said, page.said
