"""Training data: read from JSON lines, split, packed into blocks of equal length, and the order in which these come.

Called by the tasks, the trainer, and the demo, which trains its base model in the same way.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from registry.errors import InvalidParameter, NotFound
from registry.files import parse_lines

MIN_TEXTS = 20
"""Fewer texts than this are no domain to train on (a sample needs as many)."""
MIN_VALID_TEXTS = 5
"""Fewer texts than this say nothing about which state is best."""
HELD_OUT_SEED = 0


def read_texts(path: Path) -> list[str]:
    """The texts of a .jsonl or .jsonl.gz file of {"text"} in their order, empty ones left out.

    Raises NotFound, or InvalidParameter with the line that is wrong.
    """
    texts = [text_of(value, str(path), number) for number, value in read_lines(path)]
    return [text for text in texts if text.strip()]


def read_lines(path: Path, *, where: str | None = None) -> list[tuple[int, Any]]:
    """(line number, JSON value) of each line of a .jsonl or .jsonl.gz file that is not blank.

    Raises NotFound, or InvalidParameter with the line that is no JSON; messages call the file `where`, or by its path.
    """
    where = str(path) if where is None else where
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise InvalidParameter(f"{where} is not UTF-8 text (byte {problem.start}).", param="texts") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise InvalidParameter(f"{where} is not a whole gzip file.", param="texts") from None
    except OSError as problem:
        raise NotFound(f"{where} cannot be read: {problem.strerror or problem}.", param="texts") from None
    error = partial(InvalidParameter, param="texts")
    lines = parse_lines(text, name=lambda number: f"{where}, line {number},", error=error)
    if "\\ud" not in text.lower():  # no other way into a file of UTF-8 for what no tokenizer takes
        return list(lines)
    found = []
    for number, value in lines:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            said = "is not valid Unicode: it holds a surrogate without its other half"
            raise wrong_line(where, number, said) from None
        found.append((number, value))
    return found


def text_of(value: object, where: str, number: int) -> str:
    """The text of a {"text"} object; raises InvalidParameter with the line."""
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise wrong_line(where, number, 'is not JSON with a string "text": texts are JSON lines of {"text": ...}')
    return str(value["text"])


class Line:
    """The JSON object in a line of data; whatever is wrong with it is said with the file and the line.

    Raises InvalidParameter where it is no object, saying what it `needs`.
    """

    def __init__(self, value: object, *, where: str, number: int, needs: str) -> None:
        self.where, self.number, self.needs = where, number, needs
        if not isinstance(value, dict):
            raise self.lacks("is no JSON object")
        self.fields: dict[str, Any] = value

    def string(self, name: str) -> str:
        """A field that is text, and not blank; raises InvalidParameter."""
        found = self.fields.get(name)
        if not isinstance(found, str) or not found.strip():
            raise self.lacks(f'has no string "{name}"')
        try:
            found.encode()
        except UnicodeEncodeError:
            raise self.wrong(f'has a "{name}" that is not valid Unicode') from None
        return found

    def wrong(self, said: str) -> InvalidParameter:
        """What to raise for it."""
        return wrong_line(self.where, self.number, said)

    def lacks(self, said: str) -> InvalidParameter:
        """The same, with what it needs."""
        return self.wrong(f"{said}: it needs {self.needs}")


def wrong_line(where: str, number: int, said: str) -> InvalidParameter:
    """What to raise for a line of data."""
    return InvalidParameter(f"{where}, line {number}, {said}.", param="texts")


def draw(texts: Sequence[str], most: int, *, seed: int) -> list[str]:
    """At most `most` of the texts, drawn with `seed`, in the order they had."""
    if len(texts) <= most:
        return list(texts)
    chosen = np.random.default_rng(seed).choice(len(texts), size=most, replace=False)
    return [texts[i] for i in sorted(chosen.tolist())]


@dataclass(frozen=True)
class Data:
    """A task's items to train on, and others by which the best state is kept."""

    train: Sequence[Any]
    valid: Sequence[Any]


def held_out(items: Sequence[Any], share: float) -> Data:
    """A share of the items held out to validate on, drawn with a fixed seed; the order stays."""
    count = round(share * len(items))
    chosen = set(np.random.default_rng(HELD_OUT_SEED).permutation(len(items))[:count].tolist())
    return Data(
        train=[item for number, item in enumerate(items) if number not in chosen],
        valid=[item for number, item in enumerate(items) if number in chosen],
    )


@dataclass(frozen=True)
class Examples:
    """Data as rows int64 (examples, width), whose layout is the task's own, and what became of the data.

    `counts` goes into the record: what was received, what was cut, what was left out.
    """

    rows: np.ndarray
    counts: Mapping[str, int] = field(default_factory=dict)


def enough(items: Sequence[object], at_least: int, *, of: str, where: str) -> None:
    """Raises InvalidParameter for fewer than `at_least` items in `where`."""
    if len(items) < at_least:
        raise InvalidParameter(f"{where} holds {len(items)} {of}, and at least {at_least} are needed.", param="texts")


def pack(
    texts: Sequence[str], tokenize: Callable[[str], Sequence[int]], *, block: int, what: str = "training",
    at_least: int = MIN_TEXTS,
) -> Examples:  # fmt: skip
    """The texts' tokens end to end, cut into blocks; what is left at the end is dropped, and counted.

    Counted are that rest's tokens and the texts that are in it as a whole, and the texts that are longer than a block:
    what is predicted in one block does not see the one before. `tokenize` puts the BOS in front of each text, so that
    boundaries are seen. Raises InvalidParameter for fewer than `at_least` texts, or for less than one block.
    """
    if block < 2:
        raise InvalidParameter(f"A block of {block} tokens leaves nothing to predict.", param="block")
    enough(texts, at_least, of="texts", where=f"The {what} data")
    parts = [np.asarray(tokenize(text), dtype=np.int64) for text in texts]
    lengths = np.array([len(part) for part in parts])
    total = int(lengths.sum())
    if total < block:
        raise InvalidParameter(
            f"The {what} data holds {total} tokens, less than one block of {block}: bring more text, or a "
            "shorter block.",
            param="texts",
        )
    used = total // block * block
    starts = np.cumsum(lengths) - lengths
    counts = {
        "texts": len(texts), "texts_left_out": int((starts >= used).sum()), "texts_cut": int((lengths > block).sum()),
        "tokens_available": used, "tokens_left_out": total - used,
    }  # fmt: skip
    return Examples(np.concatenate(parts)[:used].reshape(-1, block), counts)


class DataOrder:
    """Which blocks each step takes: `take` of `blocks`, or all of them where there are fewer.

    Epoch after epoch, each in an order drawn from one seed, so that every block comes once an epoch. It can be stopped
    and taken up again.
    """

    def __init__(self, blocks: int, *, take: int, seed: int) -> None:
        self._blocks = blocks
        self.size = min(take, blocks)
        self._rng = np.random.default_rng(seed)
        self._ahead = np.empty(0, dtype=np.int64)

    def next(self) -> np.ndarray:
        """int64 (size,): the blocks of the next step."""
        while len(self._ahead) < self.size:
            self._ahead = np.concatenate([self._ahead, self._rng.permutation(self._blocks)])
        taken, self._ahead = self._ahead[: self.size], self._ahead[self.size :]
        return taken

    def state(self) -> tuple[dict[str, Any], np.ndarray]:
        """The generator's state as JSON, and the indices drawn and not yet taken."""
        return dict(self._rng.bit_generator.state), self._ahead.copy()

    def restore(self, generator: dict[str, Any], ahead: np.ndarray) -> None:
        """Go on where `state` was taken; raises ValueError for the state of another generator."""
        self._rng.bit_generator.state = generator
        self._ahead = ahead.astype(np.int64, copy=True)
