"""The grammar of names, refs and digests, and the canonical JSON that values are hashed in.

Digests are checked against the pattern here before a path is built from them.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, StringConstraints

from registry.errors import InvalidName, InvalidParameter

DIGEST_PATTERN = r"^sha256:[0-9a-f]{64}$"
PART_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
RESERVED_NAMESPACES = frozenset({"base", "v1", "api", "docs", "static", "ui", "models", "adapters"})

Digest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
Part = Annotated[str, StringConstraints(pattern=PART_PATTERN)]
"""One part of a name: a namespace, a name within it, a base model's id, a tag."""
KeyScope = Literal["read", "write", "infer", "admin"]
"""The scopes of a key; `admin` implies all others."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts of addresses that only this machine can answer."""
COOKS = ("cook", "search")
"""Kinds of job that cook: a `search` takes minutes. Their request is stored in a blob."""


def canonical_json(value: Any) -> bytes:
    """The canonical bytes of a JSON value: sorted keys, no spaces, UTF-8, no NaN."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sha256_digest(data: bytes) -> str:
    """`sha256:` and 64 lower-case hex digits of `data`."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def file_digest(path: Path) -> str:
    """The `sha256_digest` of a file, read in chunks."""
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def digest_of(value: Any) -> str:
    """The digest of a value's canonical JSON."""
    return sha256_digest(canonical_json(value))


@dataclass(frozen=True)
class BaseRef:
    """`base/<id>`: a base model without an adapter."""

    id: str

    def __str__(self) -> str:
        return f"base/{self.id}"


@dataclass(frozen=True)
class NameRef:
    """`<ns>/<name>[@<int>|@<alias>]`; without a suffix, the newest live version."""

    namespace: str
    name: str
    version: int | None = None
    alias: str | None = None

    def __str__(self) -> str:
        suffix = self.version if self.version is not None else self.alias
        return f"{self.namespace}/{self.name}" + ("" if suffix is None else f"@{suffix}")


@dataclass(frozen=True)
class DigestRef:
    """`sha256:<64 hex>`: an adapter digest."""

    digest: str

    def __str__(self) -> str:
        return self.digest


Ref = BaseRef | NameRef | DigestRef


def is_part(text: str) -> bool:
    """Return True if a text matches the grammar of a name part."""
    return re.fullmatch(PART_PATTERN, text, re.ASCII) is not None


def check_names(names: Sequence[str], param: str) -> list[str]:
    """A list of names; raises InvalidParameter for a single text, whose letters would be taken for names."""
    if isinstance(names, str):
        raise InvalidParameter(f"Give a list of {param}, such as [{names[:64]!r}], not a text.", param=param)
    return list(names)


def check_part(text: str, label: str) -> str:
    """Return `text` if it matches the grammar of a name part, else raise InvalidName, which calls it `label`."""
    if not is_part(text):
        raise InvalidName(
            f"{label} {text[:80]!r} is not valid: use 1 to 64 of a-z, 0-9, '.', '_' and '-', "
            "starting with a letter or digit.",
            param=label,
        )
    return text


def check_alias(text: str) -> str:
    """Return `text` if it is an alias, a name part that is not all digits, else raise InvalidName."""
    if text.isdigit():
        raise InvalidName(f"Alias {text[:80]!r} is all digits; digits name versions.", param="alias")
    return check_part(text, "alias")


TEMPORARY = "compare-"
"""The prefix of the names of soups that are made for a comparison; random hex digits follow."""
_TEMPORARY_DIGITS = 32


def temporary_name() -> str:
    """A random name that no other soup has."""
    return TEMPORARY + secrets.token_hex(_TEMPORARY_DIGITS // 2)


def like_temporary() -> str:
    """The SQL LIKE pattern of names by `temporary_name`."""
    return TEMPORARY + "_" * _TEMPORARY_DIGITS


def split_name(text: str) -> tuple[str, str]:
    """Split `namespace/name`; raises InvalidName, also for reserved namespaces."""
    namespace, slash, name = text.partition("/")
    if not slash:
        raise InvalidName(f"{text[:80]!r} has no namespace: write it as namespace/name.", param="name")
    if namespace in RESERVED_NAMESPACES:
        raise InvalidName(f"Namespace {namespace!r} is reserved; take another.", param="name")
    return check_part(namespace, "namespace"), check_part(name, "name")


def parse_ref(text: str) -> Ref:
    """Parse a ref; raises InvalidName."""
    if text.startswith("sha256:"):
        if not re.fullmatch(DIGEST_PATTERN, text):
            raise InvalidName("A digest ref is 'sha256:' and 64 lower-case hex digits.", param="ref")
        return DigestRef(digest=text)
    if text.startswith("base/"):
        return BaseRef(id=check_part(text[5:], "base id"))
    body, at, suffix = text.partition("@")
    namespace, name = split_name(body)
    if not at:
        return NameRef(namespace=namespace, name=name)
    if re.fullmatch(r"[1-9][0-9]{0,8}", suffix):
        return NameRef(namespace=namespace, name=name, version=int(suffix))
    if suffix.isdigit():
        raise InvalidName(
            f"{suffix[:80]!r} is no version: versions of {body} count from 1, as in {body}@1, to 999999999.",
            param="ref",
        )
    return NameRef(namespace=namespace, name=name, alias=check_alias(suffix))
