"""The effort of a cook that leaves it open, by the settings of the namespace that it writes to and of the server."""

from __future__ import annotations

from registry.catalogue.database import Catalogue, Database
from registry.context import Registry
from registry.errors import Forbidden
from registry.select.pools import pool_base
from registry.spec import WEIGHING, AutoMixing, CookRequest


def with_default_effort(registry: Registry, request: CookRequest, namespace: str) -> CookRequest:
    """The request with an effort, if it has a sample and names no effort, selector or recipe.

    The effort is `tune` if that is the default of `namespace` and the request has verification, and so a sample with
    text. Otherwise it is the server's default, or `instant` if that default weighs adapters and the request does not
    allow it.

    Raises Forbidden for effort `tune` if the namespace forbids it, InvalidParameter if the base model is ambiguous, and
    Unavailable if it cannot be read.
    """
    with registry.database.read() as catalogue:
        if request.effort == "tune":
            check_tuning(catalogue, namespace)
        if (request.effort, request.selector, request.recipe) != (None, None, None):
            return request
        tunes_by_default = catalogue.namespaces.get(namespace).tuning == "default"
    if tunes_by_default and request.verify:
        return request.model_copy(update={"effort": "tune"})
    weighs = registry.default_effort in WEIGHING
    effort = "instant" if weighs and not _can_weigh(registry, request) else registry.default_effort
    return request.model_copy(update={"effort": effort})


def _can_weigh(registry: Registry, request: CookRequest) -> bool:
    """Return True if an effort that weighs would take the request: it neither says how to mix nor not to verify."""
    is_open = request.verify and not request.options.single and request.mixing == AutoMixing()
    return is_open and registry.bases[pool_base(request.pool, registry.bases)].shape.kind != "encoder"


def may_tune(database: Database, namespace: str) -> bool:
    """Return True if soups may be tuned in the namespace."""
    with database.read() as catalogue:
        return catalogue.namespaces.get(namespace).tuning != "forbid"


def check_tuning(catalogue: Catalogue, namespace: str) -> None:
    """Raises Forbidden where no soup may be tuned in the namespace."""
    if catalogue.namespaces.get(namespace).tuning == "forbid":
        raise Forbidden(
            f"Namespace {namespace!r} forbids tuned soups: use effort 'quick' or 'instant', write to another "
            "namespace, or ask an admin to set its 'tuning' to 'allow'.",
            param="effort",
        )
