"""The effort of a cook that leaves it open, by the settings of the namespace that it writes to and of the server."""

from __future__ import annotations

from registry.catalogue.database import Catalogue, Database
from registry.context import Registry
from registry.errors import Forbidden
from registry.select.pools import pool_base
from registry.spec import BY_GRADIENTS, AutoMixing, CookRequest, Effort


def with_default_effort(
    registry: Registry, request: CookRequest, namespace: str, *, queued: Effort | None = None
) -> CookRequest:
    """The request with an effort, if it has a sample and names no effort, selector or recipe.

    It is `queued` if that is given, or else the server's default, or `tune` if `namespace` tunes by default; `instant`
    if the request does not allow an effort with gradients. `cook` replaces a default `tune` if `namespace` forbids it.

    Raises Forbidden for effort `tune` if the namespace forbids it, InvalidParameter if the base model is ambiguous, and
    Unavailable if it cannot be read.
    """
    with registry.database.read() as catalogue:
        if request.effort == "tune":
            check_tuning(catalogue, namespace)
        if (request.effort, request.selector, request.recipe) != (None, None, None):
            return request
        tuning = catalogue.namespaces.get(namespace).tuning
    effort: Effort = queued or ("tune" if tuning == "default" else registry.default_effort)
    if effort in BY_GRADIENTS and not _allows_gradients(registry, request):
        effort = "instant"
    return request.model_copy(update={"effort": effort})


def _allows_gradients(registry: Registry, request: CookRequest) -> bool:
    """Return True if the request says neither how to mix nor not to verify, and its base model is no encoder."""
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
