"""What the namespace that a soup is written to says of tuning: that it is forbidden, allowed, or the default."""

from __future__ import annotations

from registry.catalogue.database import Catalogue, Database
from registry.errors import Forbidden
from registry.spec import CookRequest


def by_setting(database: Database, request: CookRequest, namespace: str) -> CookRequest:
    """The request as `namespace` has it: with effort `tune` where that is the default and the request leaves it open.

    Open is a request, to be verified (so that its sample comes with text), that names no effort, selector or recipe.
    Raises Forbidden for effort `tune` where the namespace forbids it.
    """
    with database.read() as catalogue:
        if request.effort == "tune":
            check_tuning(catalogue, namespace)
            return request
        setting = catalogue.namespaces.get(namespace).tuning
    named = (request.effort, request.selector, request.recipe)
    if setting == "default" and request.verify and named == (None, None, None):
        return request.model_copy(update={"effort": "tune"})
    return request


def may_tune(database: Database, namespace: str) -> bool:
    """Whether soups may be tuned in the namespace."""
    with database.read() as catalogue:
        return catalogue.namespaces.get(namespace).tuning != "forbid"


def check_tuning(catalogue: Catalogue, namespace: str) -> None:
    """Raises Forbidden where no soup may be tuned in the namespace."""
    if catalogue.namespaces.get(namespace).tuning == "forbid":
        raise Forbidden(
            f"Namespace {namespace!r} forbids soups that learn from their sample: ask for effort 'quick' or 'instant', "
            "write to another namespace, or have an admin of this one set its 'tuning' to 'allow'.",
            param="effort",
        )
