"""The distance between two readings of a probe: how far log-probabilities of the same next tokens lie apart.

Servers spell a token in different ways, with the vocabulary's marks of a leading space or without the space: tokens are
compared without them. If only one side lists a token, its log-probability on the other side is at most that of the
least likely token there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from registry.spec import SERVER_TOKENS, NextTokens

_MARKS = str.maketrans({"\N{LOWER ONE EIGHTH BLOCK}": " ", "\N{LATIN CAPITAL LETTER G WITH DOT ABOVE}": " "})


def distance(server: Sequence[NextTokens], stored: Sequence[NextTokens]) -> float:
    """The root mean square, in nats, of the differences over the tokens that either side has among its first ones."""
    pairs = zip(server, stored, strict=False)
    squares = [difference * difference for pair in pairs for difference in _differences(*map(spelt_alike, pair))]
    return math.sqrt(sum(squares) / len(squares)) if squares else math.inf


def _differences(server: NextTokens, stored: NextTokens) -> Iterator[float]:
    if not server or not stored:
        return
    server_floor, stored_floor = min(server.values()), min(stored.values())
    for token in dict.fromkeys([*list(server)[:SERVER_TOKENS], *list(stored)[:SERVER_TOKENS]]):
        if token not in stored:
            yield max(0.0, server[token] - stored_floor)
        elif token not in server:
            yield min(0.0, server_floor - stored[token])
        else:
            yield server[token] - stored[token]


def spelt_alike(tokens: NextTokens) -> NextTokens:
    """Return the tokens, best first, without the blanks around them; of those that are then alike the likeliest."""
    alike: NextTokens = {}
    for token in sorted(tokens, key=lambda token: (-tokens[token], token)):
        alike.setdefault(token.translate(_MARKS).strip() or token, tokens[token])
    return alike
