"""Randomly changed headers of safetensors files: each must be read, or refused with a message."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass

from registry.errors import SoupError
from registry.tensor_file import parse

LIMIT = 2**20
VALUES = ("NaN", "-1", "1e400", "[]", "{}", "null", '""', "18446744073709551616", '"F32"', "[0, 4]", "[[[[]]]]", "true")
"""Replacements of a part of the JSON."""


@dataclass
class Outcome:
    """The numbers of headers read and refused; `crashes` are all other errors."""

    read: int
    refused: int
    crashes: list[str]


def good(draw: random.Random) -> bytes:
    """A valid file of a few tensors."""
    table, begin = {}, 0
    for number in range(draw.randint(0, 4)):
        rows, columns = draw.randint(0, 3), draw.randint(1, 4)
        end = begin + 4 * rows * columns
        table[f"layers.{number}.down"] = {"dtype": "F32", "shape": [rows, columns], "data_offsets": [begin, end]}
        begin = end
    header = json.dumps(table).encode()
    return struct.pack("<Q", len(header)) + header + bytes(begin)


def _flipped(data: bytearray, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 4)):
        data[draw.randrange(len(data))] = draw.randrange(256)


def _cut(data: bytearray, draw: random.Random) -> None:
    del data[draw.randrange(len(data) + 1) :]


def _grown(data: bytearray, draw: random.Random) -> None:
    place = draw.randrange(len(data) + 1)
    data[place:place] = draw.randbytes(draw.randint(1, 40))


def _repeated(data: bytearray, draw: random.Random) -> None:
    first, last = sorted(draw.randrange(len(data) + 1) for _ in range(2))
    data[last:last] = data[first:last]


def _length(data: bytearray, draw: random.Random) -> None:
    data[:8] = struct.pack("<Q", draw.choice((0, 1, len(data), 2**31, 2**63, 2**64 - 1, draw.randrange(2**20))))


def _value(data: bytearray, draw: random.Random) -> None:
    """A piece of the JSON between two of its marks becomes another value, the length made right."""
    header = data[8:]
    marks = [place for place, byte in enumerate(header) if byte in b":,[]{}"]
    if len(marks) >= 2:
        first = draw.randrange(len(marks) - 1)
        header[marks[first] + 1 : marks[first + 1]] = draw.choice(VALUES).encode()
    data[:] = struct.pack("<Q", len(header)) + header


CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (_flipped, _cut, _grown, _repeated, _length, _value)


def mutated(draw: random.Random) -> bytes:
    """A file with one to three changes."""
    data = bytearray(good(draw))
    for _ in range(draw.randint(1, 3)):
        draw.choice(CHANGES)(data, draw)
        if not data:
            break
    return bytes(data)


def run_headers(amount: int, *, seed: int = 0) -> Outcome:
    """Read this number of changed files."""
    draw, outcome = random.Random(seed), Outcome(0, 0, [])
    for number in range(amount):
        data = mutated(draw)
        try:
            parse(data, max_bytes=LIMIT)
            outcome.read += 1
        except SoupError:
            outcome.refused += 1
        except Exception as error:  # what is counted here
            outcome.crashes.append(f"file {number} of seed {seed}: {type(error).__name__}: {error}")
    return outcome
