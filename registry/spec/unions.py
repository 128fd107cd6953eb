"""The discriminator values of the unions.

pydantic puts such a value behind a field in the location of an error (`selector.gmm.dimensions`). It is not part of the
request, so messages of the service and the command line leave it out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, get_args

from pydantic import BaseModel

from registry.spec.config import AdapterConfig
from registry.spec.mixing import MixingRequest
from registry.spec.selection import SelectorSpec


def _members(union: Any) -> tuple[type[BaseModel], ...]:
    """The models of an annotated union."""
    return get_args(get_args(union)[0])


def member_names(union: Any) -> frozenset[str]:
    """The discriminator values of the members of an annotated union."""
    discriminator = get_args(union)[1].discriminator
    return frozenset(
        name for member in _members(union) for name in get_args(member.model_fields[discriminator].annotation)
    )


UNION_MEMBERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "config": member_names(AdapterConfig),
        "mixing": member_names(MixingRequest),
        "selector": member_names(SelectorSpec),
    }
)
"""Discriminator values by the field of a request."""
MIXING_REQUESTS: Mapping[str, Any] = MappingProxyType(
    {member.model_fields["method"].default: member for member in _members(MixingRequest)}
)
"""The classes of a `MixingRequest` by their method."""
