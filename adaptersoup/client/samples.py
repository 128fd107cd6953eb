"""Texts of people's files: JSON lines of {"text"} (gzipped too), plain text by paragraphs, or standard input.

A folder of such files stands for all of them, in the order of their names.

Used by the client and the command line. What becomes of a sample on the server is `registry.samples.sample`' affair.
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

MAX_BYTES = 256 * 1024 * 1024
ENDINGS = (".jsonl", ".jsonl.gz", ".txt", ".txt.gz")
"""Of the files of a folder that are read."""


def read_texts(path: Path) -> list[str]:
    """The texts of a .jsonl, .jsonl.gz or .txt file (one passage per paragraph), or of standard input (`-`).

    Standard input and other names are JSON lines if their first character is `{`, else paragraphs; of a folder its
    .jsonl, .jsonl.gz and .txt files are read. Raises NotFound, or InvalidSample with the line that is wrong.
    """
    if path.is_dir():
        return _of_folder(path)
    text, called = read_text(path), called_of(path)
    suffixes = [suffix.lower() for suffix in path.suffixes if suffix.lower() != ".gz"]
    known = {".jsonl": True, ".txt": False}.get(suffixes[-1]) if suffixes else None
    return split_texts(text, what=called, is_lines=known)


def file_called(folder: Path, names: Iterable[str]) -> Path | None:
    """The first file of texts, or folder of them, that a folder has under one of these names and an ending of texts."""
    beside = (folder / (name + end) for name in names for end in (*ENDINGS, ""))
    return next((path for path in beside if os.path.exists(path)), None)  # noqa: PTH110 - a name that is too long is none


def called_of(path: Path) -> str:
    """A path of texts in a sentence: `-` is standard input."""
    return "Standard input" if str(path) == "-" else str(path)


def is_texts(path: Path) -> bool:
    """Whether a file is one of texts, by its name."""
    return path.name.lower().endswith(ENDINGS) and path.is_file()


def _of_folder(folder: Path) -> list[str]:
    files = sorted(path for path in folder.iterdir() if is_texts(path))
    if not files:
        raise InvalidSample(f"{folder} holds no {', '.join(ENDINGS)} file.", param="sample")
    return [text for file in files for text in read_texts(file)]


def read_text(path: Path) -> str:
    """All of a file, or of standard input, as text; raises NotFound or InvalidSample."""
    data, called = _read(path), called_of(path)
    if len(data) > MAX_BYTES:
        raise InvalidSample(f"{called} holds over {MAX_BYTES} bytes: about 100 passages are a sample.", param="sample")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidSample(f"{called} is not UTF-8 text (byte {error.start}): convert it.", param="sample") from None


def _read(path: Path) -> bytes:
    return sys.stdin.buffer.read(MAX_BYTES + 1) if str(path) == "-" else _read_file(path)


def _read_file(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InvalidSample(f"{path} is not a whole gzip file.", param="sample") from None
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}.", param="sample") from None
