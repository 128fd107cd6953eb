"""The mapping: which values of a token's claims bring which scopes, in which namespaces; a TOML file of the operator.

Read once at start, so that a mistake in it is said then. A caller has one set of scopes for all namespaces that it
sees, as a key has: several grants never add up to more in a namespace than one of them gives there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from registry.errors import InvalidParameter
from registry.files import read_toml
from registry.names import RESERVED_NAMESPACES, KeyScope, Part
from registry.spec.frozen import Frozen
from registry.spec.wording import describe_error

SPACED = frozenset({"scope", "scp"})
"""Claims whose string is several values with spaces between (RFC 8693)."""
EVERY = "all"

Name = Annotated[str, Field(min_length=1, max_length=200)]


def _listed(value: object) -> object:
    """`"all"` as None; any other string is a list forgotten."""
    if value == EVERY:
        return None
    if isinstance(value, str):
        raise ValueError(f'write a list of namespaces, or "{EVERY}"')
    return value


def _free(found: tuple[str, ...] | None) -> tuple[str, ...] | None:
    reserved = sorted(RESERVED_NAMESPACES.intersection(found or ()))
    if reserved:
        raise ValueError(f"namespace '{reserved[0]}' is reserved")
    if found == ():
        raise ValueError(f'a caller without any namespace sees nothing; "{EVERY}" means all')
    return found


Where = Annotated[tuple[Part, ...] | None, BeforeValidator(_listed), AfterValidator(_free)]


@dataclass(frozen=True)
class Granted:
    """What a token brings: scopes, and the namespaces that they hold in (None: all)."""

    scopes: frozenset[str]
    namespaces: tuple[str, ...] | None


class Grant(Frozen):
    """What whoever has one of `values` in `claim` may do: `scopes` in `namespaces` (None: all)."""

    values: tuple[Name, ...] = Field(min_length=1, max_length=1000)
    claim: Name | None = None
    """Where it is another than the file's."""
    scopes: tuple[KeyScope, ...] = Field(min_length=1)
    namespaces: Where

    def gives(self, scopes: Collection[str]) -> bool:
        """Whether it brings all of these."""
        return "admin" in self.scopes or set(scopes) <= set(self.scopes)


class Grants(Frozen):
    """The whole file. The first grant that a token has decides its scopes."""

    claim: Name = "groups"
    name_claim: Name = "preferred_username"
    grants: tuple[Grant, ...] = Field(min_length=1, max_length=1000)

    def of(self, claims: Mapping[str, Any]) -> Granted | None:
        """What a token with these claims brings: the scopes of the first grant that it has, wherever one gives them.

        None where it has no grant.
        """
        had = [one for one in self.grants if not values_of(claims, one.claim or self.claim).isdisjoint(one.values)]
        if not had:
            return None
        scopes = frozenset[str](had[0].scopes)
        where = [one.namespaces for one in had if one.gives(scopes)]
        if None in where:
            return Granted(scopes, None)
        return Granted(scopes, tuple(dict.fromkeys(name for names in where for name in names or ())))

    def name_of(self, claims: Mapping[str, Any]) -> str:
        """What people recognise the caller by: never more than a label, since many issuers let people choose it."""
        found = claims.get(self.name_claim)
        text = found if isinstance(found, str) else str(claims["sub"])
        shown = "".join(one for one in text if one.isprintable())[:100].strip()
        return shown or "nameless"


def values_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """The strings of a claim; `realm_access.roles` goes into an object, where no claim has that very name."""
    found: Any = claims.get(claim)
    if found is None:
        found = claims
        for step in claim.split("."):
            found = found.get(step) if isinstance(found, Mapping) else None
    if isinstance(found, str):
        return frozenset(found.split() if claim in SPACED else (found,))
    return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list) else frozenset()


def read_grants(path: Path) -> Grants:
    """The mapping of a file; raises InvalidParameter with every problem."""
    table = read_toml(path, subject="mapping of tokens", param="oidc_mapping")
    try:
        return Grants.model_validate(table)
    except ValidationError as error:
        problems = [
            _said(one["loc"], describe_error(one)) for one in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidParameter(
            f"{path} is not a valid mapping of tokens: {problems[0]}", param="oidc_mapping", problems=problems
        ) from None


def _said(where: tuple[int | str, ...], what: str) -> str:
    """A problem with its place; grants are counted from 1, as people count them."""
    place = ".".join(str(part + 1) if isinstance(part, int) else part for part in where)
    return f"{place}: {what.removeprefix('Value error, ')}."
