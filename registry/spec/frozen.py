"""The base class of all values, and the checks of texts."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)


def without_nul(text: str) -> str:
    """Return the text; raises ValueError where it contains a NUL."""
    if "\x00" in text:
        raise ValueError("must not hold the character NUL")  # PostgreSQL stores none
    return text


INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Printable characters of Unicode without a glyph: fillers of Hangul and Khmer, the grapheme joiner, blank braille.
Variation selectors are not among them."""


def printable(text: str) -> str:
    """Return the text; raises ValueError where it contains characters that a reader cannot see.

    These are control and format characters (Unicode's category C, which includes bidirectional ones), characters
    without a glyph, blanks other than the space, and blanks at the beginning or end.
    """
    for character in text:
        if not character.isprintable() or character in INVISIBLE:
            raise ValueError(f"must not hold the character U+{ord(character):04X}, which is not shown as itself")
    if text != text.strip():
        raise ValueError("must not begin or end with a blank")
    return text


def one_of(sentence: str) -> WrapValidator:
    """Return a validator that makes a union fail with one sentence instead of one error per member."""

    def check(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
        try:
            return handler(value)
        except ValidationError as error:
            raise ValueError(sentence) from error

    return WrapValidator(check)


Words = Annotated[str, AfterValidator(without_nul)]


class Frozen(BaseModel):
    """An immutable value that refuses fields it does not know, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
