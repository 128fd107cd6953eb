"""Publishing a soup: stored like any adapter, with its recipe, its evidence and its audit entry in one transaction.

Called by the verb `cook`. A recipe cooked before under the same name is the row there is; the bytes are stored
before the row that names them. The merge of a bank (AdaMix) is no soup of several: it takes the place of the bank in
pools, as an adapter of the bank's domain with the bank's sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from registry.adapters.weights import dtype_of
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, NewAdapter
from registry.context import Caller, Registry
from registry.cook.mix import Mixed
from registry.cook.setting import check_tuning
from registry.errors import Retired
from registry.mixing.compat import SoupIngredient
from registry.names import sha256_digest
from registry.quotas import check_room, check_stored
from registry.samples.sample import Vectors, enqueue_embed, record_vectors
from registry.select.pools import enqueue_refits
from registry.spec import AdapterConfig, Card, Evidence, Provenance, Recipe, SampleReport
from registry.stored_files import record_bytes


def publish_soup(
    registry: Registry,
    caller: Caller,
    mixed: Mixed,
    *,
    evidence: Evidence,
    vectors: Sequence[Vectors],
    target: tuple[str, str],
    keep: str | None = None,
    owner: str | None = None,
) -> tuple[AdapterRow, bool]:
    """The soup's row under the namespace and name of `target`, and whether it is new.

    With `keep`, the name of a domain, a tuned soup is an adapter of that domain, and in pools as others are. `vectors`
    are the sample's, which make the soup selectable; the text of a novel sample is never kept. Pools that take soups
    are fitted again later. `owner` answers for the name from now on, also where the soup is known.
    """
    sample = evidence.sample if vectors and not mixed.is_merge else None  # a merge keeps its bank's
    with registry.database.read() as catalogue:
        new = _new_row(mixed, target, sample, caller, learnt=_learnt_from(catalogue, mixed))
        known = catalogue.adapters.find_same(new.namespace, new.name, new.digest) is not None
        check_room(
            catalogue, registry.quotas, (mixed.data, *(one.data for one in vectors)), adapters=0 if known else 1,
            key_id=caller.key_id, namespace=new.namespace,
        )  # fmt: skip
    registry.blobs.put_bytes(mixed.data)
    for one in vectors:
        registry.blobs.put_bytes(one.data)
    encoders = mixed.base.encoders()
    with registry.database.write() as catalogue:
        _check_ingredients(catalogue, mixed)
        if new.tuned_on is not None:
            check_tuning(catalogue, new.namespace)  # it may have been forbidden while this was trained
        if keep is not None and new.tuned_on is not None:
            new = replace(new, kind="adapter", domain=keep)
        if mixed.is_merge:
            new = _in_place_of(catalogue.adapters.get(mixed.parts[0].adapter_id), new)
        record_bytes(registry, catalogue, new.weights_blob, mixed.data)
        catalogue.soups.add_recipe(mixed.recipe, mixed.digest, new.weights_blob, mixed.report, replaces=mixed.replaces)
        said = {} if owner in (None, catalogue.adapters.owner_of(new.namespace, new.name)) else {"owner": owner}
        row, created, changed = _stored(catalogue, new, keep=keep)
        if said:
            row = catalogue.adapters.set_owner(row, owner)
        if created and sample is not None:
            for one in vectors:
                record_vectors(registry, catalogue, sample.digest, one, encoders[one.encoder])
        if changed:
            enqueue_refits(catalogue, row, created_by=caller.key_id, refits=registry.refits)
        if changed and row.sample_state == "pending":
            enqueue_embed(catalogue, row, created_by=caller.key_id)
        catalogue.soups.add_evidence(row.id, mixed.recipe.digest, evidence.model_dump(mode="json"))
        if created:
            check_stored(
                catalogue, registry.quotas, "stored_bytes", "adapters", key_id=caller.key_id,
                namespaces=[new.namespace],
            )  # fmt: skip
        caller.audit(catalogue, "soup.cook", row.ref, digest=mixed.digest, recipe=mixed.recipe.digest, **said)
    return row, created


def purged_meanwhile(part: SoupIngredient) -> Retired:
    """The error for an ingredient that was there when the soup was begun."""
    return Retired(f"{part.ref} was purged while the soup was made: nothing of it is left.", param="recipe")


def _check_ingredients(catalogue: Catalogue, mixed: Mixed) -> None:
    """Raises Retired where nobody has an ingredient any more: who purged it was not told of this soup."""
    for part in mixed.parts:
        if not catalogue.adapters.has_digest(part.digest):
            raise purged_meanwhile(part)
        if part.statistic is not None and catalogue.statistics.lost([part.statistic.blob]):
            raise purged_meanwhile(part)


def _stored(catalogue: Catalogue, new: NewAdapter, *, keep: str | None) -> tuple[AdapterRow, bool, bool]:
    """The row of these bytes under this name, whether it is new, and whether pools change by it.

    A tuned soup may be kept later, or as another domain than before: a new version. One that is kept stays so: a soup
    as a newer version of its name would take it out of pools. A merge that is known takes its bank's sample where the
    bank has got one since.
    """
    known = catalogue.adapters.find_same(new.namespace, new.name, new.digest)
    relabelled = known is not None and keep is not None and (known.kind, known.domain) != (new.kind, new.domain)
    if known is None or relabelled:
        return catalogue.adapters.add(new), True, True
    if new.kind == "soup" or new.sample is None or known.sample_state not in ("none", "failed"):
        return known, False, False
    catalogue.adapters.attach_sample(known.id, new.sample)
    return catalogue.adapters.set_sample_state(known.id, new.sample_state), False, True


def _learnt_from(catalogue: Catalogue, mixed: Mixed) -> tuple[str, ...]:
    """The samples that a soup has learnt from, by being tuned and through its ingredients."""
    samples = catalogue.adapters.training_samples([part.digest for part in mixed.parts])
    tuning = mixed.recipe.tuning
    return tuple(sorted(samples if tuning is None else {*samples, tuning.sample}))


def _new_row(
    mixed: Mixed, target: tuple[str, str], sample: SampleReport | None, caller: Caller, *, learnt: tuple[str, ...]
) -> NewAdapter:
    namespace, name = target
    return NewAdapter(
        namespace=namespace,
        name=name,
        kind="soup",
        digest=mixed.digest,
        base_model=mixed.base.entry.id,
        base_fingerprint=mixed.recipe.base_fingerprint,
        config=mixed.config,
        domain=name,
        card=_card(mixed, namespace, learnt),
        provenance=inherited(mixed.parts, mixed.recipe, mixed.config),
        weights_blob=sha256_digest(mixed.data),
        dtype=dtype_of(mixed.tensors),
        parameters=mixed.report.parameters,
        size_bytes=mixed.report.size_bytes,
        sample=None if sample is None else sample.model_copy(update={"has_text": False}),
        sample_state="none" if sample is None else "ready",
        recipe_digest=mixed.recipe.digest,
        tuned_on=None if mixed.recipe.tuning is None else mixed.recipe.tuning.sample,
        learnt_from=learnt,
        created_by=caller.key_id,
    )


def _in_place_of(bank: AdapterRow, new: NewAdapter) -> NewAdapter:
    """The row of a bank's merge: an adapter of the bank's domain, and where both are of one namespace its sample."""
    new = replace(new, kind="adapter", domain=bank.domain)
    if bank.sample is None or bank.namespace != new.namespace:
        return new  # who sees this namespace need not see the bank's text
    waits = bank.sample_state != "ready" and bank.sample.has_text
    return replace(new, sample=bank.sample, sample_state="pending" if waits else bank.sample_state)


def _card(mixed: Mixed, namespace: str, learnt: tuple[str, ...]) -> Card:
    """Who sees the soup need not see its ingredients: those of other namespaces are called by their digest."""
    names = {p.digest: p.ref if p.ref.startswith(f"{namespace}/") else p.digest[:19] for p in mixed.parts}
    members = ", ".join(f"{names[part.digest]} at {part.weight}" for part in mixed.parts)
    described = f"Soup of {members}."
    tuning = mixed.recipe.tuning
    if tuning is not None:
        described = f"{described} Tuned: it has learnt from sample {tuning.sample}."
    through = [one for one in learnt if tuning is None or one != tuning.sample]
    if through:
        what = "sample" if len(through) == 1 else "samples"
        described = f"{described} Through its ingredients it has learnt from {what} {', '.join(through)}."
    bank = mixed.parts[0].config
    if mixed.is_merge:
        described = f"Merge of {names[mixed.parts[0].digest]}, a {bank.described}."
    metadata: dict[str, str | int | float | bool | None] = {"mixing": mixed.recipe.mixing.method}
    if mixed.recipe.mixing.assume_same_init:
        metadata["assume_same_init"] = True
    if tuning is not None:
        metadata["tuned"] = True
    if learnt:  # which they are, the row has: their digests can be longer than a value may
        metadata["samples_learnt_from"] = len(learnt)
    return Card(description=described[:20_000], metadata=metadata)


def inherited(parts: Sequence[SoupIngredient], recipe: Recipe, config: AdapterConfig) -> Provenance:
    """An average inherits an initialisation that all its ingredients share; any doubt makes it unknown.

    A concatenation has tensors of other shapes than any ingredient started from: unknown too. A bank's is that of its
    merge (`adapters.experts`). A tuned soup has gone elsewhere since; how is its training.
    """
    if recipe.tuning is not None:
        return Provenance(training={"tuning": recipe.tuning.model_dump(mode="json")})
    hashes = {part.provenance.init_hash for part in parts}
    as_wide = all((part.config.merged or part.config).widths() == config.widths() for part in parts)
    keeps = recipe.mixing.keeps_init and as_wide and not recipe.mixing.assume_same_init
    if keeps and len(hashes) == 1 and None not in hashes:
        return Provenance(init_hash=hashes.pop(), init_source="declared")
    return Provenance()
