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
    """The manifest, card or configuration is malformed, for example by a key that occurs twice."""


class UnknownMethod(Invalid):
    """The server does not know the adapter's method or structure."""


class InvalidWeights(Invalid):
    """The weights file is invalid; `problems` lists all errors."""


class InvalidSample(Invalid):
    """The sample has too few passages or too many characters, is unreadable, or was embedded by another encoder."""


class InvalidRecipe(Invalid):
    """The recipe has no ingredient or too many, no weight above 0, or an unknown mixing method."""


class InvalidPrompt(Invalid):
    """The prompt is empty or longer than the context."""


class InvalidParameter(Invalid):
    """Another parameter is invalid or out of range."""


class DigestMismatch(Invalid):
    """The bytes do not match their digest or length."""


class TooLarge(SoupError):
    """The request exceeds a configured limit on sizes or counts."""


class QuotaExceeded(TooLarge):
    """The request would exceed the quota of a key or namespace for stored bytes or adapters."""


class Incompatible(SoupError):
    """Adapters, models or options do not fit together. `problems` lists all reasons; the message suggests a way out."""


class NotFound(SoupError):
    """The object does not exist, or the key cannot see it."""


class Retired(SoupError):
    """The version was retired, or it was purged and cannot be restored."""


class Conflict(SoupError):
    """The request contradicts stored data."""


class WrongOffset(SoupError):
    """A part of an upload does not begin at `offset`, the end of the stored bytes, or another part is being written."""

    def __init__(self, message: str, *, offset: int = 0, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.offset = offset


class PreconditionFailed(SoupError):
    """The object has changed: `If-Match` names another state than the current one."""


class Unauthenticated(SoupError):
    """The request has no key, or a key that is unknown, expired, replaced or revoked."""


class Forbidden(SoupError):
    """The key lacks the scope or the namespace."""


class Busy(SoupError):
    """A queue or a shared limit is full; retry after `retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: int = 1, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after = retry_after


class RateLimitExceeded(Busy):
    """The key or namespace has used up its rate limit, or its quota of jobs."""


class TooSlow(SoupError):
    """The rest of the request did not arrive in time."""


class Cancelled(SoupError):
    """The caller or an operator cancelled the work."""


class Unavailable(SoupError):
    """A dependency is unavailable, such as a base model, the database or the blob folder.

    Retry every `retry_after` seconds; if it is None, a retry cannot help.
    """

    def __init__(
        self, message: str, *, retry_after: int | None = 5, param: str | None = None, problems: Sequence[str] = ()
    ) -> None:
        super().__init__(message, param=param, problems=problems)
        self.retry_after = retry_after


class DamagedBlob(SoupError):
    """A stored file is missing, or its bytes do not match its digest; the message names the file."""


class Internal(SoupError):
    """The server has an error; only its log has the message."""


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
