"""The texts of a base model's probe: words of its own vocabulary, drawn with a fixed seed.

Random words make every server read the same tokens, and no adapter was trained on them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from registry.errors import Unavailable
from registry.spec import PROBE_TEXTS

WORDS = 8
"""Words of a text."""
SHORTEST = 3
"""Letters of the shortest word that is drawn while there are enough."""
MOST_TOKENS = 4096
"""Number of tokens of a vocabulary to read."""
DRAWS = 100
"""Draws for each text at most, until one survives tokenising."""

Encode = Callable[[str], list[int]]
Decode = Callable[[Sequence[int]], str]


def probe_texts(size: int, encode: Encode, decode: Decode) -> tuple[str, ...]:
    """The texts of the probe of a vocabulary of `size` tokens; `encode` adds no special tokens.

    A text is the same after it is encoded and decoded. Raises Unavailable for a vocabulary without words.
    """
    generator = np.random.default_rng(0)
    words = _words(generator.permutation(size)[:MOST_TOKENS], decode)
    texts: dict[str, None] = {}
    for _ in range(PROBE_TEXTS * DRAWS):
        text = " ".join(words[index] for index in generator.permutation(len(words))[:WORDS])
        if text and decode(encode(text)) == text:
            texts[text] = None
        if len(texts) == PROBE_TEXTS:
            return tuple(texts)
    raise Unavailable(
        f"The base model's vocabulary has too few words for a probe: {len(texts)} texts can be made of them, and "
        f"{PROBE_TEXTS} are needed."
    )


def _words(ids: Iterable[int], decode: Decode) -> list[str]:
    """The words that are a token each: lower-case ASCII after a space, or any letters where these are few."""
    tokens = [decode([int(token)]) for token in ids]
    letters = {token.strip() for token in tokens if token.strip().isalpha()}
    spaced = {token[1:] for token in tokens if token.startswith(" ")}
    words = {word for word in letters & spaced if word.isascii() and word.islower() and len(word) >= SHORTEST}
    return sorted(words if len(words) >= 4 * WORDS else letters)
