"""Texts against reference texts: SQuAD's exact match and F1, and ROUGE. Nothing but strings.

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
    """1 where the two are equal but for case, punctuation, articles and spaces, else 0."""
    return float(_normalised(guess) == _normalised(reference))


def token_f1(guess: str, reference: str) -> float:
    """F1 of the words of the two, normalised as for `exact_match`; two without words are equal."""
    ours, theirs = _normalised(guess).split(), _normalised(reference).split()
    return float(ours == theirs) if not ours or not theirs else _f1(_shared(ours, theirs), len(ours), len(theirs))


def _normalised(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def rouge(guess: str, reference: str) -> dict[str, float]:
    """ROUGE-1, -2 and -L: F1 of shared words, shared pairs of words, and the longest common subsequence.

    Words are runs of letters and digits, lower-cased. Two texts that have none are 0 alike.
    """
    ours, theirs = (_WORD.findall(text.lower()) for text in (guess, reference))
    pairs = [list(pairwise(words)) for words in (ours, theirs)]
    return {
        "rouge1": _f1(_shared(ours, theirs), len(ours), len(theirs)),
        "rouge2": _f1(_shared(*pairs), len(pairs[0]), len(pairs[1])),
        "rougeL": _f1(_longest_common(ours, theirs), len(ours), len(theirs)),
    }


def _shared(ours: Sequence[object], theirs: Sequence[object]) -> int:
    """How many occur in both, each as often as in the one that has it less often."""
    return (Counter(ours) & Counter(theirs)).total()


def _f1(shared: int, ours: int, theirs: int) -> float:
    return 2 * shared / (ours + theirs) if shared else 0.0


def _longest_common(ours: Sequence[str], theirs: Sequence[str]) -> int:
    """Length of the longest common subsequence."""
    lengths = [0] * (len(theirs) + 1)
    for word in ours:
        before = 0
        for index, other in enumerate(theirs, start=1):
            longest = before + 1 if word == other else max(lengths[index], lengths[index - 1])
            before, lengths[index] = lengths[index], longest
    return lengths[-1]
