"""Effort `quick`: candidates are weighed on most of the sample, and what comes of it has to prove itself on the rest.

Called by `cook`. The selector says whom to look at; the losses say who helps, and by how much at each site
(`training.coefficients`, in a process of its own). The soup of these is held against that of the selector alone and
against the base, on passages that had no part in either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from registry.adapters import sites_of
from registry.catalogue.rows import AdapterRow
from registry.cook.choose import EVERY, MOST, part_of, split
from registry.cook.mix import Mixed, mix_ingredients
from registry.cook.verify import check_verifiable, verify_soup
from registry.errors import InvalidSample
from registry.progress import Progress
from registry.registry import BaseModel, Registry
from registry.select import Chosen
from registry.soup import concat
from registry.soup.compat import SoupPart
from registry.spec import (
    BaseShape,
    ConcatMixing,
    CookRequest,
    Search,
    StoredAdapter,
    Trial,
    Verification,
    WeighedCandidate,
    Weighing,
    WeighingRequest,
    canonical_decimal,
)

Weigh = Callable[[str, WeighingRequest], Weighing]
"""(id of the base model, request) -> what was found: runs where gradients may run."""


@dataclass(frozen=True)
class Tried:
    """A soup, and how it did on the passages that were held out."""

    mixed: Mixed
    verification: Verification


@dataclass(frozen=True)
class Searched:
    """The best of what was tried (None where there was nothing to try), and the report on all of it."""

    best: Tried | None
    search: Search


def search(
    registry: Registry, base: BaseModel, request: CookRequest, chosen: Chosen, selected: Sequence[SoupPart],
    texts: Sequence[str], *, weigh: Weigh, progress: Progress,
) -> Searched:  # fmt: skip
    """Weigh the candidates of a ranking, and try them and the selector's own choice on held-out passages.

    `selected` is what the selector alone would mix, if anything. Raises InvalidSample for a sample of so few passages
    that none can be held out, InvalidParameter for a base or adapters without likelihoods.
    """
    seen, held = ([texts[number] for number in part] for part in split(len(texts)))
    if not held:
        raise InvalidSample(f"Of {len(texts)} passages none can be held out: send {EVERY} or more.", param="sample")
    candidates = _candidates(registry, chosen)
    check_verifiable(base, [*selected, *(part for _, part in candidates)])
    began = time.perf_counter()
    progress(1, 4, f"weighing {len(candidates)} adapters on {len(seen)} passages")
    weighing = None
    if candidates:
        asked = WeighingRequest(
            texts=tuple(seen),
            candidates=tuple(StoredAdapter(config=row.config, blob=row.weights_blob) for row, _ in candidates),
            keep=_most(request, [part for _, part in candidates]),
        )
        weighing = weigh(base.entry.id, asked)
    ways: dict[str, tuple[Sequence[SoupPart], CookRequest]] = {}
    parts = [] if weighing is None else _weighed(weighing, [part for _, part in candidates], base.shape)
    if parts:
        ways["weighed"] = parts, request.model_copy(update={"mixing": ConcatMixing()})
    if selected:
        ways["selected"] = selected, request
    weighed_at = time.perf_counter()
    alone = base.score(held, None, progress=progress)
    forward = time.perf_counter() - weighed_at
    nll = np.array([score.nll for score in alone])
    progress(2, 4, f"trying {len(ways)} soups on {len(held)} passages that were held out")
    tried = {way: _tried(registry, base, *how, held, nll, progress) for way, how in ways.items()}
    return Searched(
        best=min(tried.values(), key=lambda one: one.verification.soup_nll, default=None),
        search=Search(
            effort="quick",
            candidates=_reported(candidates, weighing, base.shape),
            trials=tuple(
                Trial(
                    way=way, members=len(one.mixed.parts), width=one.mixed.config.width,
                    difference=one.verification.difference, standard_error=one.verification.standard_error,
                )
                for way, one in tried.items()
            ),
            weighed_on=len(seen),
            held_out=len(held),
            forward_seconds=forward * sum(map(len, texts)) / max(1, sum(map(len, held))),
            weighing_seconds=weighed_at - began,
        ),
    )  # fmt: skip


def _candidates(registry: Registry, chosen: Chosen) -> list[tuple[AdapterRow, SoupPart]]:
    """The best-ranked adapters that can be put side by side with the first of them that can be at all."""
    with registry.database.read() as catalogue:
        rows = {one.digest: catalogue.adapters.get(one.adapter_id) for one in chosen.selector.members}
    ranked = [rows[one.member.digest] for one in chosen.ranking.ranked]
    found: list[tuple[AdapterRow, SoupPart]] = []
    for row in ranked:
        part = part_of(row, "1", registry.blobs)
        if row.config.joinable and not concat.check([*(one for _, one in found[:1]), part], ConcatMixing()):
            found.append((row, part))
    return found[:MOST]


def _most(request: CookRequest, parts: Sequence[SoupPart]) -> int:
    """How many may be in the soup, so that it is not wider than it may be."""
    widest = max(part.config.width for part in parts)
    return max(1, min(request.options.max_ingredients, request.max_width // max(1, widest)))


def _weighed(weighing: Weighing, parts: Sequence[SoupPart], shape: BaseShape) -> list[SoupPart]:
    """The kept candidates with their coefficients: the mean as the weight, and beside it a factor for each site."""
    found = []
    for number, by_site in _own_sites(weighing, parts, shape).items():
        weight = canonical_decimal(fmean(by_site.values()))
        if weight != "0":
            layers = {site: canonical_decimal(value / float(weight)) for site, value in by_site.items()}
            found.append(replace(parts[number], weight=weight, layers=layers))
    return found


def _own_sites(weighing: Weighing, parts: Sequence[SoupPart], shape: BaseShape) -> dict[int, dict[str, float]]:
    """The coefficients of kept candidates at the sites they have: a LoRA need not know every module another knows."""
    found = {}
    for number, by_site in zip(weighing.kept, weighing.coefficients, strict=True):
        known = sites_of(parts[number].config, shape)
        found[number] = {site: value for site, value in by_site.items() if site in known}
    return found


def _tried(
    registry: Registry, base: BaseModel, parts: Sequence[SoupPart], request: CookRequest, held: Sequence[str],
    base_nll: np.ndarray, progress: Progress,
) -> Tried:  # fmt: skip
    mixed = mix_ingredients(registry, base, tuple(parts), request=request)
    return Tried(mixed, verify_soup(mixed, held, base_nll=base_nll, progress=progress, held_out=True))


def _reported(
    candidates: Sequence[tuple[AdapterRow, SoupPart]], weighing: Weighing | None, shape: BaseShape
) -> tuple[WeighedCandidate, ...]:
    """Every candidate with its screen, best first, and its mean coefficient where it has one."""
    if weighing is None:
        return ()
    own = _own_sites(weighing, [part for _, part in candidates], shape)
    means = {number: fmean(by_site.values()) for number, by_site in own.items()}
    found = [
        WeighedCandidate(
            ref=row.ref, digest=row.digest, domain=row.domain, score=screened.score,
            standard_error=screened.standard_error, coefficient=means.get(number),
        )
        for number, ((row, _), screened) in enumerate(zip(candidates, weighing.screened, strict=True))
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda one: (-one.score, one.digest)))
