"""Passages of local files: JSON lines (gzipped too), plain text by paragraphs, or standard input.

A folder stands for all such files in it, in the order of their names. Used by the client and the command line; the
server's side of a sample is `registry.samples.sample`.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterable
from pathlib import Path

from registry.errors import InvalidSample, NotFound
from registry.samples.texts import split_texts
from registry.spec import Passage

MAX_BYTES = 256 * 1024 * 1024
ENDINGS = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
"""Endings of the files that are read from a folder."""


def read_texts(path: Path) -> list[Passage]:
    """The passages of a .jsonl, .jsonl.gz or .txt file (one passage per paragraph), or of standard input (`-`).

    Standard input and other names are JSON lines if their first character is `{`, else paragraphs. For a folder, the
    texts of all its files with one of ENDINGS. Raises NotFound, or InvalidSample with the line that is wrong.
    """
    if path.is_dir():
        return _read_folder(path)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    is_lines = {".jsonl": True, ".txt": False}.get(suffixes[-1]) if suffixes else None
    return split_texts(read_text(path), label=_display_name(path), is_lines=is_lines)


def find_texts(folder: Path, names: Iterable[str]) -> Path | None:
    """The first file in `folder` with one of these names and one of ENDINGS, or subfolder of that name; else None."""
    candidates = (folder / (name + ending) for name in names for ending in (*ENDINGS, ""))
    return next((path for path in candidates if os.path.exists(path)), None)  # noqa: PTH110 - Path raises for long names


def _display_name(path: Path) -> str:
    """The path as an error sentence names it: `-` is standard input."""
    return "Standard input" if str(path) == "-" else str(path)


def _read_folder(folder: Path) -> list[Passage]:
    files = sorted(path for path in folder.iterdir() if path.name.lower().endswith(ENDINGS) and path.is_file())
    if not files:
        raise InvalidSample(f"{folder} holds no {', '.join(ENDINGS)} file.", param="sample")
    return [text for file in files for text in read_texts(file)]


def read_text(path: Path) -> str:
    """The whole text of a file or of standard input (`-`); raises NotFound or InvalidSample."""
    name = _display_name(path)
    data = sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == "-" else _read_file(path)
    if len(data) > MAX_BYTES:
        raise InvalidSample(f"{name} holds over {MAX_BYTES} bytes: about 100 passages are a sample.", param="sample")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidSample(f"{name} is not UTF-8 text (byte {error.start}): convert it.", param="sample") from None


def _read_file(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InvalidSample(f"{path} is not a whole gzip file.", param="sample") from None
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}.", param="sample") from None
