"""Lineage of an adapter as a key may see it: its ingredients, the soups made from it, and the evidence.

Called by the routes of adapters and soups. A soup belongs to one namespace and may have been selected from others,
which a key that reads the soup may not read: their names are removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from registry.catalogue import Catalogue
from registry.catalogue.rows import AdapterRow, Namespaces
from registry.names import NameRef, parse_ref
from service.http.schemas.adapters import Child, Lineage, Parent
from service.services import Services

CHILDREN = 100
"""Maximum number of soups made from an adapter that a lineage lists; popular adapters have thousands."""


def lineage_of(services: Services, visible: Namespaces, row: AdapterRow) -> Lineage:
    """Return the lineage of an adapter, for a key that reads the `visible` namespaces (None: all)."""
    with services.registry.database.read() as catalogue:
        recipe = None if row.recipe_digest is None else catalogue.soups.recipe(row.recipe_digest)
        missing = set() if row.recipe_digest is None else catalogue.soups.missing_ingredients(row.recipe_digest)
        lost = set() if row.recipe_digest is None else catalogue.soups.lost_statistics(row.recipe_digest)
        parents = [
            Parent(
                digest=digest,
                weight=weight,
                ref=None if parent is None else parent.ref,
                retired=parent is not None and parent.retired_at is not None,
                purged=digest in missing,
            )
            for digest, weight, parent in catalogue.soups.parents(row.recipe_digest, visible)
        ]
        newest = catalogue.soups.children(row.digest, visible, most=CHILDREN)
        evidence = [_visible_evidence(catalogue, entry, visible) for entry in catalogue.soups.evidence(row.id)]
    return Lineage(
        adapter=row.ref,
        recipe=None if recipe is None else recipe.recipe,
        rebuildable=None if recipe is None else recipe.recipe.tuning is None and not missing | lost,
        parents=parents,
        children=[Child(ref=child.ref, digest=child.digest) for child in newest],
        evidence=evidence,
    )


def _visible_evidence(catalogue: Catalogue, evidence: Mapping[str, Any], visible: Namespaces) -> dict[str, Any]:
    """Return evidence without selection and search results if they name or count adapters that are not visible.

    Adapters that are only counted belong to the selector's pool.
    """
    selection, search = evidence.get("selection") or {}, evidence.get("search") or {}
    refs = [entry["ref"] for field in ("selected", "left_out") for entry in selection.get(field, ())]
    refs += [entry["ref"] for field in ("candidates", "left_out") for entry in search.get(field, ())]
    refs += evidence.get("not_yet_included", ())
    is_cut = selection.get("more_left_out") or search.get("more_left_out")
    if visible is None or (
        all(_namespace(ref) in visible for ref in refs)
        and (not is_cut or catalogue.selectors.is_visible(visible, evidence.get("selector", "")))
    ):
        return dict(evidence)
    unnamed = {**search, "candidates": [], "left_out": [], "more_left_out": {}, "single": None} if search else None
    return {**evidence, "selection": None, "search": unnamed, "not_yet_included": []}


def _namespace(ref: str) -> str | None:
    parsed = parse_ref(ref)
    return parsed.namespace if isinstance(parsed, NameRef) else None
