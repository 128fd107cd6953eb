"""What all values share: frozen, closed to unknown fields, without NaN; and texts that every database stores."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def without_nul(text: str) -> str:
    """The text as it is; raises ValueError where it holds a NUL."""
    if "\x00" in text:
        raise ValueError("must not hold the character NUL")  # PostgreSQL stores none
    return text


SHOWN_AS_NOTHING = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters, marks and symbols of Unicode that have no form: fillers of Hangul and Khmer, the joiner, braille without
dots. Selectors of another letter's form are not among them."""


def printable(text: str) -> str:
    """The text as it is; raises ValueError where a reader would see something else than what it holds.

    That is where it has control or format characters (Unicode's category C, the bidirectional ones too), letters
    without a form, a blank other than the space, or one at its beginning or its end.
    """
    wrong = next((one for one in text if not one.isprintable() or one in SHOWN_AS_NOTHING), None)
    if wrong is not None:
        raise ValueError(f"must not hold the character U+{ord(wrong):04X}, which is not shown as itself")
    if text != text.strip():
        raise ValueError("must not begin or end with a blank")
    return text


Words = Annotated[str, AfterValidator(without_nul)]


class Frozen(BaseModel):
    """An immutable value that refuses fields it does not know, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
