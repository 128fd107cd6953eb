"""The push verb: a manifest becomes a stored adapter, or is refused with every reason, and nothing half visible.

Called by the adapters route and by a training that has ended. Order matters: bytes are durable in the blob store
before the row that names them is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from registry.adapters.weights import check_weights
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, NewAdapter
from registry.context import BaseModel, Caller, Limits, Registry
from registry.encoders.contract import Encoder
from registry.errors import Incompatible, Internal, InvalidManifest
from registry.formats import WEIGHTS_FILE
from registry.formats.peft.lora import adapter_config
from registry.names import sha256_digest, split_name
from registry.quotas import Stored, check_room, check_stored
from registry.samples.sample import CheckedSample, check_sample, enqueue_embed, record_vectors
from registry.select.pools import enqueue_refits
from registry.spec import AdapterConfig, Manifest
from registry.stored_files import record_bytes
from registry.tensor_file import parse
from registry.uploads.files import is_damaged, read_file


@dataclass(frozen=True)
class Pushed:
    """The stored adapter; `created` is False when it was known already; `job` embeds its sample."""

    row: AdapterRow
    created: bool
    job: str | None = None
    warnings: tuple[str, ...] = ()


def push(registry: Registry, caller: Caller, manifest: Manifest) -> Pushed:
    """Check everything, store the bytes, then the row, its jobs and its audit entry in one transaction.

    A known adapter without a sample, or whose sample could not be embedded, takes the one of this push; an owner is
    given to the name, known or not. Pools that gain or lose a member at once are refitted later; where text is to be
    embedded, its job does that. Raises InvalidManifest, UnknownMethod, InvalidWeights, InvalidSample, Incompatible,
    NotFound (a blob), TooLarge or QuotaExceeded; then nothing is visible.
    """
    checked = _check(registry, caller, manifest)
    new, sample = checked.new, checked.sample
    with registry.database.read() as catalogue:
        known = catalogue.adapters.find_same(new.namespace, new.name, new.digest) is not None
        check_room(
            catalogue, registry.quotas, (checked.weights, *_sample_bytes(sample)), adapters=0 if known else 1,
            key_id=caller.key_id, namespace=new.namespace,
        )  # fmt: skip
    repaired = [digest for data in (checked.weights, *_sample_bytes(sample)) if (digest := _stored(registry, data))]
    with registry.database.write() as catalogue:
        for digest in repaired:
            caller.audit(catalogue, "blob.repair", digest)
        record_bytes(registry, catalogue, new.weights_blob, checked.weights)
        catalogue.blobs.grant(new.namespace, new.weights_blob)
        same = catalogue.adapters.find_same(new.namespace, new.name, new.digest)
        brings = sample is not None and (same is None or same.sample_state in ("none", "failed"))
        warnings = () if same is None else _ignored(same, new, manifest, brings)
        before = catalogue.adapters.owner_of(new.namespace, new.name)
        said = {} if new.owner in (None, before) else {"owner": new.owner}
        if same is not None and new.owner is not None:
            same = catalogue.adapters.set_owner(same, new.owner)
        if same is not None and not brings:
            if said:
                caller.audit(catalogue, "adapter.change", same.ref, digest=same.digest, **said)
            return Pushed(same, created=False, warnings=warnings)
        learnt = tuple(
            sorted(catalogue.adapters.training_samples([new.digest]))
        )  # under whatever name these bytes were made
        row = same or catalogue.adapters.add(replace(new, learnt_from=learnt))
        if same is not None and sample is not None:
            row = catalogue.adapters.attach_sample(same.id, sample.report)
        job = _record_sample(registry, catalogue, row, checked, caller)
        if job is None:
            enqueue_refits(catalogue, row, created_by=caller.key_id, refits=registry.refits)
        added: tuple[Stored, ...] = ("stored_bytes",) if same is not None else ("stored_bytes", "adapters")
        check_stored(catalogue, registry.quotas, *added, key_id=caller.key_id, namespaces=[new.namespace])
        caller.audit(catalogue, "adapter.push", row.ref, digest=row.digest, **said)
        row = catalogue.adapters.get(row.id)
    notes = () if sample is None else sample.report.notes
    return Pushed(row, created=same is None, job=job, warnings=(*notes, *warnings))


@dataclass(frozen=True)
class _Checked:
    """A manifest that nothing is wrong with: the row to store, the bytes of its weights, and its sample."""

    new: NewAdapter
    weights: bytes
    sample: CheckedSample | None
    encoders: Mapping[str, Encoder]


def _check(registry: Registry, caller: Caller, manifest: Manifest) -> _Checked:
    """Read and check all that a manifest names; nothing is stored. Raises as `push` does."""
    namespace, name = split_name(manifest.name)
    base = find_base(manifest, registry.bases)
    data = _weights_bytes(registry, caller, manifest)
    config = _config(manifest, data, registry.limits)
    weights = check_weights(data, config, base.shape, max_bytes=registry.limits.weights_bytes)
    encoders = base.encoders()
    sample = None
    if manifest.sample is not None:
        sample = check_sample(registry, caller, manifest.sample, encoders=encoders, bos=base.bos)
    new = NewAdapter(
        namespace=namespace,
        name=name,
        kind="adapter",
        digest=weights.digest,
        base_model=base.entry.id,
        base_fingerprint=base.shape.fingerprint,
        config=config,
        domain=manifest.domain,
        owner=manifest.owner,
        card=manifest.card,
        provenance=manifest.provenance,
        weights_blob=sha256_digest(data),
        dtype=weights.dtype,
        parameters=weights.parameters,
        size_bytes=weights.bytes,
        sample=None if sample is None else sample.report,
        sample_state="none" if sample is None else "pending",
        recipe_digest=None,
        tuned_on=None,
        created_by=caller.key_id,
    )
    return _Checked(new, data, sample, encoders)


def _config(manifest: Manifest, weights: bytes, limits: Limits) -> AdapterConfig:
    """The configuration of a manifest, PEFT's read by the names and shapes of the tensors."""
    if manifest.config is not None:
        return manifest.config
    if manifest.peft_config is None:
        raise Internal("a manifest without a configuration was accepted")
    header = parse(weights, max_bytes=limits.weights_bytes)
    return adapter_config(manifest.peft_config, {name: entry.shape for name, entry in header.entries.items()})


def find_base(manifest: Manifest, bases: Mapping[str, BaseModel]) -> BaseModel:
    """The allowlisted base model a manifest is for: by its id, its fingerprint, or the name a file records.

    The allowlist's sources are compared and never told. Raises Incompatible or InvalidManifest.
    """
    ids = sorted(bases)
    listed = ", ".join(ids) or "none"
    if manifest.base_model is not None:
        if manifest.base_model not in bases:
            raise Incompatible(
                f"Base model {manifest.base_model!r} is not on this server's allowlist ({listed}).", param="base_model"
            )
        return _same(manifest, bases[manifest.base_model])
    if manifest.base_fingerprint is not None:
        matches = [bases[id_] for id_ in ids if bases[id_].shape.fingerprint == manifest.base_fingerprint]
        if len(matches) != 1:
            raise Incompatible(
                f"{len(matches)} base models here have fingerprint {manifest.base_fingerprint}; name one as "
                f"'base_model' (here: {listed}).",
                param="base_fingerprint",
            )
        return matches[0]
    recorded = manifest.recorded_base or (manifest.peft_config or {}).get("base_model_name_or_path")
    if not recorded or not isinstance(recorded, str):
        raise InvalidManifest(
            f"Say which base model the adapter is for: 'base_model' (here: {listed}) or 'base_fingerprint'.",
            param="base_model",
        )
    return _recorded(recorded, bases)


def _same(manifest: Manifest, base: BaseModel) -> BaseModel:
    if manifest.base_fingerprint not in (None, base.shape.fingerprint):
        raise Incompatible(
            f"The adapter was made for base fingerprint {manifest.base_fingerprint}, but {base.entry.id!r} here is "
            f"{base.shape.fingerprint}: it is another model under the same name.",
            param="base_fingerprint",
        )
    return base


def _recorded(name: str, bases: Mapping[str, BaseModel]) -> BaseModel:
    """The one base model whose id or source is `name`; raises Incompatible for none and for several."""
    wanted, ids = name.rstrip("/"), sorted(bases)
    matches = [id_ for id_ in ids if wanted in (id_, bases[id_].entry.source.rstrip("/"))]
    if len(matches) == 1:
        return bases[matches[0]]
    found = f"{len(matches)} base models here ({', '.join(matches)}) are" if matches else "no base model here is"
    raise Incompatible(
        f"The adapter records base model {name[:200]!r}, and {found} that one by id or source; say which it is as "
        f"'base_model', one of {', '.join(matches or ids) or 'none'}.",
        param="base_model",
    )


def _weights_bytes(registry: Registry, caller: Caller, manifest: Manifest) -> bytes:
    others = sorted(set(manifest.files) - {WEIGHTS_FILE})
    if others or WEIGHTS_FILE not in manifest.files:
        raise InvalidManifest(
            f"'files' holds exactly {WEIGHTS_FILE!r}"
            + (f", not {others[0][:80]!r}." if others else "; it is missing."),
            param="files",
        )
    most = registry.limits.weights_bytes
    return read_file(registry, caller, manifest.files[WEIGHTS_FILE], field=WEIGHTS_FILE, max_bytes=most)


def _sample_bytes(sample: CheckedSample | None) -> list[bytes]:
    if sample is None:
        return []
    return [sample.data] if sample.texts else [vectors.data for vectors in sample.vectors]


def _stored(registry: Registry, data: bytes) -> str | None:
    """Store bytes; their digest where they took the place of damaged ones."""
    damaged = is_damaged(registry, sha256_digest(data))
    digest = registry.blobs.put_bytes(data)
    return digest if damaged else None


def _ignored(row: AdapterRow, new: NewAdapter, manifest: Manifest, brings: bool) -> tuple[str, ...]:
    """What a push of known bytes said otherwise than what is stored, which stays as it is."""
    said = manifest.model_fields_set & {"domain", "card", "provenance"}
    changed = [field for field in sorted(said) if _compared(row, field) != _compared(new, field)]
    if not brings and new.sample is not None and row.sample is not None and new.sample.digest != row.sample.digest:
        changed.append("sample")
    if not changed:
        return ()
    return (f"Known as {row.ref}: its {', '.join(changed)} stayed as stored (PATCH changes card and domain).",)


def _compared(of: AdapterRow | NewAdapter, field: str) -> Any:
    return of.provenance.compared if field == "provenance" else getattr(of, field)


def _record_sample(
    registry: Registry, catalogue: Catalogue, row: AdapterRow, checked: _Checked, caller: Caller
) -> str | None:
    """Vectors that came along are ready at once; text is embedded by a job of the same transaction."""
    sample = checked.sample
    if sample is None:
        return None
    if sample.texts:
        record_bytes(registry, catalogue, sample.report.digest, sample.data)
        return enqueue_embed(catalogue, row, created_by=caller.key_id)
    for vectors in sample.vectors:
        record_vectors(registry, catalogue, sample.report.digest, vectors, checked.encoders[vectors.encoder])
    catalogue.adapters.set_sample_state(row.id, "ready")
    return None
