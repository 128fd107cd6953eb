"""The push verb: checks a manifest and stores its adapter; a refusal leaves nothing visible.

Called by the adapters route and at the end of a training. Bytes are durable in the blob store before the row that names
them is committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from registry.adapters.weights import check_weights
from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, NewAdapter
from registry.context import BaseModel, Caller, Registry
from registry.encoders.contract import Encoder
from registry.errors import Incompatible, Internal, InvalidManifest
from registry.formats import WEIGHTS_FILE
from registry.formats.peft.lora import adapter_config
from registry.names import sha256_digest, split_name
from registry.quotas import StorageQuota, check_additions, check_stored
from registry.samples.sample import CheckedSample, check_sample, enqueue_embed, record_vectors
from registry.select.pools import enqueue_refits
from registry.spec import AdapterConfig, Manifest
from registry.spec.limits import SizeLimits
from registry.stored.files import deleted_unless_recorded, record_bytes
from registry.tensor_file import parse
from registry.uploads.files import is_damaged, read_file


@dataclass(frozen=True)
class Pushed:
    """The stored adapter; `created` is False where it existed already; `job` is the id of the job that embeds it."""

    row: AdapterRow
    created: bool
    job: str | None = None
    warnings: tuple[str, ...] = ()


def push(registry: Registry, caller: Caller, manifest: Manifest) -> Pushed:
    """Check a manifest, store its bytes, then its row, jobs and audit entry in one transaction.

    An existing adapter takes the sample of this push if it has none that is embedded, and the weights if its own are
    damaged; what it does not take is not stored. The owner of a name changes in any case. Pools whose members change
    are refitted later, by the job that embeds a text where there is one. Raises InvalidManifest, UnknownMethod,
    InvalidWeights, InvalidSample, Incompatible, NotFound (a blob), TooLarge or QuotaExceeded.
    """
    checked = _check(registry, caller, manifest)
    new = checked.new
    with registry.database.read() as catalogue:
        existing = catalogue.adapters.find_by_digest(new.namespace, new.name, new.digest)
    damaged = _damaged_weights(registry, new, existing)
    with registry.database.read() as catalogue:
        present: set[str] = set()
        if existing is not None:
            present = {existing.weights_blob} | catalogue.samples.blobs(existing.sample)
        files = _files_to_store(checked, existing, damaged, present)
        check_additions(
            catalogue,
            registry.quotas,
            {digest: len(data) for digest, data in files.items() if digest not in present},
            adapters=0 if existing is not None else 1,
            key_id=caller.key_id,
            namespace=new.namespace,
        )
    with deleted_unless_recorded(registry, files):
        repaired = _put_files(registry, files)
        with registry.database.write() as catalogue:
            for digest in repaired:
                caller.audit(catalogue, "blob.repair", digest)
            for digest, data in files.items():  # another push may have made some of them unused: they are collected
                catalogue.blobs.record(digest, len(data))
            existing = catalogue.adapters.find_by_digest(new.namespace, new.name, new.digest)
            if existing is None:
                pushed = _add(registry, caller, catalogue, checked)
            else:
                pushed = _push_again(registry, caller, catalogue, checked, existing, damaged)
    if checked.has_effect:
        return pushed
    warning = f"{pushed.row.ref} has no effect: its output is zero, so it answers as the base model alone."
    return replace(pushed, warnings=(*pushed.warnings, warning))


@dataclass(frozen=True)
class _Checked:
    """A valid manifest: the row to store, the bytes of its weights, its sample and the base model's encoders."""

    manifest: Manifest
    new: NewAdapter
    weights: bytes
    sample: CheckedSample | None
    encoders: Mapping[str, Encoder]
    has_effect: bool

    @property
    def files(self) -> dict[str, bytes]:
        """The files by digest: the weights, and the texts or vectors of the sample."""
        files = {self.new.weights_blob: self.weights}
        if self.sample is None:
            return files
        if self.sample.texts:
            return {**files, self.sample.report.digest: self.sample.data}
        return {**files, **{sha256_digest(vectors.data): vectors.data for vectors in self.sample.vectors}}

    def takes_sample(self, existing: AdapterRow) -> bool:
        """Return True if an existing adapter takes the sample, since it has none that is or will be embedded."""
        return self.sample is not None and existing.sample_state in ("none", "failed")


def _add(registry: Registry, caller: Caller, catalogue: Catalogue, checked: _Checked) -> Pushed:
    """Add the row of a new adapter, with the samples that the same bytes were trained on under any name."""
    _record_weights(registry, catalogue, checked)
    owner_change = _owner_change(catalogue, checked.new)
    learnt = tuple(sorted(catalogue.adapters.training_samples([checked.new.digest])))
    row = catalogue.adapters.add(replace(checked.new, learnt_from=learnt))
    return _record_push(registry, caller, catalogue, checked, row, owner_change, created=True)


def _push_again(
    registry: Registry,
    caller: Caller,
    catalogue: Catalogue,
    checked: _Checked,
    existing: AdapterRow,
    damaged: str | None,
) -> Pushed:
    """Change the owner of an existing adapter, replace its `damaged` weights, add the sample if none is embedded."""
    new, sample = checked.new, checked.sample
    changes = _owner_change(catalogue, new)
    takes_sample = checked.takes_sample(existing)
    warnings = _ignored_fields(existing, new, checked.manifest, takes_sample)
    row = existing if new.owner is None else catalogue.adapters.set_owner(existing, new.owner)
    if row.weights_blob == new.weights_blob:
        _record_weights(registry, catalogue, checked)
    elif row.weights_blob == damaged:
        _record_weights(registry, catalogue, checked)
        row = catalogue.adapters.replace_weights(row.id, new.weights_blob)
        changes["weights_blob"] = new.weights_blob
        check_stored(catalogue, registry.quotas, "stored_bytes", key_id=caller.key_id, namespaces=[row.namespace])
    if sample is None or not takes_sample:
        if changes:
            caller.audit(catalogue, "adapter.change", row.ref, digest=row.digest, **changes)
        return Pushed(row, created=False, warnings=warnings)
    row = catalogue.adapters.attach_sample(row.id, sample.report)
    pushed = _record_push(registry, caller, catalogue, checked, row, changes, created=False)
    return replace(pushed, warnings=(*pushed.warnings, *warnings))


def _record_push(
    registry: Registry,
    caller: Caller,
    catalogue: Catalogue,
    checked: _Checked,
    row: AdapterRow,
    changes: Mapping[str, str],
    *,
    created: bool,
) -> Pushed:
    """Record the sample of a stored row, queue the refits of its pools, check quotas, and audit the push."""
    job = _record_sample(registry, catalogue, row, checked, caller)
    if job is None:
        enqueue_refits(catalogue, row, created_by=caller.key_id, refits=registry.refits)
    quotas: tuple[StorageQuota, ...] = ("stored_bytes", "adapters") if created else ("stored_bytes",)
    check_stored(catalogue, registry.quotas, *quotas, key_id=caller.key_id, namespaces=[row.namespace])
    caller.audit(catalogue, "adapter.push", row.ref, digest=row.digest, **changes)
    notes = () if checked.sample is None else checked.sample.report.notes
    return Pushed(catalogue.adapters.get(row.id), created=created, job=job, warnings=notes)


def _owner_change(catalogue: Catalogue, new: NewAdapter) -> dict[str, str]:
    """The owner that a push gives to a name, for the audit log; empty if it stays who it is."""
    if new.owner is None or new.owner == catalogue.adapters.owner_of(new.namespace, new.name):
        return {}
    return {"owner": new.owner}


def _check(registry: Registry, caller: Caller, manifest: Manifest) -> _Checked:
    """Read and check all files of a manifest without storing them; raises as `push` does."""
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
    return _Checked(manifest, new, data, sample, encoders, weights.has_effect)


def _config(manifest: Manifest, weights: bytes, limits: SizeLimits) -> AdapterConfig:
    """The configuration of a manifest; PEFT's is converted with the names and shapes of the tensors."""
    if manifest.config is not None:
        return manifest.config
    if manifest.peft_config is None:
        raise Internal("a manifest without a configuration was accepted")
    header = parse(weights, max_bytes=limits.weights_bytes)
    return adapter_config(manifest.peft_config, {name: entry.shape for name, entry in header.entries.items()})


def find_base(manifest: Manifest, bases: Mapping[str, BaseModel]) -> BaseModel:
    """The allowlisted base model of a manifest: by its id, its fingerprint, or the name that a file records.

    Sources of the allowlist are compared and never disclosed. Raises Incompatible or InvalidManifest.
    """
    ids = sorted(bases)
    listed = ", ".join(ids) or "none"
    if manifest.base_model is not None:
        if manifest.base_model not in bases:
            raise Incompatible(
                f"Base model {manifest.base_model!r} is not on this server's allowlist ({listed}).", param="base_model"
            )
        return _check_fingerprint(manifest, bases[manifest.base_model])
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
            f"No base model is named: give 'base_model' (here: {listed}) or 'base_fingerprint'.",
            param="base_model",
        )
    return _find_recorded_base(recorded, bases)


def _check_fingerprint(manifest: Manifest, base: BaseModel) -> BaseModel:
    """Return `base`, else raise Incompatible where the manifest's fingerprint is another."""
    if manifest.base_fingerprint not in (None, base.shape.fingerprint):
        raise Incompatible(
            f"The adapter was made for base fingerprint {manifest.base_fingerprint}, but {base.entry.id!r} here is "
            f"{base.shape.fingerprint}: it is another model under the same name.",
            param="base_fingerprint",
        )
    return base


def _find_recorded_base(name: str, bases: Mapping[str, BaseModel]) -> BaseModel:
    """The base model whose id or source is `name`; raises Incompatible for none and for several."""
    source, ids = name.rstrip("/"), sorted(bases)
    matches = [id_ for id_ in ids if source in (id_, bases[id_].entry.source.rstrip("/"))]
    if len(matches) == 1:
        return bases[matches[0]]
    problem = f"{len(matches)} base models here ({', '.join(matches)}) are" if matches else "no base model here is"
    raise Incompatible(
        f"The adapter records base model {name[:200]!r}, and {problem} that one by id or source; say which it is as "
        f"'base_model', one of {', '.join(matches or ids) or 'none'}.",
        param="base_model",
    )


def _weights_bytes(registry: Registry, caller: Caller, manifest: Manifest) -> bytes:
    unknown = sorted(set(manifest.files) - {WEIGHTS_FILE})
    if unknown or WEIGHTS_FILE not in manifest.files:
        raise InvalidManifest(
            f"'files' holds exactly {WEIGHTS_FILE!r}"
            + (f", not {unknown[0][:80]!r}." if unknown else "; it is missing."),
            param="files",
        )
    max_bytes = registry.limits.weights_bytes
    return read_file(registry, caller, manifest.files[WEIGHTS_FILE], field=WEIGHTS_FILE, max_bytes=max_bytes)


def _damaged_weights(registry: Registry, new: NewAdapter, existing: AdapterRow | None) -> str | None:
    """The blob of an existing adapter's weights if it is damaged and the push has another file of them; else None."""
    if existing is None or existing.weights_blob == new.weights_blob:
        return None
    return None if registry.blobs.is_whole(existing.weights_blob) else existing.weights_blob


def _files_to_store(
    checked: _Checked, existing: AdapterRow | None, damaged: str | None, present: set[str]
) -> dict[str, bytes]:
    """The files of a push by digest, without those that an existing adapter does not take.

    Files that it has already (`present`) are stored again, which repairs damaged ones.
    """
    files, weights = checked.files, {checked.new.weights_blob}
    if existing is None:
        return files
    accepted = set(present)
    if damaged is not None:
        accepted |= weights
    if checked.takes_sample(existing):
        accepted |= files.keys() - weights
    return {digest: data for digest, data in files.items() if digest in accepted}


def _put_files(registry: Registry, files: Mapping[str, bytes]) -> list[str]:
    """Store files in the blob store; returns the digests of those that replaced damaged ones."""
    repaired = []
    for digest, data in files.items():
        was_damaged = is_damaged(registry, digest)
        registry.blobs.put_bytes(data)
        if was_damaged:
            repaired.append(digest)
    return repaired


def _record_weights(registry: Registry, catalogue: Catalogue, checked: _Checked) -> None:
    """Record the weights, which the namespace then sees."""
    record_bytes(registry, catalogue, checked.new.weights_blob, checked.weights)
    catalogue.blobs.grant(checked.new.namespace, checked.new.weights_blob)


def _ignored_fields(row: AdapterRow, new: NewAdapter, manifest: Manifest, takes_sample: bool) -> tuple[str, ...]:
    """A warning that names the fields of a push of existing bytes that differ from what stays stored."""
    sent = {"card": new.card, "domain": new.domain, "provenance": new.provenance.compared}
    stored = {"card": row.card, "domain": row.domain, "provenance": row.provenance.compared}
    changed = [name for name in sent if name in manifest.model_fields_set and sent[name] != stored[name]]
    if (
        new.sample is not None
        and row.sample is not None
        and not takes_sample
        and (new.sample.digest, new.sample.has_text) != (row.sample.digest, row.sample.has_text)
    ):
        changed.append("sample")
    if not changed:
        return ()
    return (f"Known as {row.ref}: its {', '.join(changed)} stayed as stored (PATCH changes card and domain).",)


def _record_sample(
    registry: Registry, catalogue: Catalogue, row: AdapterRow, checked: _Checked, caller: Caller
) -> str | None:
    """Record a sample; returns the id of the job that embeds its texts, None for vectors that a client sent."""
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
