"""Resolve the adapter or base model that a request names, once per request, in a thread.

Unknown names and those of other namespaces are both NotFound, deleted ones Retired; an adapter that cannot be used is
an error and never silently replaced by the base model.
"""

from __future__ import annotations

from dataclasses import dataclass

from registry.adapters.loadable import LoadableAdapter
from registry.base_model import BaseText
from registry.catalogue import AdapterRow
from registry.errors import Incompatible, InvalidName, InvalidParameter, NotFound, Unavailable
from registry.names import BaseRef, NameRef, check_part, parse_ref
from registry.stored.adapters import loadable
from service.access.keys import Principal
from service.base_models import ServedBaseModel
from service.engine.text_support import check_supports_text
from service.services import Services


@dataclass(frozen=True)
class ResolvedModel:
    """A base model, with an adapter or without.

    `name` is the model's name in answers: the text of the request, or the adapter's ref if the server has `chosen` it.
    """

    name: str
    base_id: str
    base: BaseText
    row: AdapterRow | None = None
    handle: LoadableAdapter | None = None
    chosen: bool = False

    @property
    def digest(self) -> str | None:
        """The adapter's digest, None for the base model alone."""
        return None if self.row is None else self.row.digest

    @property
    def fingerprint(self) -> str:
        """The adapter's digest, else the base model's fingerprint. Sent as `system_fingerprint`."""
        return self.digest or self.base.shape.fingerprint

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every answer: the fingerprint, a chosen model's name, and a mark if it learnt from a sample."""
        headers = {"x-soup-digest": self.fingerprint}
        if self.chosen:
            headers["x-soup-model"] = self.name
        if self.row is not None and self.row.learnt_from:
            headers["x-soup-tuned"] = "true"
        return headers


def name_ref(ns: str, name: str) -> NameRef:
    """Parse the ref in a path, whose `name` may contain `@version` or `@alias`; raises InvalidName."""
    ref = parse_ref(f"{ns}/{name}")
    if not isinstance(ref, NameRef):
        raise InvalidName(f"'{ns}/{name[:80]}' names no adapter.", param="name")
    return ref


def adapter_named(services: Services, principal: Principal, ns: str, name: str) -> AdapterRow:
    """Return the adapter that a path names, as this key sees it; raises InvalidName, NotFound or Retired."""
    with services.registry.database.read_autocommit() as catalogue:
        return catalogue.adapters.resolve(principal.namespaces, name_ref(ns, name))


def resolve_model(services: Services, principal: Principal, text: str) -> ResolvedModel:
    """Resolve a base id, `base/<id>` or any ref to a model, whose weights are loaded when it runs.

    Raises InvalidName, NotFound, Retired, Unavailable (its base is not on the allowlist) and Incompatible (the
    operator has replaced the base under the adapter).
    """
    if "/" not in text and not text.startswith("sha256:"):
        return ResolvedModel(name=text, base_id=text, base=base_named(services, check_part(text, "model")).text)
    ref = parse_ref(text)
    if isinstance(ref, BaseRef):
        return ResolvedModel(name=text, base_id=ref.id, base=base_named(services, ref.id).text)
    with services.registry.database.read_autocommit() as catalogue:
        row = catalogue.adapters.resolve(principal.namespaces, ref)
    if row.base_model not in services.bases:
        raise Unavailable(f"'{row.ref}' needs base model '{row.base_model}', which this server no longer serves.")
    base = services.bases[row.base_model].text
    if base.shape.fingerprint != row.base_fingerprint:
        raise Incompatible(
            f"'{row.ref}' was made for another state of base model '{row.base_model}' "
            f"({row.base_fingerprint[:19]} and not {base.shape.fingerprint[:19]})."
        )
    return ResolvedModel(
        name=text, base_id=row.base_model, base=base, row=row, handle=loadable(row, services.registry.blobs)
    )


def language_model(services: Services, principal: Principal, text: str) -> ResolvedModel:
    """Resolve a model that can continue or score text.

    Raises as `resolve_model` does, and InvalidParameter for adapters with a head, banks of experts, and encoders.
    """
    model = resolve_model(services, principal, text)
    check_supports_text(model.base.shape, None if model.row is None else model.row.config, f"'{text}'")
    return model


def sole_base(services: Services) -> str:
    """Return the id of the server's only base model, for a request that names none; raises InvalidParameter."""
    if len(services.bases) != 1:
        choice = ", ".join(f"'{base_id}'" for base_id in sorted(services.bases)) or "none"
        raise InvalidParameter(
            f"Name a 'model': it may be left out where there is one base model, and here there are "
            f"{len(services.bases)} ({choice}).",
            param="model",
        )
    return next(iter(services.bases))


def base_named(services: Services, base_id: str) -> ServedBaseModel:
    """Return the base model of an id in a request; raises NotFound."""
    if base_id not in services.bases:
        raise NotFound(f"There is no base model '{base_id}'; adapters are named namespace/name.", param="model")
    return services.bases[base_id]
