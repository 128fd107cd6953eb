"""The exceptions of the project. Each class has a stable `code`; `service.http.problems` maps classes to HTTP statuses.

SoupError
├── Invalid: the request cannot be accepted
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
    """The base class: `message` is a sentence for people, `param` the field it is about, `problems` lists details.

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
    """The request cannot be accepted."""


class InvalidName(Invalid):
    """A namespace, name, alias or ref does not match the grammar."""


class InvalidManifest(Invalid):
    """The manifest, card or config is malformed; a key that comes twice counts."""


class UnknownMethod(Invalid):
    """An adapter method or structure this server does not have."""


class InvalidWeights(Invalid):
    """The weights file cannot be accepted; `problems` lists all that is wrong with it."""


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
    """A key or a namespace would exceed its quota of stored bytes or adapters."""


class Incompatible(SoupError):
    """Adapters, models or options that do not fit together; `problems` lists all reasons, the message a way out."""


class NotFound(SoupError):
    """Unknown, or not visible to this key."""


class Retired(SoupError):
    """Known, and deleted."""


class Conflict(SoupError):
    """Contradicts what is stored."""


class WrongOffset(SoupError):
    """A part of an upload does not begin at `offset`, where the stored bytes end, or is sent beside another part."""

    def __init__(self, message: str, *, offset: int = 0, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.offset = offset


class PreconditionFailed(SoupError):
    """If-Match names another state than the current one."""


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
    """A key or a namespace has used up its rate limit, or its quota of jobs."""


class TooSlow(SoupError):
    """The rest of a request did not arrive in time."""


class Cancelled(SoupError):
    """The work was cancelled by the caller or an operator."""


class Unavailable(SoupError):
    """A dependency is unavailable: a base model that is not loaded, the database, the folder of the blobs.

    `retry_after` is the interval in seconds at which to try again; for how long it is unavailable is mostly unknown.
    """

    def __init__(
        self, message: str, *, retry_after: int = 5, param: str | None = None, problems: Sequence[str] = ()
    ) -> None:
        super().__init__(message, param=param, problems=problems)
        self.retry_after = retry_after


class DamagedBlob(SoupError):
    """A stored file is missing, or its bytes do not match its digest; the message names it."""


class Internal(SoupError):
    """A broken invariant of the server; the message says which."""


def _tree(cls: type[SoupError]) -> dict[str, type[SoupError]]:
    classes = {cls.code: cls}
    for child in cls.__subclasses__():
        classes |= _tree(child)
    return classes


BY_CODE: dict[str, type[SoupError]] = _tree(SoupError)
"""Exception classes by code."""


def more_problems(count: int, *, stop: str = "") -> str:
    """The suffix of a message that names the first of `count` problems: ' (2 more problems)', empty for one.

    `stop` is the full stop inside the brackets where a whole sentence precedes them.
    """
    more = count - 1
    return f" ({more} more {'problem' if more == 1 else 'problems'}{stop})" if more > 0 else ""


def as_dict(error: SoupError) -> dict[str, object]:
    """The JSON value of an error, which a failed job stores and `rebuild` reads."""
    return {"code": error.code, "message": error.message, "param": error.param, "problems": list(error.problems)}


def rebuild(code: str, message: str, *, param: str | None = None, problems: Sequence[str] = ()) -> SoupError:
    """The error of a stored or received code; codes of a newer server become plain SoupError."""
    error = BY_CODE.get(code, SoupError)(message)
    error.param = param
    error.problems = tuple(problems)
    return error
