"""What becomes of a sample before any encoder sees it: cleaned, counted, capped, and given one byte form.

Called by the verbs `push` and `cook`. Nothing is dropped silently: the report counts every text that did not
make it. A sample is stored as JSON lines of {"text"}; its digest is that of these bytes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from registry.errors import InvalidSample, TooLarge
from registry.names import sha256_digest
from registry.spec import SampleReport

MIN_SEQUENCES = 20
GOOD_SEQUENCES = 100
MAX_SEQUENCES = 500
DRAW_SEED = 0


@dataclass(frozen=True)
class Sample:
    """Texts ready to be embedded, their stored bytes, and the report."""

    texts: tuple[str, ...]
    data: bytes
    report: SampleReport


@dataclass(frozen=True)
class SampleLimits:
    """Sequences under which a sample is refused or noted, and over which it is drawn; characters of one text."""

    minimum: int = MIN_SEQUENCES
    good: int = GOOD_SEQUENCES
    maximum: int = MAX_SEQUENCES
    max_chars: int = 1_000_000


def prepare(texts: Sequence[str], limits: SampleLimits = SampleLimits()) -> Sample:
    """Clean a sample: empty texts and exact duplicates go, over the maximum a seeded draw is taken.

    Raises InvalidSample under the minimum of usable sequences and TooLarge for a text that is too long.
    """
    max_chars = limits.max_chars
    longest = max(map(len, texts), default=0)
    if longest > max_chars:
        raise TooLarge(
            f"One text of the sample has {longest} characters and the limit is {max_chars}: split it into passages.",
            param="sample",
        )
    filled = [text for text in texts if text.strip()]
    unique = list(dict.fromkeys(filled))
    if len(unique) < limits.minimum:
        raise InvalidSample(
            f"The sample has {len(unique)} different sequences that are not empty ({len(texts)} were sent); "
            f"at least {limits.minimum} are needed, about {limits.good} are good.",
            param="sample",
        )
    kept, seed = draw(unique, limits.maximum)
    data = encode_lines(kept)
    notes = () if len(kept) >= limits.good else (f"{len(kept)} sequences: about {limits.good} are better.",)
    report = SampleReport(
        digest=sha256_digest(data),
        received=len(texts),
        empty=len(texts) - len(filled),
        duplicates=len(filled) - len(unique),
        kept=len(kept),
        seed=seed,
        notes=notes,
    )
    return Sample(texts=tuple(kept), data=data, report=report)


def draw(texts: list[str], maximum: int) -> tuple[list[str], int | None]:
    """At most `maximum` texts, in their order, and the seed of the draw (None when nothing was left out)."""
    if len(texts) <= maximum:
        return texts, None
    chosen = sorted(random.Random(DRAW_SEED).sample(range(len(texts)), maximum))  # noqa: S311 - a sample, no secret
    return [texts[i] for i in chosen], DRAW_SEED


def encode_lines(texts: Iterable[str]) -> bytes:
    """JSON lines of {"text"}: the stored form."""
    try:
        return b"".join(json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in texts)
    except UnicodeEncodeError as error:
        raise InvalidSample(
            f"A text of the sample is not valid Unicode (a lone surrogate at position {error.start}).", param="sample"
        ) from None


def decode_lines(data: bytes) -> list[str]:
    """The texts of JSON lines of {"text"}; raises InvalidSample with the line number that is wrong."""
    texts = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidSample(f"Line {number} of the sample is not JSON.", param="sample") from None
        if not isinstance(value, dict) or not isinstance(value.get("text"), str):
            raise InvalidSample(f'Line {number} of the sample is not an object with a string "text".', param="sample")
        texts.append(value["text"])
    return texts
