"""The documentation as a site: every link between its files leads somewhere, and its search finds sections."""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from html import unescape
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from docs import generate, site
from tests.browser import Browser
from tests.service.http.pages.page_checks import check_looks

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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose only page repeats a heading."""
    root = tmp_path / "repository"
    shutil.copytree(generate.ROOT / site.STATIC, root / site.STATIC)
    (root / "README.md").write_text("# Changes\n\n## 2.0\n\n### Added\n\nPears.\n\n## 1.0\n\n### Added\n\nApples.\n")
    return root


def test_repeated_headings_have_anchors_of_their_own(root: Path, tmp_path: Path) -> None:
    site.build(tmp_path / "site", root)
    assert re.findall(r'<h3 id="([^"]+)"', (tmp_path / "site" / "index.html").read_text()) == ["added", "added-1"]
    urls = {text: url for _, _, url, text in sections_of(tmp_path / "site")}
    assert (urls["Pears."], urls["Apples."]) == ("index.html#added", "index.html#added-1")


def test_a_site_is_replaced_by_a_complete_one(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    (root / "CHANGELOG.md").write_text("# Changes of old")
    assert site.build(target, root) == 2
    (root / "CHANGELOG.md").write_text("No heading.")
    with pytest.raises(StopIteration):
        site.build(target, root)
    assert "Changes of old" in (target / "CHANGELOG.html").read_text()
    (root / "CHANGELOG.md").unlink()
    assert site.build(target, root) == 1
    assert not (target / "CHANGELOG.html").exists()
    assert sorted(tmp_path.iterdir()) == [root, target]


def test_every_link_leads_to_a_file_and_its_anchor(folder: Path) -> None:
    anchors = {file.relative_to(folder): ids_of(file) for file in folder.rglob("*.html")}
    for page in anchors:
        for link in re.findall(r'(?:href|src)="([^"]+)"', (folder / page).read_text()):
            place, _, anchor = unescape(link).partition("#")
            if re.match(r"https?:", place):
                continue
            file = (folder / page.parent / place).resolve() if place else folder / page
            assert file.is_file(), f"{page}: {link}"
            if anchor:
                assert anchor in anchors[file.relative_to(folder.resolve())], f"{page}: {link}"


def ids_of(page: Path) -> set[str]:
    ids = re.findall(r' id="([^"]+)"', page.read_text())
    assert len(set(ids)) == len(ids), page
    return set(ids)


def sections_of(folder: Path) -> list[tuple[str, str, str, str]]:
    """Title, heading, address and text of each section."""
    text = (folder / "sections.js").read_text().removeprefix("window.SECTIONS = ").removesuffix(";\n")
    return [(title, heading, url, text) for title, heading, url, text in json.loads(text)]


def test_sections_have_the_text_below_their_heading(folder: Path) -> None:
    sections = {url: (title, heading, text) for title, heading, url, text in sections_of(folder)}
    title, heading, text = sections["docs/reference/cli.html#soup-cook"]
    assert (title, heading) == ("Command line", "soup cook")
    assert "Cook a soup for a sample, or by a recipe." in text


def test_a_search_shows_sections_and_leads_to_them(chrome: Browser, address: str) -> None:
    with chrome.page(address) as page:
        page.open("/docs/how-to/run-a-server.html")
        page.evaluate("document.querySelector('#find').focus()")
        page.until("window.SECTIONS !== undefined")
        page.fill("#find", "soup cook")
        page.until("document.querySelectorAll('.results li').length > 3")
        assert "Command line: soup cook" in page.text(".results")
        check_looks(page)
        page.click(".results li a")
        page.until("location.hash !== '' && document.readyState === 'complete'")
        assert not page.console_messages, page.console_messages
