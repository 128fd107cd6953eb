"""What clients send, read and checked before a verb uses it: files inline or as blobs, samples as text or vectors.

Called by the verbs `push` and `cook`. Nothing a client names is opened as a path: files are digests of blobs the
caller may see, or bytes inline.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from registry.adapters.arrays import read_embeddings, save_embeddings
from registry.blobs import BlobStore
from registry.catalogue.database import Catalogue, Database
from registry.catalogue.rows import AdapterRow, EmbeddingRow
from registry.encoders.contract import Encoder, Progress
from registry.errors import InvalidManifest, InvalidSample, NotFound, TooLarge
from registry.names import digest_of, sha256_digest
from registry.samples import SampleLimits, decode_lines, prepare
from registry.spec import EmbeddingSource, FileSource, SampleReport, SampleSource

VECTORS_PER_SEQUENCE = 10
"""A passage can have many sentences: this many vectors are taken for each sequence of the maximum."""


@dataclass(frozen=True)
class Limits:
    """Sizes beyond which what a client sends is refused; settings of the server."""

    inline_bytes: int = 8 * 2**20
    weights_bytes: int = 2**30
    sample_bytes: int = 64 * 2**20
    embeddings_bytes: int = 64 * 2**20
    sample: SampleLimits = field(default_factory=SampleLimits)


@dataclass(frozen=True)
class Caller:
    """Whose request it is; `scope` is the namespaces the key may read (None: all)."""

    key_id: str
    scope: tuple[str, ...] | None
    request_id: str


@dataclass(frozen=True)
class Vectors:
    """Embeddings of one encoder: float32 (units, dimensions), their stored bytes, and units cut at its length."""

    encoder: str
    array: np.ndarray
    data: bytes
    truncated: int = 0
    base_nll: np.ndarray | None = None
    """Sum of the base model's NLL of each text, where the embedding pass yields it."""
    tokens: np.ndarray | None = None


@dataclass(frozen=True)
class CheckedSample:
    """A sample that can be used: its report, and either texts with their stored bytes or the client's vectors."""

    report: SampleReport
    texts: tuple[str, ...] = ()
    data: bytes = b""
    vectors: tuple[Vectors, ...] = ()


class BlobReader:
    """Reads what a request names: inline bytes up to a limit, or blobs the caller may see."""

    def __init__(self, database: Database, blobs: BlobStore, scope: tuple[str, ...] | None, limits: Limits) -> None:
        self._database = database
        self._blobs = blobs
        self._scope = scope
        self.limits = limits

    def file(self, source: FileSource, what: str, max_bytes: int) -> bytes:
        """The bytes of one file of the manifest."""
        if source.digest is not None:
            return self.blob(source.digest, what, max_bytes)
        text = source.base64 or ""
        if len(text) * 3 // 4 > self.limits.inline_bytes:
            raise TooLarge(
                f"{what} is about {len(text) * 3 // 4} bytes inline and the limit is {self.limits.inline_bytes}: "
                "upload it as a blob and give its digest.",
                param=what,
            )
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidManifest(f"{what} is not valid base64.", param=what) from None

    def blob(self, digest: str, what: str, max_bytes: int) -> bytes:
        """The bytes of a visible blob; unknown and foreign are the same NotFound."""
        with self._database.read() as catalogue:
            visible = catalogue.blobs.visible(self._scope, digest)
        if not visible or not self._blobs.has(digest):
            raise NotFound(f"Blob {digest} is not known: upload it first with PUT /v1/blobs/{digest}.", param=what)
        size = self._blobs.size(digest)
        if size > max_bytes:
            raise TooLarge(f"{what} has {size} bytes and the limit is {max_bytes}.", param=what)
        return self._blobs.read(digest)


def check_sample(source: SampleSource, reader: BlobReader, encoders: Mapping[str, Encoder]) -> CheckedSample:
    """A sample as sent, cleaned and counted; raises InvalidSample, NotFound (its blob) or TooLarge."""
    if source.embeddings is not None:
        return _check_embeddings(source.embeddings, reader, encoders)
    if source.blob is not None:
        texts = decode_lines(reader.blob(source.blob, "sample", reader.limits.sample_bytes))
    else:
        texts = list(source.texts or ())
    sample = prepare(texts, reader.limits.sample)
    return CheckedSample(report=sample.report, texts=sample.texts, data=sample.data)


def _check_embeddings(
    sources: tuple[EmbeddingSource, ...], reader: BlobReader, encoders: Mapping[str, Encoder]
) -> CheckedSample:
    vectors = tuple(_check_vectors(source, reader, encoders) for source in sources)
    if not vectors or len({v.encoder for v in vectors}) < len(vectors):
        raise InvalidSample("'embeddings' needs one file for each encoder, at least one in all.", param="sample")
    count = max(len(v.array) for v in vectors)
    good = reader.limits.sample.good
    notes = () if count >= good else (f"{count} vectors: about {good} are better.",)
    digest = digest_of({v.encoder: sha256_digest(v.data) for v in vectors})
    report = SampleReport(digest=digest, received=count, kept=count, has_text=False, notes=notes)
    return CheckedSample(report=report, vectors=vectors)


def _check_vectors(source: EmbeddingSource, reader: BlobReader, encoders: Mapping[str, Encoder]) -> Vectors:
    encoder = encoders.get(source.encoder)
    if encoder is None:
        listed = "; ".join(f"{e.name} is {digest}" for digest, e in encoders.items())
        raise InvalidSample(
            f"No encoder of this base model has digest {source.encoder} ({listed}): embed with one of them, or "
            "send texts.",
            param="sample",
        )
    data = reader.file(source.file, "embeddings", reader.limits.embeddings_bytes)
    array = read_embeddings(data, max_bytes=reader.limits.embeddings_bytes)
    count, dimensions = array.shape
    if (source.unit, dimensions) != (encoder.unit, encoder.dimensions):
        raise InvalidSample(
            f"Encoder {encoder.name!r} gives {encoder.dimensions} dimensions for each {encoder.unit}; these vectors "
            f"have {dimensions} for each {source.unit}.",
            param="sample",
        )
    limits = reader.limits.sample
    most = limits.maximum * VECTORS_PER_SEQUENCE
    if not limits.minimum <= count <= most:
        raise InvalidSample(
            f"{count} vectors were sent: at least {limits.minimum} are needed, about {limits.good} are good, "
            f"{most} are the most.",
            param="sample",
        )
    return Vectors(encoder=source.encoder, array=array, data=save_embeddings(array))


def embed_texts(texts: tuple[str, ...], encoder: Encoder, progress: Progress | None = None) -> Vectors:
    """One encoder's vectors for a sample's texts; `progress` may raise to end it."""
    embedded = encoder.encode(texts, progress=progress)
    return Vectors(
        encoder=encoder.digest,
        array=embedded.vectors,
        data=save_embeddings(embedded.vectors),
        truncated=embedded.truncated,
        base_nll=embedded.nll,
        tokens=embedded.tokens,
    )


def record_vectors(catalogue: Catalogue, sample_digest: str, vectors: Vectors, encoder: Encoder) -> None:
    """The row of embeddings whose bytes are stored already."""
    blob = sha256_digest(vectors.data)
    catalogue.blobs.seen(blob, len(vectors.data))
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
    """Queue the embedding of an adapter's sample by every encoder; returns the job's id."""
    job = catalogue.jobs.enqueue(
        "embed",
        {"adapter_id": row.id},
        namespace=row.namespace,
        created_by=created_by,
        dedupe_key=f"embed:{row.id}",
    )
    return job.id
