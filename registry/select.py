"""The select verb: a sample meets a fitted selector, and the answer explains itself.

Called by the select route and by `cook`. A pool without a fitted selector is fitted first, through a callable
that runs the fit job; a pool that has one answers with it, whatever has come or gone since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from registry.blobs import BlobStore
from registry.catalogue.database import Database
from registry.catalogue.rows import SelectorRow
from registry.encoders.contract import Encoder
from registry.errors import InvalidSample, Unavailable
from registry.pools import gone_members, missing_members, pool_id, spec_digest
from registry.samples import CheckedSample, Vectors, embed_texts
from registry.selectors import SELECTORS
from registry.selectors.contract import Selector
from registry.selectors.state import load_state
from registry.spec import PoolSpec, SampleReport, Selection, SelectOptions, SelectorSpec, encoder_of

Fit = Callable[[PoolSpec, SelectorSpec, str | None], SelectorRow]


@dataclass(frozen=True)
class Chosen:
    """A selection, the fitted selector that made it, and the sample's vectors it was made from."""

    selection: Selection
    selector: SelectorRow
    not_yet_included: tuple[str, ...]
    vectors: Vectors | None
    again: Callable[[SelectOptions], Selection]
    """The same sample and selector with other options."""

    def report_of(self, sample: CheckedSample) -> SampleReport:
        """The sample's report, with what the encoder cut at its length limit."""
        name = encoder_of(self.selector.spec)
        if name is None or self.vectors is None or not sample.texts:
            return sample.report
        return sample.report.model_copy(update={"truncated": {name: self.vectors.truncated}})


def select(
    sample: CheckedSample,
    *,
    pool: PoolSpec,
    spec: SelectorSpec,
    options: SelectOptions,
    encoders: Mapping[str, Encoder],
    database: Database,
    blobs: BlobStore,
    fit: Fit,
) -> Chosen:
    """Choose adapters of a pool for a sample; raises InvalidSample where its vectors are of another encoder."""
    encoder = encoder_for(spec, encoders)
    encoder_digest = None if encoder is None else encoder.digest
    row = latest(pool, spec, encoder_digest, database) or fit(pool, spec, encoder_digest)
    selector = load(row, blobs)
    vectors = None if encoder is None else sample_vectors(sample, encoder)
    with database.read() as catalogue:
        gone = gone_members(catalogue, row)
        missing = missing_members(catalogue, row)

    def again(options: SelectOptions) -> Selection:
        array = np.empty((0, 0), np.float32) if vectors is None else vectors.array
        return selector.select(array, options=options, exclude=gone)

    return Chosen(again(options), row, missing, vectors, again)


def encoder_for(spec: SelectorSpec, encoders: Mapping[str, Encoder]) -> Encoder | None:
    """The encoder a selector needs, of those there are; None where it looks at no text. Raises Unavailable."""
    name = encoder_of(spec)
    if name is None:
        return None
    for encoder in encoders.values():
        if encoder.name == name:
            return encoder
    raise Unavailable(f"Encoder {name!r} is not available on this server.")


def latest(pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None, database: Database) -> SelectorRow | None:
    """The newest fitted selector of a pool and spec, if it was fitted with this encoder."""
    with database.read() as catalogue:
        row = catalogue.selectors.latest(pool_id(pool), spec_digest(spec))
    return row if row is not None and row.encoder_digest == encoder_digest else None


def load(row: SelectorRow, blobs: BlobStore) -> Selector:
    """A fitted selector from its stored tensors and JSON."""
    arrays, meta = load_state(blobs.read(row.state_blob))
    return SELECTORS[row.spec.kind].from_state(arrays, meta)


def sample_vectors(sample: CheckedSample, encoder: Encoder) -> Vectors:
    """The sample in this encoder's space: embedded now, or as the client sent it."""
    if sample.texts:
        return embed_texts(sample.texts, encoder)
    for vectors in sample.vectors:
        if vectors.encoder == encoder.digest:
            return vectors
    raise InvalidSample(
        f"This selector needs vectors of encoder {encoder.name!r} ({encoder.digest}), and the sample has none.",
        param="sample",
    )
