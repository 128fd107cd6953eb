"""Store a soup like any adapter, with its recipe, its evidence and its audit entry in one transaction.

A recipe that was cooked before under the same name keeps its row. Bytes are stored before the row that names them. The
merge of a bank (AdaMix) takes the bank's place in pools, as an adapter of the bank's domain with the bank's sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from registry.adapters.weights import dtype_of
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, NewAdapter
from registry.cook.default_effort import check_tuning
from registry.cook.job import CookJob
from registry.cook.mix import Mixed
from registry.errors import Retired
from registry.mixing.compat import SoupIngredient
from registry.names import sha256_digest, split_name
from registry.quotas import check_additions, check_stored
from registry.samples.sample import Vectors, embed_texts, enqueue_embed, record_vectors
from registry.select.pools import enqueue_refits
from registry.spec import AdapterConfig, Card, Evidence, Provenance, Recipe, SampleReport
from registry.stored.files import deleted_unless_recorded, record_bytes


def store_soup(job: CookJob, soup: Mixed, evidence: Evidence) -> tuple[AdapterRow, bool]:
    """The soup's row under the name of the request, or one of its digest, and whether it is new.

    A request's `keep`, the name of a domain, makes a tuned soup an adapter of that domain, in pools like others. The
    sample's vectors make a new soup selectable; the text of a novel sample is never kept. Pools that take soups are
    fitted again later. A request's `owner` owns the name from now on, also where the soup is known.
    """
    registry, request, key_id = job.registry, job.request, job.caller.key_id
    vectors = _vectors_to_store(job)
    sample = evidence.sample if vectors and not soup.is_merge else None  # a merge keeps its bank's
    with registry.database.read() as catalogue:
        new = _new_row(job, soup, sample, learnt=_learnt_from(catalogue, soup))
        existing = _find_existing(catalogue, new, keep=request.keep)
        files = {} if sample is None else {sha256_digest(encoded.data): encoded.data for encoded in vectors}
        if existing is not None:  # it takes no vectors, but storing those that it has repairs damaged ones
            stored = catalogue.samples.blobs(existing.sample)
            files = {digest: data for digest, data in files.items() if digest in stored}
        files[new.weights_blob] = soup.data
        check_additions(
            catalogue,
            registry.quotas,
            {digest: len(data) for digest, data in files.items()} if existing is None else {},
            adapters=0 if existing is not None else 1,
            key_id=key_id,
            namespace=new.namespace,
        )
    encoders = soup.base.encoders()
    with deleted_unless_recorded(registry, files):
        for data in files.values():
            registry.blobs.put_bytes(data)
        with registry.database.write() as catalogue:
            _check_ingredients(catalogue, soup)
            if new.tuned_on is not None:
                check_tuning(catalogue, new.namespace)  # it may have been forbidden while this was trained
            if soup.is_merge:
                new = _in_place_of(catalogue.adapters.get(soup.ingredients[0].adapter_id), new)
            for digest, data in files.items():  # another cook may have made the vectors unused: they are collected
                catalogue.blobs.record(digest, len(data))
            record_bytes(registry, catalogue, new.weights_blob, soup.data)
            catalogue.soups.add_recipe(soup.recipe, soup.digest, new.weights_blob, soup.report, replaces=soup.replaces)
            owner_before = catalogue.adapters.owner_of(new.namespace, new.name)
            row, created, changed = _insert(catalogue, new, keep=request.keep)
            new_owner = {} if request.owner in (None, owner_before) else {"owner": request.owner}
            if new_owner:
                row = catalogue.adapters.set_owner(row, request.owner)
            if created and sample is not None:
                for encoded in vectors:
                    record_vectors(registry, catalogue, sample.digest, encoded, encoders[encoded.encoder])
            if changed:
                enqueue_refits(catalogue, row, created_by=key_id, refits=registry.refits)
            if changed and row.sample_state == "pending":
                enqueue_embed(catalogue, row, created_by=key_id)
            catalogue.soups.add_evidence(row.id, soup.recipe.digest, evidence.model_dump(mode="json"))
            if created:
                namespaces = [new.namespace]
                check_stored(
                    catalogue, registry.quotas, "stored_bytes", "adapters", key_id=key_id, namespaces=namespaces
                )
            job.caller.audit(
                catalogue, "soup.cook", row.ref, digest=soup.digest, recipe=soup.recipe.digest, **new_owner
            )
    return row, created


def purged_while_cooking(ingredient: SoupIngredient) -> Retired:
    """The error for an ingredient that was purged after the cook started."""
    return Retired(f"{ingredient.ref} was purged while the soup was made: nothing of it is left.", param="recipe")


def _vectors_to_store(job: CookJob) -> tuple[Vectors, ...]:
    """The sample's vectors: of all encoders where the soup is kept as a domain, since other pools will have it too."""
    if job.request.keep is not None:
        return tuple(embed_texts(job.texts, encoder, job.progress) for encoder in job.base.encoders().values())
    if job.selection is None or job.selection.vectors is None:
        return ()
    return (job.selection.vectors,)


def _check_ingredients(catalogue: Catalogue, soup: Mixed) -> None:
    """Raises Retired if an ingredient is gone: the answer to its purge did not name this soup."""
    for ingredient in soup.ingredients:
        if not catalogue.adapters.has_digest(ingredient.digest):
            raise purged_while_cooking(ingredient)
        if ingredient.statistic is not None and catalogue.statistics.missing_blobs([ingredient.statistic.blob]):
            raise purged_while_cooking(ingredient)


def _find_existing(catalogue: Catalogue, new: NewAdapter, *, keep: str | None) -> AdapterRow | None:
    """The row of these bytes under this name; None where the soup is new, or becomes a new version.

    It becomes one if the request keeps it as a domain and it was no adapter of that domain.
    """
    existing = catalogue.adapters.find_by_digest(new.namespace, new.name, new.digest)
    if existing is not None and keep is not None and (existing.kind, existing.domain) != (new.kind, new.domain):
        return None
    return existing


def _insert(catalogue: Catalogue, new: NewAdapter, *, keep: str | None) -> tuple[AdapterRow, bool, bool]:
    """The row of these bytes under this name, whether it is new, and whether pools change by it.

    A soup that was kept stays an adapter: a newer version of kind `soup` would take its name out of pools. A known
    merge takes its bank's sample if the bank has received one since.
    """
    existing = _find_existing(catalogue, new, keep=keep)
    if existing is None:
        return catalogue.adapters.add(new), True, True
    if new.kind == "soup" or new.sample is None or existing.sample_state not in ("none", "failed"):
        return existing, False, False
    catalogue.adapters.attach_sample(existing.id, new.sample)
    return catalogue.adapters.set_sample_state(existing.id, new.sample_state), False, True


def _learnt_from(catalogue: Catalogue, soup: Mixed) -> tuple[str, ...]:
    """The samples that a soup has learnt from, by being tuned and through its ingredients."""
    samples = catalogue.adapters.training_samples([ingredient.digest for ingredient in soup.ingredients])
    tuning = soup.recipe.tuning
    return tuple(sorted(samples if tuning is None else {*samples, tuning.sample}))


def _new_row(job: CookJob, soup: Mixed, sample: SampleReport | None, *, learnt: tuple[str, ...]) -> NewAdapter:
    unnamed = (job.namespace, "soup-" + soup.digest.removeprefix("sha256:")[:12])
    namespace, name = split_name(job.request.name) if job.request.name else unnamed
    kept_as = None if soup.recipe.tuning is None else job.request.keep
    return NewAdapter(
        namespace=namespace,
        name=name,
        kind="soup" if kept_as is None else "adapter",
        digest=soup.digest,
        base_model=soup.base.entry.id,
        base_fingerprint=soup.recipe.base_fingerprint,
        config=soup.config,
        domain=kept_as or name,
        card=_card(soup, namespace, learnt),
        provenance=inherited(soup.ingredients, soup.recipe, soup.config),
        weights_blob=sha256_digest(soup.data),
        dtype=dtype_of(soup.tensors),
        parameters=soup.report.parameters,
        size_bytes=soup.report.size_bytes,
        sample=None if sample is None else sample.model_copy(update={"has_text": False}),
        sample_state="none" if sample is None else "ready",
        recipe_digest=soup.recipe.digest,
        tuned_on=None if soup.recipe.tuning is None else soup.recipe.tuning.sample,
        learnt_from=learnt,
        created_by=job.caller.key_id,
    )


def _in_place_of(bank: AdapterRow, new: NewAdapter) -> NewAdapter:
    """The row of a bank's merge: an adapter of the bank's domain, and where both are of one namespace its sample."""
    new = replace(new, kind="adapter", domain=bank.domain)
    if bank.sample is None or bank.namespace != new.namespace:
        return new  # who sees this namespace need not see the bank's text
    is_pending = bank.sample_state != "ready" and bank.sample.has_text
    return replace(new, sample=bank.sample, sample_state="pending" if is_pending else bank.sample_state)


def _card(soup: Mixed, namespace: str, learnt: tuple[str, ...]) -> Card:
    """The card of a soup, which calls ingredients of other namespaces by their digest: readers need not see them."""
    names = {
        ingredient.digest: ingredient.ref if ingredient.ref.startswith(f"{namespace}/") else ingredient.digest[:19]
        for ingredient in soup.ingredients
    }
    members = ", ".join(f"{names[ingredient.digest]} at {ingredient.weight}" for ingredient in soup.ingredients)
    description = f"Soup of {members}."
    tuning = soup.recipe.tuning
    if tuning is not None:
        description = f"{description} Tuned: it has learnt from sample {tuning.sample}."
    inherited_samples = [sample for sample in learnt if tuning is None or sample != tuning.sample]
    if inherited_samples:
        noun = "sample" if len(inherited_samples) == 1 else "samples"
        through = f"Through its ingredients it has learnt from {noun} {', '.join(inherited_samples)}."
        description = f"{description} {through}"
    if soup.is_merge:
        bank = soup.ingredients[0]
        description = f"Merge of {names[bank.digest]}, a {bank.config.described}."
    metadata: dict[str, str | int | float | bool | None] = {"mixing": soup.recipe.mixing.method}
    if soup.recipe.mixing.assume_same_init:
        metadata["assume_same_init"] = True
    if tuning is not None:
        metadata["tuned"] = True
    if learnt:  # the row has their digests, which can be longer than a value may be
        metadata["samples_learnt_from"] = len(learnt)
    return Card(description=description[:20_000], metadata=metadata)


def inherited(ingredients: Sequence[SoupIngredient], recipe: Recipe, config: AdapterConfig) -> Provenance:
    """The provenance of a soup: an average has the initialisation that all its ingredients share; else it is unknown.

    A concatenation has tensors of other shapes than any ingredient started from: unknown too. A bank's is that of its
    merge (`adapters.experts`). A tuned soup has its training as provenance.
    """
    if recipe.tuning is not None:
        return Provenance(training={"tuning": recipe.tuning.model_dump(mode="json")})
    hashes = {ingredient.provenance.init_hash for ingredient in ingredients}
    has_their_shape = all(
        (ingredient.config.merged or ingredient.config).widths() == config.widths() for ingredient in ingredients
    )
    keeps_init = recipe.mixing.keeps_init and has_their_shape and not recipe.mixing.assume_same_init
    if keeps_init and len(hashes) == 1 and None not in hashes:
        return Provenance(init_hash=hashes.pop(), init_source="declared")
    return Provenance()
