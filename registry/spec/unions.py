"""The names by which members of the unions are told apart, derived from the unions themselves.

pydantic puts such a name behind a field in the location of an error (`selector.gmm.dimensions`); nobody sent it, so
whoever tells people of a field leaves it out. Used by the service's and the command line's messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, get_args

from registry.spec.config import AdapterConfig
from registry.spec.mixing import MixingRequest
from registry.spec.selection import SelectorSpec


def member_names(union: Any) -> frozenset[str]:
    """The names by which the members of a union (a type that says what tells them apart) are told apart."""
    members, about, *_ = get_args(union)
    return frozenset(
        name for member in get_args(members) for name in get_args(member.model_fields[about.discriminator].annotation)
    )


UNION_MEMBERS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "config": member_names(AdapterConfig),
        "mixing": member_names(MixingRequest),
        "selector": member_names(SelectorSpec),
    }
)
"""Field of a request -> names of the members its value may be."""
