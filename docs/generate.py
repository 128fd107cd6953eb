"""Regenerates the parts of the documentation that come from the code and from benchmark results (`make openapi`).

`python -m docs.generate` writes the pages of docs/reference and the manual page, and fills the marked blocks of
README.md and docs/**/*.md. `expected()` returns the same without writing it: tests/project/test_docs.py compares it
with the files.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docs import api_page, figures, man_page, papers, soups, tables

ROOT = Path(__file__).parents[1]
RESULTS = Path("benchmarks") / "results"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
HASHED_NAME = re.compile(r"\b[pm][0-9a-f]{10}\b")
"""A name that matplotlib derives from the content."""


def expected(root: Path = ROOT) -> dict[Path, str]:
    """Every file that is generated or has generated blocks, with its expected text; paths are relative to `root`."""
    reference = Path("docs") / "reference"
    app = api_page.application()
    files = {
        reference / "openapi.json": api_page.openapi_json(app),
        reference / "api.md": api_page.page(app),
        reference / "settings.md": tables.settings_page(),
        reference / "errors.md": tables.errors_page(),
        reference / "cli.md": tables.cli_page(),
        Path("adaptersoup") / "cli" / "soup.1": man_page.man_page(),
    }
    for path in pages(root):
        text = (root / path).read_text(encoding="utf-8")
        if path not in files and figures.MARK.search(text):
            files[path] = figures.fill(text, root / RESULTS)
    return files | soups.pictures(root / RESULTS) | papers.pictures(root / RESULTS)


def pages(root: Path = ROOT) -> list[Path]:
    """All Markdown pages of the documentation; paths are relative to `root`."""
    top = [root / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    listed = [*top, *sorted((root / "docs").rglob("*.md"))]
    return [path.relative_to(root) for path in listed if path.is_file()]


def stale(root: Path = ROOT) -> dict[Path, str]:
    """The files of `expected` that are not up to date."""
    return {
        path: text
        for path, text in expected(root).items()
        if not (root / path).is_file() or not _is_same(path, (root / path).read_text(encoding="utf-8"), text)
    }


def _is_same(path: Path, stored: str, text: str) -> bool:
    """Return True if the texts are equal; coordinates of plots may differ by half a point, since processors round
    differently.
    """
    if path.suffix != ".svg":
        return stored == text
    stored, text = (HASHED_NAME.sub("", plot) for plot in (stored, text))
    places = zip(NUMBER.findall(stored), NUMBER.findall(text), strict=False)
    return NUMBER.sub("0", stored) == NUMBER.sub("0", text) and all(
        abs(float(first) - float(second)) <= 0.5 for first, second in places
    )


def main() -> None:
    """Write the files that are not up to date, and print their paths."""
    for path, text in stale().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
