"""An attack: its name, what it tries in one sentence, how it is refused; and what was said to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from registry.errors import SoupError
from service.http.problems import status_of

if TYPE_CHECKING:
    from tests.attacks.target import Target


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attack: status, code and sentence of a refusal, and all that stands in the answer."""

    status: int
    code: str
    message: str
    text: str

    @classmethod
    def of(cls, status: int, body: bytes | str) -> Outcome:
        """An answer over HTTP; one that is no refusal has no code."""
        text = body.decode() if isinstance(body, bytes) else body
        error = json.loads(text)["error"] if text.startswith('{"error"') else {"code": "", "message": ""}
        return cls(status, error["code"], error["message"], text)

    @classmethod
    def by(cls, call: Callable[[], Any]) -> Outcome:
        """The refusal of `call`; an attack that gets through has the status 200."""
        try:
            returned = call()
        except SoupError as error:
            return cls(status_of(error), error.code, error.message, "\n".join((error.message, *error.problems)))
        return cls(200, "", "", repr(returned))


def nothing(_: Target) -> None:
    """No preparation."""


@dataclass(frozen=True)
class Attack:
    """One thing that somebody may try; `says` is part of the refusal, in its sentence or in its list of problems."""

    name: str
    tries: str
    status: int
    code: str
    says: str
    strike: Callable[[Target], Outcome]
    prepare: Callable[[Target], object] = nothing
    """What is there before the attack, made without it: `strike` finds it as `target.prepared`."""


def each(attacks: tuple[Any, ...]) -> pytest.MarkDecorator:
    """A test for each of the attacks, under its name."""
    return pytest.mark.parametrize("attack", attacks, ids=[attack.name for attack in attacks])
