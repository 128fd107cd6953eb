"""Training data: reading JSON lines, splitting, packing into blocks of equal length, and the order of blocks.

Called by the tasks, the trainer, and the demo, which reads and draws its texts with it.
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
"""The fewest texts to train on, as many as a sample needs."""
MIN_VALID_TEXTS = 5
"""The fewest texts to validate on."""
HELD_OUT_SEED = 0


def read_lines(path: Path, *, where: str | None = None) -> list[tuple[int, Any]]:
    """Read (line number, JSON value) of each line of a .jsonl or .jsonl.gz file that is not blank.

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
    if "\\ud" not in text.lower():  # the only way a lone surrogate gets into valid UTF-8
        return list(lines)
    checked = []
    for number, value in lines:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            message = "is not valid Unicode: it holds a surrogate without its other half"
            raise wrong_line(where, number, message) from None
        checked.append((number, value))
    return checked


def text_of(value: object, where: str, number: int) -> str:
    """Return the text of a {"text"} object; raises InvalidParameter with the line."""
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise wrong_line(where, number, 'is not JSON with a string "text": texts are JSON lines of {"text": ...}')
    return str(value["text"])


class Line:
    """The JSON object in a line of data; its errors name the file and the line.

    Raises InvalidParameter if it is no object; `needs` is the format in messages.
    """

    def __init__(self, value: object, *, where: str, number: int, needs: str) -> None:
        self.where, self.number, self.needs = where, number, needs
        if not isinstance(value, dict):
            raise self.lacks("is no JSON object")
        self.fields: dict[str, Any] = value

    def string(self, name: str) -> str:
        """Return a field that is a string and not blank; raises InvalidParameter."""
        text = self.fields.get(name)
        if not isinstance(text, str) or not text.strip():
            raise self.lacks(f'has no string "{name}"')
        return text

    def wrong(self, problem: str) -> InvalidParameter:
        """The error for this line."""
        return wrong_line(self.where, self.number, problem)

    def lacks(self, problem: str) -> InvalidParameter:
        """The error for this line, with the format that it needs."""
        return self.wrong(f"{problem}: it needs {self.needs}")


def wrong_line(where: str, number: int, problem: str) -> InvalidParameter:
    """The error for a line of data."""
    return InvalidParameter(f"{where}, line {number}, {problem}.", param="texts")


def draw(texts: Sequence[str], most: int, *, seed: int) -> list[str]:
    """Draw at most `most` of the texts with `seed`, keeping their order."""
    if len(texts) <= most:
        return list(texts)
    chosen = np.random.default_rng(seed).choice(len(texts), size=most, replace=False)
    return [texts[i] for i in sorted(chosen.tolist())]


@dataclass(frozen=True)
class Data:
    """A task's items to train on, and items to choose the best state by; `is_split` if both are from the same data."""

    train: Sequence[Any]
    valid: Sequence[Any]
    is_split: bool = False


def held_out(items: Sequence[Any], share: float) -> Data:
    """Hold out a share of the items to validate on, drawn with a fixed seed; the order stays."""
    count = round(share * len(items))
    chosen = set(np.random.default_rng(HELD_OUT_SEED).permutation(len(items))[:count].tolist())
    return Data(
        train=[item for number, item in enumerate(items) if number not in chosen],
        valid=[item for number, item in enumerate(items) if number in chosen],
        is_split=True,
    )


@dataclass(frozen=True)
class Examples:
    """Encoded data: int64 rows (examples, width) in the task's own layout.

    `counts` goes into the record: items received, cut and left out.
    """

    rows: np.ndarray
    counts: Mapping[str, int] = field(default_factory=dict)


def enough(items: Sequence[object], at_least: int, *, of: str, where: str) -> None:
    """Raise InvalidParameter for fewer than `at_least` items in `where`."""
    if len(items) < at_least:
        raise InvalidParameter(f"{where} holds {len(items)} {of}, and at least {at_least} are needed.", param="texts")


def pack(
    texts: Sequence[str],
    tokenize: Callable[[str], Sequence[int]],
    *,
    block: int,
    purpose: str = "training",
    at_least: int = MIN_TEXTS,
) -> Examples:
    """Concatenate the texts' tokens and cut them into blocks; an incomplete last block is dropped.

    The counts include the dropped tokens, the texts wholly among them, and the texts longer than a block. `tokenize`
    puts the BOS in front of each text, which marks their boundaries. Raises InvalidParameter for fewer than `at_least`
    texts, or for less than one block.
    """
    enough(texts, at_least, of="texts", where=f"The {purpose} data")
    tokens = [np.asarray(tokenize(text), dtype=np.int64) for text in texts]
    lengths = np.array([len(ids) for ids in tokens])
    total = int(lengths.sum())
    if total < block:
        raise InvalidParameter(
            f"The {purpose} data has {total} tokens, less than one block of {block}: add text, or use a shorter block.",
            param="texts",
        )
    used = total // block * block
    starts = np.cumsum(lengths) - lengths
    counts = {
        "texts": len(texts),
        "texts_left_out": int((starts >= used).sum()),
        "texts_cut": int((lengths > block).sum()),
        "tokens_available": used,
        "tokens_left_out": total - used,
    }
    return Examples(np.concatenate(tokens)[:used].reshape(-1, block), counts)


class DataOrder:
    """The order of blocks: each step takes `take` of `blocks`, or all of them if there are fewer.

    Every block comes once an epoch, in an order drawn from one seed. Its state can be saved and restored.
    """

    def __init__(self, blocks: int, *, take: int, seed: int) -> None:
        self._blocks = blocks
        self.size = min(take, blocks)
        self._rng = np.random.default_rng(seed)
        self._ahead = np.empty(0, dtype=np.int64)

    def next(self) -> np.ndarray:
        """Return the blocks of the next step, int64 (size,)."""
        while len(self._ahead) < self.size:
            self._ahead = np.concatenate([self._ahead, self._rng.permutation(self._blocks)])
        blocks, self._ahead = self._ahead[: self.size], self._ahead[self.size :]
        return blocks

    def state(self) -> tuple[dict[str, Any], np.ndarray]:
        """Return the generator's state as JSON, and the indices drawn but not yet used."""
        return dict(self._rng.bit_generator.state), self._ahead.copy()

    def restore(self, generator: dict[str, Any], ahead: np.ndarray) -> None:
        """Continue from a `state`; raises ValueError for the state of another generator."""
        self._rng.bit_generator.state = generator
        self._ahead = ahead.astype(np.int64, copy=True)
