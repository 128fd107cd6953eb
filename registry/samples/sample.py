"""Cleans, counts, embeds and records samples.

Called by the verbs; `embed` by the job that embeds a pushed sample. The report counts each text that is dropped. A
sample is stored as JSON lines of {"text"} or {"prompt", "answer"}; its digest is that of these bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from registry.catalogue.database import Catalogue
from registry.catalogue.rows import AdapterRow, EmbeddingRow
from registry.context import Caller, Registry
from registry.encoders.contract import Encoder
from registry.errors import Internal, InvalidSample, TooLarge, Unavailable
from registry.names import digest_of, sha256_digest
from registry.progress import Progress
from registry.samples.draw import draw
from registry.samples.embeddings_file import read_embeddings, save_embeddings
from registry.spec import (
    EmbeddingSource,
    Passage,
    SampleReport,
    SampleSource,
    Unit,
    characters_of,
    full_text,
    scored_text,
)
from registry.spec.limits import SampleLimits
from registry.spec.passage import decode_lines, encode_lines
from registry.stored.files import deleted_unless_recorded, record_bytes
from registry.uploads.files import read_blob, read_file

VECTORS_PER_SEQUENCE = 10
"""The limit of vectors in a sample is this many times that of sequences: a passage can have many sentences."""


@dataclass(frozen=True)
class Vectors:
    """Embeddings by one encoder: float32 (units, dimensions), their stored bytes, and the number of truncated units."""

    encoder: str
    array: np.ndarray
    data: bytes
    truncated: int = 0
    base_nll: np.ndarray | None = None
    """The base model's NLL of each text, summed over its tokens, where the encoder computes it."""
    base_tokens: np.ndarray | None = None
    """The number of these tokens, by text."""
    source: np.ndarray | None = None
    """The index of the text of each unit; None for vectors that a client sent."""

    def of(self, texts: Sequence[int]) -> np.ndarray:
        """The vectors of these texts, by index; raises InvalidSample for vectors that a client sent, or for none.

        An encoder draws from the units of all texts, so a long text can take them all.
        """
        if self.source is None:
            raise InvalidSample("Vectors without text cannot be assigned to passages.", param="sample")
        array = self.array[np.isin(self.source, texts)]
        if not len(array):
            raise InvalidSample(
                "Nearly all sentences of the sample are in passages that are held out: split its longest passages.",
                param="sample",
            )
        return array


@dataclass(frozen=True)
class CheckedSample:
    """A usable sample: its report, and either passages with their stored bytes or the client's vectors."""

    report: SampleReport
    texts: tuple[Passage, ...] = ()
    data: bytes = b""
    vectors: tuple[Vectors, ...] = ()


def clean_sample(
    texts: Sequence[Passage], limits: SampleLimits = SampleLimits(), *, bos: str | None = None, novel: bool = False
) -> CheckedSample:
    """Clean a sample: drop empty texts and exact duplicates, and draw from more texts than the maximum.

    A text or answer that is only `bos`, the base's BOS token, counts as empty. `novel` lowers the minimum
    (`SampleLimits`). Raises InvalidSample for too few usable sequences or too many characters in all, TooLarge for too
    long a text.
    """
    longest = max((len(full_text(text)) for text in texts), default=0)
    if longest > limits.max_chars:
        raise TooLarge(
            f"One text of the sample has {longest} characters and the limit is {limits.max_chars}: split it into "
            "passages.",
            param="sample",
        )
    filled = [text for text in texts if scored_text(text).strip() not in ("", bos)]
    unique = list(dict.fromkeys(filled))
    least = _least(limits, novel=novel)
    if len(unique) < least:
        raise InvalidSample(
            f"The sample has {len(unique)} different non-empty passages of {len(texts)} sent: send at least "
            f"{least}, ideally about {limits.good}.",
            param="sample",
        )
    drawn, seed = draw(unique, limits.maximum)
    characters = characters_of(drawn)
    if characters > limits.characters:
        raise InvalidSample(
            f"The {len(drawn)} passages of the sample have {characters} characters and the limit is "
            f"{limits.characters}: send fewer or shorter passages, about {limits.good} are good.",
            param="sample",
        )
    data = encode_lines(drawn)
    notes = () if len(drawn) >= limits.good else (f"{len(drawn)} sequences: about {limits.good} are better.",)
    report = SampleReport(
        digest=sha256_digest(data),
        received=len(texts),
        empty=len(texts) - len(filled),
        duplicates=len(filled) - len(unique),
        kept=len(drawn),
        seed=seed,
        notes=notes,
    )
    return CheckedSample(report, tuple(drawn), data)


def _least(limits: SampleLimits, *, novel: bool) -> int:
    """The least number of sequences, or vectors, of a sample."""
    return min(limits.novel, limits.minimum) if novel else limits.minimum


def check_sample(
    registry: Registry,
    caller: Caller,
    source: SampleSource,
    *,
    encoders: Mapping[str, Encoder],
    bos: str | None,
    novel: bool = False,
) -> CheckedSample:
    """Read, clean and count a sample as sent; raises InvalidSample, NotFound (its blob) or TooLarge.

    `novel` is a sample to cook or choose for, which may be smaller than an adapter's.
    """
    limits = registry.limits
    if source.embeddings is not None:
        vectors = tuple(
            _read_vectors(registry, caller, embedding, encoders=encoders, novel=novel)
            for embedding in source.embeddings
        )
        return _checked_vectors(vectors, good=limits.sample.good)
    if source.blob is not None:
        data = read_blob(registry, caller, source.blob, field="sample", max_bytes=limits.sample_bytes)
        texts = decode_lines(data)
    else:
        texts = list(source.texts or ())
    return clean_sample(texts, limits.sample, bos=bos, novel=novel)


def _checked_vectors(vectors: tuple[Vectors, ...], *, good: int) -> CheckedSample:
    if not vectors or len({v.encoder for v in vectors}) < len(vectors):
        raise InvalidSample("'embeddings' needs one file for each encoder, at least one in all.", param="sample")
    count = max(len(v.array) for v in vectors)
    notes = () if count >= good else (f"{count} vectors: about {good} are better.",)
    digest = digest_of({v.encoder: sha256_digest(v.data) for v in vectors})
    report = SampleReport(digest=digest, received=count, kept=count, has_text=False, notes=notes)
    return CheckedSample(report=report, vectors=vectors)


def _read_vectors(
    registry: Registry, caller: Caller, source: EmbeddingSource, *, encoders: Mapping[str, Encoder], novel: bool
) -> Vectors:
    encoder = encoders.get(source.encoder)
    if encoder is None:
        listed = "; ".join(f"{e.name} is {digest}" for digest, e in encoders.items())
        raise InvalidSample(
            f"No encoder of this base model has digest {source.encoder} ({listed}): embed with one of them, or "
            "send texts.",
            param="sample",
        )
    most = registry.limits.embeddings_bytes
    array = read_embeddings(
        read_file(registry, caller, source.file, field="embeddings", max_bytes=most), max_bytes=most
    )
    _check_array(array, source.unit, encoder, registry.limits.sample, novel=novel)
    return Vectors(encoder=source.encoder, array=array, data=save_embeddings(array))


def _check_array(array: np.ndarray, unit: Unit, encoder: Encoder, limits: SampleLimits, *, novel: bool) -> None:
    """Raise InvalidSample for vectors of another encoder, too few or too many."""
    count, dimensions = array.shape
    if (unit, dimensions) != (encoder.unit, encoder.dimensions):
        raise InvalidSample(
            f"Encoder {encoder.name!r} gives {encoder.dimensions} dimensions for each {encoder.unit}; these vectors "
            f"have {dimensions} for each {unit}.",
            param="sample",
        )
    most = limits.maximum * VECTORS_PER_SEQUENCE
    least = _least(limits, novel=novel)
    if not least <= count <= most:
        raise InvalidSample(
            f"The sample has {count} vectors: send at least {least} and at most {most}, ideally about {limits.good}.",
            param="sample",
        )


def embed_texts(
    texts: tuple[Passage, ...], encoder: Encoder, progress: Progress | None = None, *, scored: bool = True
) -> Vectors:
    """Embed a sample's texts with one encoder; `progress` may raise to cancel.

    There is no `base_nll` without `scored`, nor for a sample with prompts, whose tokens an encoder would score too.
    """
    scored = scored and all(isinstance(text, str) for text in texts)
    embedded = encoder.encode([full_text(text) for text in texts], scored=scored, progress=progress)
    return Vectors(
        encoder=encoder.digest,
        array=embedded.vectors,
        data=save_embeddings(embedded.vectors),
        truncated=embedded.truncated,
        base_nll=embedded.nll,
        base_tokens=embedded.tokens,
        source=embedded.source,
    )


def record_vectors(
    registry: Registry, catalogue: Catalogue, sample_digest: str, vectors: Vectors, encoder: Encoder
) -> None:
    """Add the row of embeddings whose bytes are already in the blob store."""
    blob = sha256_digest(vectors.data)
    record_bytes(registry, catalogue, blob, vectors.data)
    catalogue.samples.add_embedding(
        EmbeddingRow(
            sample_digest=sample_digest,
            encoder_digest=vectors.encoder,
            encoder_name=encoder.name,
            unit=encoder.unit,
            blob_digest=blob,
            count=vectors.array.shape[0],
            dimensions=vectors.array.shape[1],
            truncated=vectors.truncated,
        )
    )


def enqueue_embed(catalogue: Catalogue, row: AdapterRow, *, created_by: str) -> str:
    """Queue the embedding of an adapter's sample by all encoders; returns the job's id."""
    return catalogue.jobs.enqueue(
        "embed",
        {"adapter_id": row.id},
        namespace=row.namespace,
        created_by=created_by,
        dedupe_key=f"embed:{row.id}",
    ).id


def retry_embeddings(registry: Registry) -> None:
    """Queue embeddings again that failed because something was unavailable, if their base model is served now."""
    with registry.database.read() as catalogue:
        last_errors = {job.arguments["adapter_id"]: job.error for job in catalogue.jobs.failed("embed")}
    unavailable = [id for id, error in last_errors.items() if error is not None and error["code"] == Unavailable.code]
    if not unavailable:
        return
    with registry.database.write() as catalogue:
        for row in filter(None, map(catalogue.adapters.get_or_none, unavailable)):
            if row.sample_state == "failed" and _is_served(registry, row):
                catalogue.adapters.set_sample_state(row.id, "pending")
                enqueue_embed(catalogue, row, created_by=row.created_by)


def _is_served(registry: Registry, row: AdapterRow) -> bool:
    """Return True if the base model of an adapter is served, with the weights that the adapter was pushed for."""
    bases = registry.bases
    return row.base_model in bases and bases[row.base_model].shape.fingerprint == row.base_fingerprint


def embed(registry: Registry, adapter_id: int, *, progress: Progress) -> AdapterRow:
    """Embed an adapter's sample with all encoders, and return its row; `progress` may raise to cancel.

    Embeddings that are already stored are reused, so that an interrupted job resumes. Raises Retired where the adapter
    was purged, Unavailable where its base model is not served or was replaced.
    """
    with registry.database.read() as catalogue:
        row = catalogue.adapters.get(adapter_id)
        if row.sample is None:
            raise Internal(f"{row.ref} has no sample to embed")
        stored = {embedding.encoder_digest: embedding for embedding in catalogue.samples.embeddings(row.sample.digest)}
    if not _is_served(registry, row):
        raise Unavailable(
            f"The sample of {row.ref} waits for base model {row.base_model!r}: this server does not serve it with the "
            "weights that the adapter was pushed for."
        )
    encoders = registry.bases[row.base_model].encoders()
    progress(0, len(encoders), f"embedding {row.ref}")
    texts = tuple(decode_lines(registry.blobs.read(row.sample.digest)))
    truncated: dict[str, int] = {}
    for digest, encoder in encoders.items():
        if digest in stored:
            truncated[encoder.name] = stored[digest].truncated
            continue
        vectors = embed_texts(texts, encoder, progress, scored=False)
        truncated[encoder.name] = vectors.truncated
        with registry.database.read() as catalogue:
            catalogue.adapters.get(adapter_id)  # raises if the adapter was purged meanwhile: nothing more is written
        blob = registry.blobs.put_bytes(vectors.data)
        with deleted_unless_recorded(registry, [blob]), registry.database.write() as catalogue:
            catalogue.adapters.get(adapter_id)  # and a purge since then: deletes the vectors again
            record_vectors(registry, catalogue, row.sample.digest, vectors, encoder)
    with registry.database.write() as catalogue:
        return catalogue.adapters.set_sample_state(adapter_id, "ready", truncated=truncated)
