"""The operator's mapping, a TOML file, of values of a token's claims to scopes and namespaces.

Read once at start, so that a mistake in it is reported then. Like a key, a caller has one set of scopes for all
namespaces that it sees. Several grants never combine to more rights in a namespace than one of them gives there.
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
ALL = "all"

Name = Annotated[str, Field(min_length=1, max_length=200)]


def _namespaces(value: object) -> object:
    """None for `"all"`; raises ValueError for any other string, which should have been a list."""
    if value == ALL:
        return None
    if isinstance(value, str):
        raise ValueError(f'write a list of namespaces, or "{ALL}"')
    return value


def _check_namespaces(namespaces: tuple[str, ...] | None) -> tuple[str, ...] | None:
    reserved = sorted(RESERVED_NAMESPACES.intersection(namespaces or ()))
    if reserved:
        raise ValueError(f"namespace '{reserved[0]}' is reserved")
    if namespaces == ():
        raise ValueError(f'a caller without any namespace sees nothing; "{ALL}" means all')
    return namespaces


Namespaces = Annotated[tuple[Part, ...] | None, BeforeValidator(_namespaces), AfterValidator(_check_namespaces)]


@dataclass(frozen=True)
class Rights:
    """The display name of a token's caller, its scopes, and the namespaces in which they hold (None: all)."""

    name: str
    scopes: frozenset[str]
    namespaces: tuple[str, ...] | None


class Grant(Frozen):
    """The rights of tokens with one of `values` in `claim`: `scopes` in `namespaces` (None: all)."""

    values: tuple[Name, ...] = Field(min_length=1, max_length=1000)
    claim: Name | None = None
    """Overrides the claim of the whole file."""
    scopes: tuple[KeyScope, ...] = Field(min_length=1)
    namespaces: Namespaces

    def includes(self, scopes: Collection[str]) -> bool:
        """Return True if the grant includes all of these scopes."""
        return "admin" in self.scopes or set(scopes) <= set(self.scopes)


class ClaimMapping(Frozen):
    """The operator's file. The first grant that a token has decides its scopes."""

    claim: Name = "groups"
    name_claim: Name = "preferred_username"
    grants: tuple[Grant, ...] = Field(min_length=1, max_length=1000)

    def rights(self, claims: Mapping[str, Any]) -> Rights | None:
        """The rights of a token: the scopes of its first grant, in all namespaces where one of its grants has them.

        None where it has no grant.
        """
        matching = [
            grant for grant in self.grants if not values_of(claims, grant.claim or self.claim).isdisjoint(grant.values)
        ]
        if not matching:
            return None
        scopes = frozenset[str](matching[0].scopes)
        lists = [grant.namespaces for grant in matching if grant.includes(scopes)]
        namespaces = None if None in lists else tuple(dict.fromkeys(name for names in lists for name in names or ()))
        return Rights(name=self.name_of(claims), scopes=scopes, namespaces=namespaces)

    def name_of(self, claims: Mapping[str, Any]) -> str:
        """The display name of the caller, which grants nothing: many issuers let people choose it."""
        value = claims.get(self.name_claim)
        text = value if isinstance(value, str) else str(claims["sub"])
        return "".join(character for character in text if character.isprintable())[:100].strip() or "nameless"


def values_of(claims: Mapping[str, Any], claim: str) -> frozenset[str]:
    """The strings of a claim; `realm_access.roles` is a path into an object, unless a claim has that name."""
    value: Any = claims.get(claim)
    if value is None:
        value = claims
        for step in claim.split("."):
            value = value.get(step) if isinstance(value, Mapping) else None
    if isinstance(value, str):
        return frozenset(value.split() if claim in SPACED else (value,))
    return frozenset(item for item in value if isinstance(item, str)) if isinstance(value, list) else frozenset()


def read_mapping(path: Path) -> ClaimMapping:
    """The mapping of a file; raises InvalidParameter with every problem."""
    table = read_toml(path, subject="mapping of tokens", param="oidc_mapping")
    try:
        return ClaimMapping.model_validate(table)
    except ValidationError as error:
        problems = [
            _problem(detail["loc"], describe_error(detail))
            for detail in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidParameter(
            f"{path} is not a valid mapping of tokens: {problems[0]}", param="oidc_mapping", problems=problems
        ) from None


def _problem(location: tuple[int | str, ...], description: str) -> str:
    """A problem with its location; grants are counted from 1."""
    path = ".".join(str(step + 1) if isinstance(step, int) else step for step in location)
    return f"{path}: {description.removeprefix('Value error, ')}."
