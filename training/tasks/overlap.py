"""Scores of a text against a reference text: SQuAD's exact match and F1, and ROUGE.

Called by the tasks. SQuAD: Rajpurkar et al., EMNLP 2016, section 6.1; ROUGE: Lin, 2004, F-measures without stemming.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORD = re.compile(r"[^\W_]+")


def exact_match(guess: str, reference: str) -> float:
    """1 if the two are equal but for case, punctuation, articles and spaces, else 0."""
    return float(_normalised(guess) == _normalised(reference))


def token_f1(guess: str, reference: str) -> float:
    """F1 of the words of the two, normalised as for `exact_match`; two texts without words are equal."""
    words, reference_words = _normalised(guess).split(), _normalised(reference).split()
    return (
        float(words == reference_words)
        if not words or not reference_words
        else _f1(_shared(words, reference_words), len(words), len(reference_words))
    )


def _normalised(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def rouge(guess: str, reference: str) -> dict[str, float]:
    """ROUGE-1, -2 and -L: F1 of shared words, shared pairs of words, and the longest common subsequence.

    Words are runs of letters and digits, lower-cased. Two texts without words score 0.
    """
    words, reference_words = (_WORD.findall(text.lower()) for text in (guess, reference))
    pairs = [list(pairwise(sequence)) for sequence in (words, reference_words)]
    return {
        "rouge1": _f1(_shared(words, reference_words), len(words), len(reference_words)),
        "rouge2": _f1(_shared(*pairs), len(pairs[0]), len(pairs[1])),
        "rougeL": _f1(_longest_common(words, reference_words), len(words), len(reference_words)),
    }


def _shared(words: Sequence[object], reference_words: Sequence[object]) -> int:
    """The size of the multiset intersection."""
    return (Counter(words) & Counter(reference_words)).total()


def _f1(shared: int, words: int, reference_words: int) -> float:
    return 2 * shared / (words + reference_words) if shared else 0.0


def _longest_common(words: Sequence[str], reference_words: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(reference_words) + 1)
    for word in words:
        diagonal = 0
        for index, reference_word in enumerate(reference_words, start=1):
            longest = diagonal + 1 if word == reference_word else max(lengths[index], lengths[index - 1])
            diagonal, lengths[index] = lengths[index], longest
    return lengths[-1]
