"""Keys: their secrets, the principal of a key and its rights, and the file of the admin key.

A key is `sk-soup-` and 43 characters; only its sha256 is stored. `http.security.auth` looks the key up once per request
and gets a Principal; the runtime writes the admin key's file at its first start.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol, get_args

from registry.catalogue import Catalogue, Database, KeyRow
from registry.context import Caller
from registry.errors import Conflict, Forbidden, InvalidParameter, NotFound, Unauthenticated
from registry.files import replace_file
from registry.names import KeyScope
from service.access.key_watch import KeyWatch, Reason, present


def secret_sha256(secret: str) -> str:
    """The hash of a secret, 64 hex digits, which is all that is stored; 256 random bits need no salt.

    Also hashes strings that are no secret of any server, or no valid text.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


log = logging.getLogger("soup.keys")

SCOPES: frozenset[str] = frozenset(get_args(KeyScope))
PREFIX = "sk-soup-"
SECRET_PATTERN = re.compile(r"sk-soup-[A-Za-z0-9_-]{43}", re.ASCII)
VISIBLE_CHARACTERS = len(PREFIX) + 4
"""Characters of a secret that are stored in the clear, so that people recognise their key."""


@dataclass(frozen=True)
class Principal:
    """The authenticated caller of a request: a key, its namespaces (None: all) and its scopes (`admin` implies all)."""

    key_id: str
    namespaces: tuple[str, ...] | None
    scopes: frozenset[str]
    expires_at: datetime | None = None
    request_id: str = ""
    """The id of the current request; empty outside of one."""

    @property
    def caller(self) -> Caller:
        """The caller for which the registry's verbs work in this request."""
        return Caller(self.key_id, self.namespaces, self.request_id)

    def has(self, scope: str) -> bool:
        """Return True if the key has `scope`."""
        return scope in self.scopes or "admin" in self.scopes

    def sees(self, namespace: str) -> bool:
        """Return True if the key sees `namespace`."""
        return self.namespaces is None or namespace in self.namespaces

    @property
    def home(self) -> str:
        """The default namespace of objects the key makes: its first, or `default` for a key that sees all."""
        return "default" if self.namespaces is None else self.namespaces[0]

    @property
    def sharing(self) -> str:
        """The group of keys that share cached prompts: those that see the same namespaces, in any order.

        A key that sees more does not share with keys that see less, which could infer its prompts from the speed of
        their answers.
        """
        return "*" if self.namespaces is None else ",".join(sorted(set(self.namespaces)))

    def manages(self, namespaces: tuple[str, ...] | None) -> bool:
        """Return True if an admin may make, see and change a key with `namespaces`: none that sees more than itself."""
        if self.namespaces is None:
            return True
        return namespaces is not None and set(namespaces) <= set(self.namespaces)

    def check_write(self, namespace: str) -> None:
        """Raises Forbidden unless the key may write in `namespace`."""
        if not self.has("write"):
            raise Forbidden("This key lacks the scope 'write'.")
        if not self.sees(namespace):
            raise Forbidden(f"This key may not write in namespace '{namespace}'.", param="namespace")

    def check_visible(self, namespace: str) -> None:
        """Raises NotFound, as for an unknown object, unless the key sees `namespace`."""
        if not self.sees(namespace):
            raise NotFound("There is no such object, or this key does not see it.")


NO_AUTH_PRINCIPAL = Principal(key_id="no-auth", namespaces=None, scopes=SCOPES)
"""The principal of every request under `no_auth`."""


def new_secret() -> str:
    """A fresh secret: `sk-soup-` and 43 characters of url-safe base64 (256 random bits)."""
    return PREFIX + secrets.token_urlsafe(32)


class Tokens(Protocol):
    """Verifies tokens of an issuer, on servers that accept them: `service.access.identities`."""

    def principal(self, token: str) -> Principal:
        """The principal of a token; raises Unauthenticated, Forbidden or Unavailable."""


def authenticate(
    database: Database,
    header: str | None,
    *,
    watch: KeyWatch,
    tokens: Tokens | None = None,
    clock: Callable[[], datetime] = present,
) -> Principal:
    """The principal of an Authorization header; raises Unauthenticated for none, and for a key that has ended.

    `watch` counts the key as used or refused. `tokens` verifies tokens of an issuer.
    """
    if not header:
        raise Unauthenticated("This needs a key: send 'Authorization: Bearer sk-soup-...'.")
    kind, _, secret = header.partition(" ")
    secret = secret.strip()
    if tokens is not None and kind.lower() == "bearer" and secret.count(".") == 2:
        return tokens.principal(secret)
    if kind.lower() != "bearer" or not SECRET_PATTERN.fullmatch(secret):
        raise Unauthenticated("The Authorization header must be 'Bearer sk-soup-...'.")
    return principal_of(database, secret_sha256(secret), watch=watch, clock=clock)


def principal_of(
    database: Database, hashed: str, *, watch: KeyWatch, clock: Callable[[], datetime] = present
) -> Principal:
    """The principal of the key whose secret has this hash; raises Unauthenticated for a key that has ended."""
    with database.read_autocommit() as catalogue:
        row, ends_at = catalogue.keys.by_secret(hashed), None
        if row is None and (former := catalogue.keys.by_former_secret(hashed)) is not None:
            row, ends_at = former
    refusal = _refusal(row, ends_at, clock())
    if refusal is not None or row is None:
        reason, message = refusal or _UNKNOWN
        watch.refused(reason, None if row is None else row.id)
        raise Unauthenticated(message)
    watch.used(row.id)
    return Principal(row.id, row.namespaces, frozenset(row.scopes), row.expires_at)


_UNKNOWN: tuple[Reason, str] = "unknown", "This key is unknown or revoked."


def _refusal(row: KeyRow | None, ends_at: datetime | None, moment: datetime) -> tuple[Reason, str] | None:
    """The reason and message for which a key is refused, or None; `ends_at` is when a former secret ends."""
    if row is None:
        return _UNKNOWN
    if row.revoked_at is not None:
        return "revoked", _UNKNOWN[1]
    if row.is_expired(moment):
        return "expired", f"This key expired on {row.expires_at:%Y-%m-%d at %H:%M} UTC; ask an admin for another."
    if ends_at is not None and ends_at <= moment:
        return "replaced", f"This secret was replaced on {ends_at:%Y-%m-%d at %H:%M} UTC; use the key's new one."
    return None


# --- the admin key --------------------------------------------------------------------------------


def ensure_admin_key(database: Database, path: Path, bootstrap: str | None = None) -> Path:
    """Make sure that `path` holds a working admin key, and return the path; the secret is never printed.

    The first start writes `bootstrap`, or a fresh secret, with mode 0600 and fsync; later starts read it. The file
    is written before the row: a crash between the two leaves a secret that the next start registers. A key that was
    revoked or has expired stays so, with a warning in the log; other admin keys work. Raises InvalidParameter for a
    bootstrap secret or a file of another form, Conflict where the key has ended and there is no other admin key.
    """
    if bootstrap is not None and not SECRET_PATTERN.fullmatch(bootstrap):
        raise InvalidParameter(
            "SOUP_BOOTSTRAP_KEY must be 'sk-soup-' and 43 characters of url-safe base64.", param="bootstrap_key"
        )
    secret = bootstrap or _read_secret(path) or new_secret()
    hashed = secret_sha256(secret)
    with database.read() as catalogue:
        former = catalogue.keys.by_former_secret(hashed)
    if former is None and _read_secret(path) != secret:
        _write_secret(path, secret)
    with database.write() as catalogue:
        row = catalogue.keys.by_secret(hashed)
        if row is None and former is None:
            catalogue.keys.add(
                "admin", hashed, namespaces=None, scopes=frozenset({"admin"}), prefix=secret[:VISIBLE_CHARACTERS]
            )
            catalogue.audit.record("key.create", "admin", key_id=None, request_id=None, detail={"by": "first start"})
            return path
        fault = _admin_fault(row)
        if fault is not None:
            message = (
                f"The key in {path} {fault}; remove that file, and the next start writes a new one."
                if bootstrap is None
                else f"The key in SOUP_BOOTSTRAP_KEY {fault}; set another, and the next start makes it an admin key."
            )
            if not catalogue.keys.admins():
                raise Conflict(message)
            log.warning("%s Other admin keys work.", message)
    return path


def _admin_fault(row: KeyRow | None) -> str | None:
    """The reason, as the end of a sentence, why a secret no longer belongs to an admin key; None if it does."""
    if row is None:
        return "was replaced by another secret"
    if row.revoked_at is not None:
        return "was revoked"
    if row.is_expired(present()):
        return "expired"
    return None if "admin" in row.scopes else "has no scope 'admin' any more"


def replace_admin_secret(path: Path, former_hash: str, secret: str) -> bool:
    """Write the new secret of a key into the admin key's file; return True if that held the former secret.

    `former_hash` is the hash of the former secret. A file that cannot be read or written is logged.
    """
    try:
        stored = _read_secret(path)
        if stored is None or secret_sha256(stored) != former_hash:
            return False
        _write_secret(path, secret)
    except (InvalidParameter, OSError) as error:  # the secret is in the answer too, and that must not be lost
        log.warning("%s still holds the secret that the key had before (%s)", path, type(error).__name__)
        return False
    return True


def _read_secret(path: Path) -> str | None:
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidParameter(f"{path} cannot be read as a key.", param="data") from error
    if not SECRET_PATTERN.fullmatch(text):
        raise InvalidParameter(
            f"{path} does not hold a key: remove it, and the next start writes a new one.", param="data"
        )
    return text


def _write_secret(path: Path, secret: str) -> None:
    """Write the file atomically, with mode 0600 from the start, through a temporary file of this process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    replace_file(path, f"{secret}\n".encode("ascii"), temporary=temporary, mode=0o600)


def managed_row(catalogue: Catalogue, id: str, principal: Principal) -> KeyRow:
    """Return a key that this one may manage; raises NotFound, also for a key that it may not."""
    row = catalogue.keys.find(id)
    if row is None or not principal.manages(row.namespaces):
        raise NotFound("There is no such key, or this key may not manage it.", param="id")
    return row
