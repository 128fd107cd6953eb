"""Accept a soup that beats the base model on the sample; otherwise abstain.

The soup's NLL is compared with the base's, paired by passage; it has to be lower by more than one standard error of the
difference. On the text that chose the ingredients the figure is optimistic. On passages that were held out two standard
errors are asked for, and more where passages are few or the soup is the best of several on them
(docs/explanation/selection.md#verifying).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from registry.context import BaseModel
from registry.errors import InvalidParameter, InvalidSample
from registry.mixing.compat import SoupIngredient
from registry.spec import HOLDS_OUT, WEIGHING, Effort, Verification
from registry.uncertainty import paired_difference, t_quantile

MARGIN, HELD_OUT_MARGIN = 1.0, 2.0
"""Standard errors by which a soup has to be better: on the sample that chose it, and at least on held-out passages."""
LEVEL = 0.05
"""The most often that one of all candidates may be accepted on held-out passages where none helps."""


def check_verifiable(base: BaseModel, ingredients: Sequence[SoupIngredient], *, effort: Effort | None) -> None:
    """Raises InvalidParameter where a soup of these has no likelihood of a text, before anything is mixed."""
    obstacle = f"base model {base.entry.id!r} is an encoder" if base.shape.kind == "encoder" else None
    with_head = next((ingredient for ingredient in ingredients if ingredient.config.head is not None), None)
    if obstacle is None and with_head is not None:
        obstacle = f"{with_head.ref} answers with a head"
    if obstacle is None:
        return
    if effort in HOLDS_OUT:  # these never go unverified
        instead = "; choose 'instant', with 'verify' false" if effort in WEIGHING else ""
        raise InvalidParameter(f"Effort {effort!r} compares losses on text, and {obstacle}{instead}.", param="effort")
    raise InvalidParameter(
        f"Verification scores the sample as text, and {obstacle}: set 'verify' to false.", param="verify"
    )


def verification_of(
    soup: np.ndarray, base: np.ndarray, tokens: np.ndarray, *, held_out: bool, ways: int = 1
) -> Verification:
    """Compare NLLs in nats of passages, (passages,) each, with their token counts; raises InvalidSample without tokens.

    On passages that had a part in choosing, one standard error is asked for; on held-out ones `margin_of` the best of
    `ways` candidates.
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
    """The margin, in standard errors, for the best of `ways` candidates on held-out passages; None for one passage.

    Each candidate may be accepted at LEVEL over their number (Bonferroni), by Student's t, and by two errors at least.
    """
    return max(HELD_OUT_MARGIN, t_quantile(passages, LEVEL / ways)) if passages > 1 else None


def why_not(verification: Verification) -> str:
    """The sentence of an abstention for a soup that does not help."""
    where, by = "On the sample", "one standard error"
    if verification.held_out:
        margin = verification.margin
        if margin is None:
            return "Only one held-out passage can be scored, too few for a comparison: send more passages."
        where, by = f"On the {verification.passages} held-out passages", "two standard errors"
        if margin > HELD_OUT_MARGIN:
            best = f" of the best of {verification.ways} soups" if verification.ways > 1 else ""
            by = f"{margin:.2f} standard errors, as required{best} on so few passages"
    return (
        f"{where}, the soup does not beat the base model by {by}: mean NLL "
        f"{verification.soup_nll:.4f} against {verification.base_nll:.4f}, difference "
        f"{verification.difference:+.4f} ± {verification.standard_error:.4f}."
    )
