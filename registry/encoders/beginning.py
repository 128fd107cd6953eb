"""The beginning of a text that decides its vector: an encoder reads a limited number of tokens.

Called by the encoders and by the engine. The cut is far behind the last token that counts, so that the tokens before it
are those of the whole text.
"""

from __future__ import annotations

from collections.abc import Callable

CHARACTERS = 16
"""Characters read at first for each token: several times the mean length of a token in any language."""


def beginning(text: str, count: Callable[[str], int], *, tokens: int) -> str:
    """The start of `text` with at least twice as many tokens, by `count`, as `tokens`; or all of it."""
    length = CHARACTERS * tokens
    while length < len(text) and count(text[:length]) < 2 * tokens:
        length *= 2
    return text[:length]
