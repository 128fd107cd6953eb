"""The one exception tree. Every class has a stable `code`; `service.http.problems` alone maps classes to HTTP statuses.

SoupError
├── Invalid: what was sent cannot be accepted
│   ├── InvalidName, InvalidManifest, InvalidWeights, InvalidSample, InvalidRecipe, InvalidPrompt, InvalidParameter
│   └── UnknownMethod, DigestMismatch
├── TooLarge, with QuotaExceeded
├── Incompatible, NotFound, Retired, Conflict, WrongOffset, PreconditionFailed, Unauthenticated, Forbidden
├── Busy, with RateLimitExceeded
└── TooSlow, Cancelled, Unavailable, DamagedBlob, Internal
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class SoupError(Exception):
    """Base of every error of ours: `message` is one sentence for people, `param` the field it is about.

    `code` is the name of the class in lower case: NotFound is `not_found`.
    """

    code = "error"

    def __init_subclass__(cls) -> None:
        cls.code = re.sub("(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, message: str, *, param: str | None = None, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.problems = tuple(problems)


class Invalid(SoupError):
    """What was sent cannot be accepted."""


class InvalidName(Invalid):
    """A namespace, name, alias or ref does not match the grammar."""


class InvalidManifest(Invalid):
    """The manifest, card or config is malformed; a key that comes twice counts."""


class UnknownMethod(Invalid):
    """An adapter method or structure this server does not have."""


class InvalidWeights(Invalid):
    """The weights file cannot be taken; `problems` lists everything that is wrong with it."""


class InvalidSample(Invalid):
    """A sample that is too small, unreadable, or embedded by another encoder."""


class InvalidRecipe(Invalid):
    """Weights that do not sum to one, no ingredient, an unknown mixing method."""


class InvalidPrompt(Invalid):
    """A prompt that is empty or beyond the context."""


class InvalidParameter(Invalid):
    """Any other parameter out of its range."""


class DigestMismatch(Invalid):
    """Bytes that are not what their digest or length says."""


class TooLarge(SoupError):
    """Beyond a configured limit."""


class QuotaExceeded(TooLarge):
    """A key or a namespace holds as much as it may."""


class Incompatible(SoupError):
    """Things that cannot go together; `problems` lists every reason and the message says what could be done."""


class NotFound(SoupError):
    """Unknown, or not visible to this key."""


class Retired(SoupError):
    """Known, and deleted."""


class Conflict(SoupError):
    """Contradicts what is stored."""


class WrongOffset(SoupError):
    """A part of an upload that does not begin at `offset`, where what is held of it ends, or comes beside another."""

    def __init__(self, message: str, *, offset: int = 0, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.offset = offset


class PreconditionFailed(SoupError):
    """If-Match names another state than the present one."""


class Unauthenticated(SoupError):
    """No key, or one that is unknown or revoked."""


class Forbidden(SoupError):
    """The key lacks the scope or the namespace."""


class Busy(SoupError):
    """A bounded queue is full; try again after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: int = 1, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after = retry_after


class RateLimitExceeded(Busy):
    """A key or a namespace has used what it may in a minute, or has as many jobs as it may."""


class TooSlow(SoupError):
    """The rest of a request did not come in time."""


class Cancelled(SoupError):
    """The caller, or an operator, cancelled it."""


class Unavailable(SoupError):
    """Something this needs is not there: a base model that is not loaded, a database, the folder of the blobs.

    Try again after `retry_after` seconds; mostly nobody knows for how long it is away, and so often can be asked.
    """

    def __init__(
        self, message: str, *, retry_after: int = 5, param: str | None = None, problems: Sequence[str] = ()
    ) -> None:
        super().__init__(message, param=param, problems=problems)
        self.retry_after = retry_after


class DamagedBlob(SoupError):
    """A stored file that is missing, or holds other bytes than its digest says; the message names it."""


class Internal(SoupError):
    """A broken invariant of ours; the message says which."""


def _tree(cls: type[SoupError]) -> dict[str, type[SoupError]]:
    found = {cls.code: cls}
    for child in cls.__subclasses__():
        found |= _tree(child)
    return found


BY_CODE: dict[str, type[SoupError]] = _tree(SoupError)


def more_problems(found: int, *, stop: str = "") -> str:
    """What follows the first of `found` problems in a message: ' (2 more problems)', and nothing where it is alone.

    `stop` is the full stop inside the brackets where a whole sentence stands before them.
    """
    more = found - 1
    return f" ({more} more {'problem' if more == 1 else 'problems'}{stop})" if more > 0 else ""


def as_dict(error: SoupError) -> dict[str, object]:
    """An error as JSON: what a failed job stores and `rebuild` reads."""
    return {"code": error.code, "message": error.message, "param": error.param, "problems": list(error.problems)}


def rebuild(code: str, message: str, *, param: str | None = None, problems: Sequence[str] = ()) -> SoupError:
    """The error of a stored or received code; codes of a newer server become plain SoupError."""
    error = BY_CODE.get(code, SoupError)(message)
    error.param = param
    error.problems = tuple(problems)
    return error
