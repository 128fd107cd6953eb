"""Publishing a soup: stored like any adapter, with its recipe, its evidence and its audit entry in one transaction.

Called by the verb `cook`. A recipe cooked before under the same name is the row there is; the bytes are stored
before the row that names them. The merge of a bank (AdaMix) is no soup of several: it takes the place of the bank in
pools, as an adapter of the bank's domain with the bank's sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue, Database
from registry.catalogue.rows import AdapterRow, NewAdapter
from registry.cook.mix import Mixed
from registry.encoders.contract import Encoder
from registry.names import split_name
from registry.pools import enqueue_refits
from registry.registry import Caller
from registry.samples import Vectors, enqueue_embed, record_vectors
from registry.soup.compat import Part
from registry.spec import (
    Card,
    Evidence,
    Provenance,
    Recipe,
)


def publish(
    mixed: Mixed,
    evidence: Evidence,
    vectors: Vectors | None,
    *,
    name: str | None,
    namespace: str,
    base_id: str,
    encoders: Mapping[str, Encoder],
    database: Database,
    blobs: BlobStore,
    caller: Caller,
    refit_delay: float,
) -> tuple[AdapterRow, bool]:
    """The soup's row and whether it is new. Unnamed soups are called `soup-<first 12 of the digest>`.

    Pools that take soups are refitted after `refit_delay` seconds.
    """
    target = split_name(name) if name else (namespace, "soup-" + mixed.digest.removeprefix("sha256:")[:12])
    weights_blob = blobs.put_bytes(mixed.data)
    vectors = None if mixed.is_merge else vectors  # it keeps its bank's
    if vectors is not None:
        blobs.put_bytes(vectors.data)
    new = _new_row(mixed, target, base_id, weights_blob, evidence, vectors, caller)
    with database.write() as catalogue:
        if mixed.is_merge:
            new = _in_place_of(catalogue.adapters.get(mixed.parts[0].adapter_id), new)
        catalogue.blobs.seen(weights_blob, len(mixed.data))
        catalogue.soups.add_recipe(mixed.recipe, mixed.digest, weights_blob, mixed.report)
        known = catalogue.adapters.find_same(*target, mixed.digest)
        row = known or catalogue.adapters.add(new)
        late = known is not None and mixed.is_merge and known.sample_state in ("none", "failed")
        changed = known is None or (late and new.sample is not None)  # its bank has got a sample since
        if known is not None and changed:
            row = _with_sample(catalogue, row, new)
        if known is None and vectors is not None and evidence.sample is not None:
            record_vectors(catalogue, evidence.sample.digest, vectors, encoders[vectors.encoder])
        if changed:
            enqueue_refits(catalogue, row, created_by=caller.key_id, delay=refit_delay)
        if changed and row.sample_state == "pending":
            enqueue_embed(catalogue, row, created_by=caller.key_id)
        catalogue.soups.add_evidence(row.id, mixed.recipe.digest, evidence.model_dump(mode="json"))
        _audit(catalogue, row, mixed, caller)
    return row, known is None


def _audit(catalogue: Catalogue, row: AdapterRow, mixed: Mixed, caller: Caller) -> None:
    catalogue.audit.record(
        "soup.cook",
        row.ref,
        key_id=caller.key_id,
        request_id=caller.request_id,
        detail={"digest": mixed.digest, "recipe": mixed.recipe.digest},
    )


def _new_row(
    mixed: Mixed,
    target: tuple[str, str],
    base_id: str,
    weights_blob: str,
    evidence: Evidence,
    vectors: Vectors | None,
    caller: Caller,
) -> NewAdapter:
    namespace, name = target
    sample = None if vectors is None or evidence.sample is None else evidence.sample
    return NewAdapter(
        namespace=namespace,
        name=name,
        kind="soup",
        digest=mixed.digest,
        base_model=base_id,
        base_fingerprint=mixed.recipe.base_fingerprint,
        config=mixed.config,
        domain=name,
        card=_card(mixed, namespace),
        provenance=inherited(mixed.parts, mixed.recipe),
        weights_blob=weights_blob,
        dtype=mixed.dtype,
        parameters=mixed.report.parameters,
        size_bytes=mixed.report.size_bytes,
        # the vectors make a soup selectable on request; the text of a novel sample is never kept
        sample=None if sample is None else sample.model_copy(update={"has_text": False}),
        sample_state="none" if sample is None else "ready",
        recipe_digest=mixed.recipe.digest,
        created_by=caller.key_id,
    )


def _in_place_of(bank: AdapterRow, new: NewAdapter) -> NewAdapter:
    """The row of a bank's merge: an adapter of the bank's domain, and where both are of one namespace its sample."""
    new = replace(new, kind="adapter", domain=bank.domain)
    if bank.sample is None or bank.namespace != new.namespace:
        return new  # who sees this namespace need not see the bank's text
    waits = bank.sample_state != "ready" and bank.sample.has_text
    return replace(new, sample=bank.sample, sample_state="pending" if waits else bank.sample_state)


def _with_sample(catalogue: Catalogue, row: AdapterRow, new: NewAdapter) -> AdapterRow:
    """The stored merge with its bank's sample, as far as that is embedded."""
    assert new.sample is not None
    catalogue.adapters.attach_sample(row.id, new.sample)
    return catalogue.adapters.set_sample_state(row.id, new.sample_state)


def _card(mixed: Mixed, namespace: str) -> Card:
    """Who sees the soup need not see its ingredients: those of other namespaces are called by their digest."""
    names = {p.digest: p.ref if p.ref.startswith(f"{namespace}/") else p.digest[:19] for p in mixed.parts}
    members = ", ".join(f"{names[part.digest]} at {part.weight}" for part in mixed.parts)
    described = f"Soup of {members}."
    bank = mixed.parts[0].config
    if bank.merged is not None:
        described = f"Merge of {names[mixed.parts[0].digest]}, a {bank.described}."
    metadata: dict[str, str | int | float | bool | None] = {"mixing": mixed.recipe.mixing.method}
    if mixed.recipe.mixing.assume_same_init:
        metadata["assume_same_init"] = True
    return Card(description=described[:20_000], metadata=metadata)


def inherited(parts: Sequence[Part], recipe: Recipe) -> Provenance:
    """An average inherits an initialisation that all its ingredients share; any doubt makes it unknown.

    A concatenation has tensors of other shapes than any ingredient started from: unknown too. A bank's is that of its
    merge (`adapters.bank`).
    """
    hashes = {part.provenance.init_hash for part in parts}
    keeps = recipe.mixing.keeps_init and not recipe.mixing.assume_same_init
    if keeps and len(hashes) == 1 and None not in hashes:
        return Provenance(init_hash=hashes.pop(), init_source="declared")
    return Provenance()
