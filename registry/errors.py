"""The one exception tree. Every class has a stable `code`; `service.http.problems` alone maps classes to HTTP statuses.

SoupError
├── Invalid                    what was sent cannot be accepted
│   ├── InvalidName            a namespace, name, alias or ref does not match the grammar
│   ├── InvalidManifest        the manifest, card or config is malformed (duplicate keys included)
│   ├── UnknownMethod          an adapter method or structure this server does not have
│   ├── InvalidWeights         the weights file or its tensors; carries every problem found
│   ├── InvalidSample          too small, unreadable, or embedded by another encoder
│   ├── InvalidRecipe          weights that do not sum to one, no ingredient, unknown mixing
│   ├── InvalidPrompt          empty, or beyond the context
│   ├── InvalidParameter       any other parameter out of its range
│   └── DigestMismatch         bytes that are not what their digest or length says
├── TooLarge                   beyond a configured limit
├── Incompatible               ingredients, adapter and base that cannot go together; carries every reason
├── NotFound                   unknown, or not visible to this key
├── Retired                    known, and deleted
├── Conflict                   contradicts what is stored
├── PreconditionFailed         If-Match names another state
├── Unauthenticated            no key, or one that is unknown or revoked
├── Forbidden                  the key lacks the scope or the namespace
├── Busy                       the queue is full; try again after `retry_after` seconds
├── Cancelled                  the caller, or an operator, cancelled it
├── Unavailable                something this needs is not there (base model not loaded, database behind)
└── Internal                   a broken invariant of ours
"""

from __future__ import annotations

from collections.abc import Sequence


class SoupError(Exception):
    """Base of every error of ours: `message` is one sentence for people, `param` the field it is about."""

    code = "error"

    def __init__(self, message: str, *, param: str | None = None, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.problems = tuple(problems)


class Invalid(SoupError):
    """What was sent cannot be accepted."""

    code = "invalid"


class InvalidName(Invalid):
    """A namespace, name, alias or ref does not match the grammar."""

    code = "invalid_name"


class InvalidManifest(Invalid):
    """The manifest, card or config is malformed."""

    code = "invalid_manifest"


class UnknownMethod(Invalid):
    """An adapter method or structure this server does not have."""

    code = "unknown_method"


class InvalidWeights(Invalid):
    """The weights file cannot be taken; `problems` lists everything that is wrong with it."""

    code = "invalid_weights"


class InvalidSample(Invalid):
    """A sample that is too small, unreadable, or embedded by another encoder."""

    code = "invalid_sample"


class InvalidRecipe(Invalid):
    """Weights that do not sum to one, no ingredient, an unknown mixing method."""

    code = "invalid_recipe"


class InvalidPrompt(Invalid):
    """A prompt that is empty or beyond the context."""

    code = "invalid_prompt"


class InvalidParameter(Invalid):
    """Any other parameter out of its range."""

    code = "invalid_parameter"


class DigestMismatch(Invalid):
    """Bytes that are not what their digest or length says."""

    code = "digest_mismatch"


class TooLarge(SoupError):
    """Beyond a configured limit."""

    code = "too_large"


class Incompatible(SoupError):
    """Things that cannot go together; `problems` lists every reason and the message says what could be done."""

    code = "incompatible"


class NotFound(SoupError):
    """Unknown, or not visible to this key."""

    code = "not_found"


class Retired(SoupError):
    """Known, and deleted."""

    code = "retired"


class Conflict(SoupError):
    """Contradicts what is stored."""

    code = "conflict"


class PreconditionFailed(SoupError):
    """If-Match names another state than the present one."""

    code = "precondition_failed"


class Unauthenticated(SoupError):
    """No key, or one that is unknown or revoked."""

    code = "unauthenticated"


class Forbidden(SoupError):
    """The key lacks the scope or the namespace."""

    code = "forbidden"


class Busy(SoupError):
    """A bounded queue is full."""

    code = "busy"

    def __init__(self, message: str, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Cancelled(SoupError):
    """The caller, or an operator, cancelled it."""

    code = "cancelled"


class Unavailable(SoupError):
    """Something this needs is not there."""

    code = "unavailable"


class Internal(SoupError):
    """A broken invariant of ours; the message says which."""

    code = "internal"


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
    return {
        "code": error.code,
        "message": error.message,
        "param": error.param,
        "problems": list(error.problems),
    }


def rebuild(code: str, message: str, *, param: str | None = None, problems: Sequence[str] = ()) -> SoupError:
    """The error of a stored or received code; codes of a newer server become plain SoupError."""
    error = BY_CODE.get(code, SoupError)(message)
    error.param = param
    error.problems = tuple(problems)
    return error
