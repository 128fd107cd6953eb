"""Verifying: a finished soup has to beat the base model on the sample it was cooked from, or nothing is cooked.

Its NLL of the sample is held against the base's, paired by passage; it has to be lower by more than one standard error
of the difference. The text is that which chose the ingredients, so the figure is optimistic. Passages that were held
out had no part in that; there two standard errors are asked for, and more where passages are few or the soup is the
best of several ways on them (docs/explanation/verifying.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from registry.context import BaseModel
from registry.cook.mix import Mixed
from registry.errors import InvalidParameter, InvalidSample
from registry.mixing.compat import SoupIngredient
from registry.progress import Progress
from registry.spec import BY_GRADIENTS, WEIGHING, Effort, Verification
from registry.uncertainty import paired_difference, t_quantile

MARGIN, HELD_OUT_MARGIN = 1.0, 2.0
"""Standard errors by which a soup has to be better: on the sample that chose it, and at least on passages held out."""
LEVEL = 0.05
"""How often, at most, one of all the ways that are tried on held-out passages is to be said to help where none does."""


def check_verifiable(base: BaseModel, parts: Sequence[SoupIngredient], *, effort: Effort | None) -> None:
    """Raises InvalidParameter where a soup of these parts has no likelihood of a text, before anything is mixed."""
    named = f"base model {base.entry.id!r} is an encoder" if base.shape.kind == "encoder" else None
    headed = next((part for part in parts if part.config.head is not None), None)
    if named is None and headed is not None:
        named = f"{headed.ref} answers with a head"
    if named is not None:
        if effort in BY_GRADIENTS:  # these never go unverified
            instead = "; choose 'instant', with 'verify' false" if effort in WEIGHING else ""
            raise InvalidParameter(f"Effort {effort!r} goes by losses on text, and {named}{instead}.", param="effort")
        raise InvalidParameter(
            f"Verifying scores the sample as text, and {named}: set 'verify' to false.", param="verify"
        )


def verify_soup(mixed: Mixed, texts: Sequence[str], *, base_nll: np.ndarray | None, progress: Progress) -> Verification:
    """The soup against the base on the texts that chose it; a pass before may have yielded the base's NLL (texts,)."""
    soup, tokens = nll_of(mixed, texts, progress=progress)
    base = base_nll
    if base is None:
        base = np.array([score.nll for score in mixed.base.score(texts, None, progress=progress)])
    return verification_of(soup, base, tokens, held_out=False)


def nll_of(mixed: Mixed, texts: Sequence[str], *, progress: Progress) -> tuple[np.ndarray, np.ndarray]:
    """NLL in nats and tokens of texts under a soup: two arrays (texts,)."""
    scores = mixed.base.score(texts, mixed.adapter, progress=progress)
    return np.array([score.nll for score in scores]), np.array([score.tokens for score in scores])


def verification_of(
    soup: np.ndarray, base: np.ndarray, tokens: np.ndarray, *, held_out: bool, ways: int = 1
) -> Verification:
    """What NLLs in nats and token counts of passages (passages,) say of a soup; raises InvalidSample without tokens.

    On passages that had a part in choosing one standard error is asked for; on those that were held out `margin_of`
    the best of so many `ways`.
    """
    scored = int((tokens > 0).sum())
    if not scored:
        raise InvalidSample("The sample holds no token that the base model can score.", param="sample")
    paired = paired_difference(soup, base, tokens)
    margin = margin_of(scored, ways) if held_out else MARGIN
    return Verification(
        base_nll=float(base.sum() / tokens.sum()),
        soup_nll=float(soup.sum() / tokens.sum()),
        **vars(paired),
        passages=len(tokens),
        tokens=int(tokens.sum()),
        helps=margin is not None and paired.difference < -margin * paired.standard_error,
        held_out=held_out,
        ways=ways,
        margin=margin if held_out else None,
    )


def margin_of(passages: int, ways: int) -> float | None:
    """Standard errors that the best of so many ways has to be better by on held-out passages; None of one passage.

    Each way may be said to help at LEVEL over their number (Bonferroni), by Student's t, and by two errors at least.
    """
    return max(HELD_OUT_MARGIN, t_quantile(passages, LEVEL / ways)) if passages > 1 else None


def why_not(verification: Verification) -> str:
    """The sentence that an abstention gives for a soup that does not help."""
    where, by = "On the sample", "one standard error"
    if verification.held_out:
        where, by = f"On the {verification.passages} passages that were held out", "two standard errors"
        margin = verification.margin or HELD_OUT_MARGIN
        if margin > HELD_OUT_MARGIN:
            best = f"the best of {verification.ways} soups" if verification.ways > 1 else "a soup"
            by = f"the {margin:.2f} standard errors that so few ask of {best}"
    return (
        f"{where} it does not beat the base model by {by}: mean NLL "
        f"{verification.soup_nll:.4f} against {verification.base_nll:.4f}, difference "
        f"{verification.difference:+.4f} ± {verification.standard_error:.4f}."
    )
