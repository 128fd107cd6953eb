"""Writes the documentation as HTML pages with an offline search (`make docs`, into `site/`).

The paths are those of the repository, with `index.html` for a README. Links to other files of the repository are
kept, and these files are copied.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.token import Token

from docs import generate

FILES = Path(__file__).with_name("site_files")
STATIC = Path("service") / "http" / "pages" / "static"
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
INDEX = "sections.js"
SECTION_LETTERS = 1500
"""Characters of a section that the search reads."""
MENU = {
    "docs/tutorial.md": "Tutorial",
    "docs/README.md": "All pages",
    "docs/reference/api.md": "HTTP API",
    "docs/reference/cli.md": "Command line",
    "docs/reference/settings.md": "Settings",
    "docs/explanation/comparison.md": "Comparison",
    "CHANGELOG.md": "Changes",
}


@dataclass(frozen=True)
class Section:
    """A heading of a page, the page's title, the address of the heading, and the text below it."""

    title: str
    heading: str
    url: str
    text: str


def build(target: Path, root: Path = generate.ROOT) -> int:
    """Write the site into `target`, and return the number of pages; raises FileExistsError for a folder with other
    files.

    An existing site is replaced once the new one is complete, because a server may be serving it.
    """
    target = target.resolve()
    if target.exists() and not (target / INDEX).is_file() and any(target.iterdir()):
        raise FileExistsError(f"{target} holds other files than a site: name a new folder.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as temporary:
        folder = Path(temporary) / "new"
        pages = _write_site(folder, root)
        if target.exists():
            target.rename(folder.with_name("old"))
        folder.rename(target)
    return pages


def _write_site(folder: Path, root: Path) -> int:
    template = Environment(
        loader=FileSystemLoader(FILES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).get_template("page.html")
    pages = set(generate.pages(root))
    sections: list[Section] = []
    files: set[Path] = set()
    for path in sorted(pages):
        tokens = _parser().parse(COMMENT.sub("", (root / path).read_text(encoding="utf-8")))
        sections += _sections(path, tokens)
        files |= _adapt_links(path, tokens, pages, root)
        up = os.path.relpath(".", path.parent)
        menu = [(f"{up}/{html_path(Path(page))}", name, Path(page) == path) for page, name in MENU.items()]
        body = _parser().renderer.render(tokens, _parser().options, {})
        html = template.render(title=_title(tokens), body=body, up=up, menu=menu)
        _write(folder / html_path(path), html)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file, folder / file)
    for source in (root / STATIC / "soup.css", root / STATIC / "icon.svg", FILES / "site.css", FILES / "search.js"):
        shutil.copyfile(source, folder / source.name)
    rows = [[section.title, section.heading, section.url, section.text] for section in sections]
    _write(folder / INDEX, f"window.SECTIONS = {json.dumps(rows, ensure_ascii=False)};\n")
    return len(pages)


def html_path(path: Path) -> Path:
    """The HTML file of a page."""
    return path.with_name("index.html") if path.name == "README.md" else path.with_suffix(".html")


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading, unless an earlier heading has the same one."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable("table")


def _title(tokens: list[Token]) -> str:
    return next(heading for _, heading in _headings(tokens))


def _headings(tokens: list[Token]) -> Iterator[tuple[int, str]]:
    """The index of each heading's first token, and its text without marks."""
    for number, token in enumerate(tokens):
        if token.type == "heading_open":
            yield number, _without_marks(tokens[number + 1].content)


def _without_marks(text: str) -> str:
    """Text without the marks of links, code and emphasis."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", text)


def _sections(path: Path, tokens: list[Token]) -> list[Section]:
    """The sections of a page; gives each heading its anchor."""
    title, sections = _title(tokens), []
    headings = list(_headings(tokens))
    uses: Counter[str] = Counter()
    ends = [number for number, _ in headings[1:]] + [len(tokens)]
    for (number, heading), end in zip(headings, ends, strict=True):
        name = slug(tokens[number + 1].content)
        anchor = f"{name}-{uses[name]}" if uses[name] else name  # as GitHub does
        uses[name] += 1
        tokens[number].attrSet("id", anchor)
        texts = [token.content for token in tokens[number + 3 : end] if token.type in ("inline", "fence", "code_block")]
        text = " ".join(_without_marks(" ".join(texts)).split())
        sections.append(Section(title, heading, f"{html_path(path)}#{anchor}", text[:SECTION_LETTERS]))
    return sections


def _adapt_links(path: Path, tokens: list[Token], pages: set[Path], root: Path) -> set[Path]:
    """Point links between pages at their HTML files; returns the other files that the page links, by their paths."""
    files = set()
    for token in (child for parent in tokens for child in parent.children or ()):
        name = {"link_open": "href", "image": "src"}.get(token.type)
        link = str(token.attrGet(name)) if name else ""
        place, mark, anchor = link.partition("#")
        if name is None or not place or re.match(r"[a-z]+:", place):
            continue
        file = Path(os.path.normpath(path.parent / place))
        if file in pages:
            token.attrSet(name, os.path.relpath(html_path(file), path.parent) + mark + anchor)
        elif (root / file).is_file():
            files.add(file)
        else:  # a folder of the repository, which the site lacks
            del token.attrs[name]
    return files


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def main() -> None:
    """Write the site into the folder of the first argument, by default `site`."""
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "site")
    sys.stdout.write(f"{build(target)} pages: {target / 'index.html'}\n")


if __name__ == "__main__":
    main()
