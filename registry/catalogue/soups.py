"""Cooked recipes with their ingredients, and the evidence for each soup."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import and_, exists, func, select, tuple_

from registry.catalogue.adapters import Adapters
from registry.catalogue.repository import Repository, now, seen_by
from registry.catalogue.rows import AdapterRow, Namespaces, PooledRow, RecipeRow
from registry.catalogue.tables import adapters, evidence, recipe_ingredients, recipes, statistics
from registry.spec import MixReport, Recipe

Version = tuple[str, str, int]
"""Namespace, name and version of an adapter."""
MAX_EVIDENCE = 50
"""The evidence kept for each recipe of a soup: that of its first cook, and that of the newest ones."""


class Soups(Repository[RecipeRow]):
    """Recipe, lineage and evidence rows."""

    values = TypeAdapter(RecipeRow)

    def recipe(self, digest: str) -> RecipeRow | None:
        """The cooked recipe with this digest, None if there is none."""
        return self._first(select(recipes).where(recipes.c.digest == digest))

    def add_recipe(
        self, recipe: Recipe, adapter_digest: str, weights_blob: str, report: MixReport, *, replaces: str | None = None
    ) -> None:
        """Record the adapter of a cooked recipe; an existing record stays unless its adapter digest is `replaces`."""
        existing = self.recipe(recipe.digest)
        result = {
            "adapter_digest": adapter_digest,
            "weights_blob": weights_blob,
            "report": report.model_dump(mode="json"),
        }
        if existing is not None:
            if existing.adapter_digest == replaces:
                self._update(recipes, recipes.c.digest == recipe.digest, **result)
            return
        self._insert(recipes, digest=recipe.digest, recipe=recipe.model_dump(mode="json"), **result, created_at=now())
        for ingredient in recipe.ingredients:
            self._insert(
                recipe_ingredients,
                recipe_digest=recipe.digest,
                adapter_digest=ingredient.digest,
                weight=ingredient.weight,
                statistic=ingredient.statistic,
            )

    def add_evidence(self, adapter_id: int, recipe_digest: str, body: Mapping[str, Any]) -> None:
        """Add the evidence of one cook of a soup, and delete old evidence of the same recipe beyond MAX_EVIDENCE.

        The first evidence stays, because a cook that repeats a recipe has neither trained nor verified. Each recipe
        keeps some, because a purge of the soup removes the recipes that are in its evidence.
        """
        values = {"adapter_id": adapter_id, "recipe_digest": recipe_digest, "evidence": dict(body)}
        self._insert(evidence, **values, created_at=now())
        has_recipe = and_(evidence.c.adapter_id == adapter_id, evidence.c.recipe_digest == recipe_digest)
        ids = select(evidence.c.id).where(has_recipe).order_by(evidence.c.id.desc())
        newest_deleted = ids.offset(MAX_EVIDENCE - 1).limit(1).scalar_subquery()
        first = select(func.min(evidence.c.id)).where(has_recipe).scalar_subquery()
        self._delete(evidence, has_recipe, evidence.c.id <= newest_deleted, evidence.c.id > first)

    def evidence(self, adapter_id: int, *, most: int = MAX_EVIDENCE) -> list[dict[str, Any]]:
        """The newest evidence of a soup, at most `most`, oldest first, each with its time."""
        query = select(evidence).where(evidence.c.adapter_id == adapter_id).order_by(evidence.c.id.desc()).limit(most)
        rows = reversed(self._connection.execute(query).mappings().all())
        return [{**row["evidence"], "created_at": row["created_at"].isoformat()} for row in rows]

    def chosen_by(self, selector: str, visible: Namespaces, *, most: int) -> list[str]:
        """Refs of the visible live soups that were cooked with a selector, last cooked first, at most `most`."""
        cites_selector = evidence.c.evidence["selector"].as_string() == selector
        cooked = select(evidence.c.adapter_id, func.max(evidence.c.id).label("last")).where(cites_selector)
        last = cooked.group_by(evidence.c.adapter_id).subquery()
        columns = (adapters.c.namespace, adapters.c.name, adapters.c.version)
        query = select(*columns).join(last, last.c.adapter_id == adapters.c.id)
        query = query.where(adapters.c.retired_at.is_(None), seen_by(visible, adapters.c.namespace))
        rows = self._connection.execute(query.order_by(last.c.last.desc()).limit(most))
        return [f"{row.namespace}/{row.name}@{row.version}" for row in rows]

    def verifications(self, versions: Sequence[Version], *, most: int) -> dict[Version, list[Mapping[str, Any]]]:
        """Verifications of soups by version, the newest `most` of each, oldest first; without unverified soups."""
        name = (adapters.c.namespace, adapters.c.name, adapters.c.version)
        rank = func.row_number().over(partition_by=evidence.c.adapter_id, order_by=evidence.c.id.desc())
        columns = (*name, evidence.c.id.label("evidence_id"), evidence.c.evidence["verification"].label("check"))
        evidence_of_soups = select(*columns, rank.label("rank")).join(evidence, evidence.c.adapter_id == adapters.c.id)
        ranked = evidence_of_soups.where(tuple_(*name).in_(versions)).subquery()
        query = select(ranked).where(ranked.c.rank <= most).order_by(ranked.c.evidence_id)
        by_version: dict[Version, list[Mapping[str, Any]]] = {}
        for row in self._connection.execute(query):
            if row.check:
                by_version.setdefault((row.namespace, row.name, row.version), []).append(row.check)
        return by_version

    def past_trials(self, base_model: str, visible: Namespaces, *, most: int) -> list[tuple[str, list[Any], float]]:
        """(effort, trials, difference of the verified soup) of the newest `most` cooks on a base model, newest first.

        Only cooks of visible soups; without those that lack one of the three.
        """
        newest = select(evidence.c.id).join(adapters, evidence.c.adapter_id == adapters.c.id)
        newest = newest.where(adapters.c.base_model == base_model, seen_by(visible, adapters.c.namespace))
        columns = (  # without a condition on them, so that only the newest rows are parsed
            evidence.c.evidence[("search", "effort")].as_string().label("effort"),
            evidence.c.evidence[("search", "trials")].label("trials"),
            evidence.c.evidence[("verification", "difference")].as_float().label("difference"),
        )
        query = select(*columns).where(evidence.c.id.in_(newest.order_by(evidence.c.id.desc()).limit(most)))
        rows = self._connection.execute(query.order_by(evidence.c.id.desc()))
        return [(row.effort, row.trials, row.difference) for row in rows if None not in (row.effort, row.difference)]

    def parents(self, recipe_digest: str | None, visible: Namespaces) -> list[tuple[str, str, AdapterRow | None]]:
        """(digest, weight, row) of a recipe's ingredients; the row is None if it is not visible."""
        if recipe_digest is None:
            return []
        query = select(recipe_ingredients).where(recipe_ingredients.c.recipe_digest == recipe_digest)
        rows = self._connection.execute(query.order_by(recipe_ingredients.c.adapter_digest)).mappings().all()
        newest = Adapters(self._connection).newest
        return [
            (row["adapter_digest"], row["weight"], newest(visible, adapters.c.digest == row["adapter_digest"]))
            for row in rows
        ]

    def ingredient_domains(self, recipe_digests: Collection[str], visible: Namespaces) -> dict[str, list[str | None]]:
        """The domains of each recipe's ingredients, heaviest first; None for an ingredient that is not visible."""
        ingredient = recipe_ingredients.c
        is_visible = and_(adapters.c.digest == ingredient.adapter_digest, seen_by(visible, adapters.c.namespace))
        query = select(ingredient.recipe_digest, ingredient.weight, func.min(adapters.c.domain).label("domain"))
        query = query.outerjoin_from(recipe_ingredients, adapters, is_visible)
        query = query.where(ingredient.recipe_digest.in_(sorted(recipe_digests)))
        query = query.group_by(ingredient.recipe_digest, ingredient.adapter_digest, ingredient.weight)
        rows = sorted(self._connection.execute(query), key=lambda row: (-float(row.weight), row.domain or ""))
        domains: dict[str, list[str | None]] = {}
        for row in rows:
            domains.setdefault(row.recipe_digest, []).append(row.domain)
        return domains

    def missing_ingredients(self, recipe_digest: str) -> set[str]:
        """Digests of a recipe's ingredients that are no longer stored."""
        query = select(recipe_ingredients.c.adapter_digest).where(
            recipe_ingredients.c.recipe_digest == recipe_digest,
            ~exists().where(adapters.c.digest == recipe_ingredients.c.adapter_digest),
        )
        return set(self._connection.scalars(query))

    def lost_statistics(self, recipe_digest: str) -> set[str]:
        """Blobs of statistics that a recipe was mixed with, and that were deleted with their sample."""
        query = select(recipe_ingredients.c.statistic).where(
            recipe_ingredients.c.recipe_digest == recipe_digest,
            recipe_ingredients.c.statistic.is_not(None),
            ~exists().where(statistics.c.blob_digest == recipe_ingredients.c.statistic),
        )
        return set(self._connection.scalars(query))

    def mixed_by(self, blobs: Collection[str]) -> list[PooledRow]:
        """Live soups of all namespaces that were mixed with a statistic in one of these blobs, newest first."""
        using = select(recipe_ingredients.c.recipe_digest).where(recipe_ingredients.c.statistic.in_(sorted(blobs)))
        return Adapters(self._connection).live(None, adapters.c.recipe_digest.in_(using))

    def children(self, digest: str, visible: Namespaces, *, most: int | None = None) -> list[PooledRow]:
        """Visible live soups with this adapter as an ingredient, newest first, at most `most`."""
        using = select(recipe_ingredients.c.recipe_digest).where(recipe_ingredients.c.adapter_digest == digest)
        return Adapters(self._connection).live(visible, adapters.c.recipe_digest.in_(using), most=most)
