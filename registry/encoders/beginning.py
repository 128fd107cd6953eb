"""The beginning of a text that decides its vector: an encoder looks at so many tokens, and the rest is not tokenised.

Called by the encoders and by the engine. What is left out is far behind the last token that counts, so that the tokens
before it are those of the whole text.
"""

from __future__ import annotations

from collections.abc import Callable

CHARACTERS = 16
"""Characters that are read at first for each token that counts: several times what text of any language takes."""


def beginning(text: str, count: Callable[[str], int], *, wanted: int) -> str:
    """The start of `text`, with at least twice `wanted` tokens by `count`, or all of it."""
    length = CHARACTERS * wanted
    while length < len(text) and count(text[:length]) < 2 * wanted:
        length *= 2
    return text[:length]
