"""A map of domains: where the selector `posterior` sees the training domains and novel samples, and what it takes.

Coordinates are the first two principal components of its own space, which it found on the training domains alone: mean
states of the base model. A domain is at the mean of its passages. What is nearest is decided in all components.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.mean_pooling import encoder_of
from benchmarks.soups.setting import Texts
from demo.results import Row
from registry.base_model import LoadedBase
from registry.names import sha256_digest
from registry.selectors.contract import Domain
from registry.selectors.posterior import PosteriorSelector
from registry.spec import PosteriorSpec

NEAREST = 5


@dataclass(frozen=True)
class Map:
    """Rows of training and novel domains, and the share of all variance that two components have."""

    rows: list[Row]
    variance: float


def mapped(base: LoadedBase, texts: Texts) -> Map:
    """The map of a job's domains, of the novel ones by their largest sample; with up to five that are taken for each.

    A posterior is the mean over the passages of a sample, as the selector takes it for the weight of an adapter.
    """
    encoder = encoder_of(base)
    vectors = {name: encoder.encode(texts.job.training_sample(name)).vectors for name in texts.job.training}
    domains = [Domain(name, sha256_digest(name.encode()), name, found) for name, found in vectors.items()]
    selector = PosteriorSelector(PosteriorSpec()).fit(domains)
    projection = selector.gaussians_.projection
    rows: list[Row] = [
        {"map": "training", "domain": one.domain, "x": float(mean[0]), "y": float(mean[1])}
        for one, mean in zip(selector.members_, selector.gaussians_.means, strict=True)
    ]
    for domain in texts.job.novel:
        found = encoder.encode(texts.sample(domain, size=texts.largest, seed=0)).vectors
        x, y = projection(found.astype(np.float64)).mean(axis=0)[:2]
        taken = [one for one in selector.rank(found).ranked if one.passes][:NEAREST]
        nearest = {one.member.domain: one.score for one in taken}
        rows.append({"map": "novel", "domain": domain, "x": float(x), "y": float(y), "nearest": nearest})
    every = np.concatenate(list(vectors.values())).astype(np.float64)
    share = np.square(projection(every)[:, :2]).sum() / np.square(every - projection.mean).sum()
    return Map(rows, float(share))
