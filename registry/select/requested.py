"""The selector that a request names: its pool, its spec, and the encoder it needs.

Called by the select and fit routes, by cook jobs and by `registry.select.select`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from registry.catalogue.database import Database
from registry.context import BaseModel, Caller, Registry
from registry.encoders.contract import Encoder
from registry.errors import Unavailable
from registry.select.pools import check_not_empty, members_of, pool_base, pool_spec
from registry.spec import PoolRequest, PoolSpec, SelectorSpec


@dataclass(frozen=True)
class RequestedSelector:
    """The pool and the spec of a selector that a request names, and the base model of both."""

    base: BaseModel
    pool: PoolSpec
    spec: SelectorSpec

    @cached_property
    def encoder(self) -> Encoder | None:
        """The encoder that the selector needs; raises as `encoder_for` does."""
        return encoder_for(self.spec, self.base.encoders())

    @property
    def encoder_digest(self) -> str | None:
        """The digest of the encoder, None for a selector that reads no text; raises as `encoder_for` does."""
        return None if self.encoder is None else self.encoder.digest


def pool_of(registry: Registry, caller: Caller, request: PoolRequest) -> tuple[BaseModel, PoolSpec]:
    """The base model and the pool of a request; raises InvalidParameter or Forbidden."""
    base = registry.bases[pool_base(request, registry.bases)]
    return base, pool_spec(request, base.shape, caller.namespaces)


def requested_selector(registry: Registry, caller: Caller, pool: PoolRequest, spec: SelectorSpec) -> RequestedSelector:
    """The selector of a request's pool; raises InvalidParameter or Forbidden."""
    return RequestedSelector(*pool_of(registry, caller, pool), spec)


def encoder_for(spec: SelectorSpec, encoders: Mapping[str, Encoder]) -> Encoder | None:
    """The encoder that a selector needs, None if it reads no text; raises Unavailable if it is missing."""
    name = spec.encoder_name
    if name is None:
        return None
    for encoder in encoders.values():
        if encoder.name == name:
            return encoder
    raise Unavailable(f"Encoder {name!r} is not available on this server.")


def check_selectable(database: Database, requested: RequestedSelector) -> None:
    """Raise as `registry.select.pools.check_not_empty` does where the pool has no member."""
    pool, encoder_digest = requested.pool, requested.encoder_digest
    with database.read() as catalogue:
        check_not_empty(catalogue, pool, members_of(catalogue, pool, encoder_digest).rows)
