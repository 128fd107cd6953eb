"""Resolve the adapter, mixture of adapters or base model that a request names, once per request, in a thread.

Unknown names and those of other namespaces are both NotFound, deleted ones Retired; an adapter that cannot be used is
an error and never silently replaced by the base model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from registry.adapters.loadable import LoadableAdapter
from registry.base_model import BaseText
from registry.catalogue import AdapterRow
from registry.cook.ingredients import recipe_ingredients
from registry.cook.mix import MixPlan, PlannedRecipe, choose_recipe
from registry.errors import Incompatible, InvalidName, InvalidParameter, InvalidRecipe, NotFound, Unavailable
from registry.names import BaseRef, NameRef, check_part, parse_ref
from registry.spec import MAX_WIDTH, AdapterConfig, AutoMixing, HandRecipe, WeightedRef
from registry.stored.adapters import loadable
from service.access.keys import Principal
from service.base_models import ServedBaseModel
from service.engine.text_support import check_supports_text
from service.http.models.mixture_names import is_mixture, mixture_name, parse_mixture
from service.http.schemas.wire import MixedAdapter
from service.services import Services


@dataclass(frozen=True)
class ResolvedModel:
    """A base model, with an adapter or a mixture of adapters or without.

    `name` is the model's name in answers: the text of the request, or the adapter's ref if the server has `chosen` it.
    `rows` are the stored adapters with their shares of what the model costs, which sum to 1: none for the base model
    alone, one for an adapter. A mixture is `planned`, and `mix` mixes it.
    """

    name: str
    base_id: str
    base: BaseText
    rows: tuple[tuple[AdapterRow, float], ...] = ()
    stored: LoadableAdapter | None = None
    planned: PlannedRecipe | None = None
    mix: Callable[[], LoadableAdapter] | None = field(default=None, compare=False, repr=False)
    chosen: bool = False

    @cached_property
    def handle(self) -> LoadableAdapter | None:
        """The adapter, None for the base model alone. The first use mixes a mixture: after a request is admitted."""
        return self.stored if self.mix is None else self.mix()

    @property
    def config(self) -> AdapterConfig | None:
        """The adapter's configuration, None for the base model alone."""
        adapter = self.stored or self.planned
        return None if adapter is None else adapter.config

    @property
    def identity(self) -> str:
        """The digest of the stored adapter or of the mixture's recipe, else the id of the base model."""
        if self.planned is not None:
            return self.planned.recipe.digest
        return self.base_id if self.stored is None else self.stored.digest

    @property
    def digest(self) -> str | None:
        """The adapter's digest, for a mixture that of the equal stored soup; None for the base model alone."""
        return None if self.handle is None else self.handle.digest

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
        if any(row.learnt_from for row, _ in self.rows):
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
    """Resolve a base id, `base/<id>`, any ref, or the name of a mixture; its weights are loaded when it runs.

    Raises InvalidName, NotFound, Retired, Unavailable (its base is not on the allowlist) and Incompatible (the
    operator has replaced the base under the adapter); for a mixture also as `mixture_of` does.
    """
    if is_mixture(text):
        return mixture_of(services, principal, parse_mixture(text), name=text)
    if "/" not in text and not text.startswith("sha256:"):
        return ResolvedModel(name=text, base_id=text, base=base_named(services, check_part(text, "model")).text)
    ref = parse_ref(text)
    if isinstance(ref, BaseRef):
        return ResolvedModel(name=text, base_id=ref.id, base=base_named(services, ref.id).text)
    with services.registry.database.read_autocommit() as catalogue:
        row = catalogue.adapters.resolve(principal.namespaces, ref)
    return ResolvedModel(
        name=text,
        base_id=row.base_model,
        base=unchanged_base(services, row),
        rows=((row, 1.0),),
        stored=loadable(row, services.registry.blobs),
    )


def mixture_of(
    services: Services, principal: Principal, adapters: Sequence[MixedAdapter], *, name: str, base: str | None = None
) -> ResolvedModel:
    """Resolve adapters with weights to the soup of that recipe by hand, without mixing it; one adapter is itself.

    Raises as a cook by this recipe does, and InvalidParameter where `base`, if there is one, does not name the base
    model of the adapters.
    """
    param = "model" if base is None else "adapters"
    try:
        return _planned_mixture(services, principal, adapters, name=name, base=base)
    except (InvalidRecipe, Incompatible) as error:
        raise type(error)(error.message, param=param) from error


def _planned_mixture(
    services: Services, principal: Principal, adapters: Sequence[MixedAdapter], *, name: str, base: str | None
) -> ResolvedModel:
    recipe = HandRecipe(ingredients=tuple(WeightedRef(ref=item.ref, weight=item.weight) for item in adapters))
    rows, ingredients = recipe_ingredients(services.registry, principal.caller, recipe)
    base_id = rows[0].base_model
    if base is not None:
        named = resolve_model(services, principal, base)
        if named.config is not None or named.base_id != base_id:
            raise InvalidParameter(
                f"The 'adapters' belong to base model '{base_id}': set 'model' to it instead of '{base}'.",
                param="model",
            )
    if len(rows) == 1:
        return replace(resolve_model(services, principal, rows[0].ref), name=name)
    served = _base_of(services, rows[0])
    planned, _ = choose_recipe(served, MixPlan(ingredients, AutoMixing(), MAX_WIDTH))
    shares = [float(ingredient.weight) for ingredient in ingredients]
    return ResolvedModel(
        name=name,
        base_id=base_id,
        base=served.text,
        rows=tuple(zip(rows, shares, strict=True)),
        planned=planned,
        mix=partial(services.mixtures.adapter, planned),
    )


def unchanged_base(services: Services, row: AdapterRow) -> BaseText:
    """The base model of an adapter; raises Unavailable if it is not served, Incompatible if it was replaced."""
    base = _base_of(services, row).text
    if base.shape.fingerprint != row.base_fingerprint:
        raise Incompatible(
            f"'{row.ref}' was made for another state of base model '{row.base_model}' "
            f"({row.base_fingerprint[:19]} and not {base.shape.fingerprint[:19]})."
        )
    return base


def _base_of(services: Services, row: AdapterRow) -> ServedBaseModel:
    if row.base_model not in services.bases:
        raise Unavailable(f"'{row.ref}' needs base model '{row.base_model}', which this server no longer serves.")
    return services.bases[row.base_model]


def model_or_mixture(
    services: Services, principal: Principal, text: str, adapters: Sequence[MixedAdapter] | None
) -> ResolvedModel:
    """Resolve a model, or a base model's mixture of these adapters; raises as `resolve_model` and `mixture_of` do."""
    if adapters is None:
        return resolve_model(services, principal, text)
    return mixture_of(services, principal, adapters, name=mixture_name(adapters), base=text)


def language_model(
    services: Services, principal: Principal, text: str, adapters: Sequence[MixedAdapter] | None = None
) -> ResolvedModel:
    """Resolve a model that can continue or score text, or a base model's mixture of these adapters.

    Raises as `model_or_mixture` does, and InvalidParameter for adapters with a head, banks of experts, and encoders.
    """
    model = model_or_mixture(services, principal, text, adapters)
    check_supports_text(model.base.shape, model.config, f"'{model.name}'")
    return model


def sole_base(services: Services, *, param: str = "model") -> str:
    """Return the id of the server's only base model, for a request without `param`; raises InvalidParameter."""
    if len(services.bases) != 1:
        choice = ", ".join(f"'{base_id}'" for base_id in sorted(services.bases)) or "none"
        raise InvalidParameter(
            f"Name a '{param}': this server has {len(services.bases)} base models ({choice}), and '{param}' is "
            "optional only with one.",
            param=param,
        )
    return next(iter(services.bases))


def base_named(services: Services, base_id: str) -> ServedBaseModel:
    """Return the base model of an id in a request; raises NotFound."""
    if base_id not in services.bases:
        raise NotFound(f"There is no base model '{base_id}'; adapters are named namespace/name.", param="model")
    return services.bases[base_id]
