"""What all values share: frozen, closed to unknown fields, without NaN; and texts that every database stores."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict


def without_nul(text: str) -> str:
    """The text as it is; raises ValueError where it holds a NUL."""
    if "\x00" in text:
        raise ValueError("must not hold the character NUL")  # PostgreSQL stores none
    return text


Words = Annotated[str, AfterValidator(without_nul)]


class Frozen(BaseModel):
    """An immutable value that refuses fields it does not know, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
