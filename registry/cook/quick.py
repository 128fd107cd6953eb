"""Effort `quick`: candidates are weighed on most of the sample, and what comes of it has to prove itself on the rest.

Called by `cook`. The selector says whom to look at; the losses say who helps, and by how much at each site
(`training.coefficients`, in a process of its own). The soup of these is held against that of the selector alone and
against the base, on passages that had no part in either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from registry.adapters import sites_of
from registry.catalogue.rows import AdapterRow
from registry.cook.choose import EVERY, MOST, part_of, rows_of, split
from registry.cook.mix import Mixed, mix_ingredients
from registry.cook.verify import check_verifiable, nll_of, verification_of
from registry.errors import InvalidSample
from registry.progress import Progress
from registry.registry import BaseModel, Registry
from registry.select import Chosen
from registry.soup import concat, recompress
from registry.soup.auto import apart
from registry.soup.compat import SoupPart
from registry.spec import (
    BaseShape,
    ConcatMixing,
    CookRequest,
    LeftOut,
    RecompressMixing,
    Search,
    StoredAdapter,
    Trial,
    Verification,
    Way,
    WeighedCandidate,
    Weighing,
    WeighingRequest,
    canonical_decimal,
)
from registry.uncertainty import paired_difference

Weigh = Callable[[str, WeighingRequest], Weighing]
"""(id of the base model, request) -> what was found: runs where gradients may run."""


@dataclass(frozen=True)
class Tried:
    """A soup, and how it did on the passages that were held out: NLL in nats and tokens of each, (passages,)."""

    mixed: Mixed
    verification: Verification
    nll: np.ndarray
    tokens: np.ndarray


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
    choosing, trying = split(len(texts))
    if not trying:
        raise InvalidSample(f"Of {len(texts)} passages too few can be held out: send {EVERY} or more.", param="sample")
    candidates, left_out = _candidates(registry, chosen)
    parts = [part for _, part in candidates]
    check_verifiable(base, [*selected, *parts], effort=request.effort)
    progress(1, 4, f"weighing {len(candidates)} adapters on {len(choosing)} passages")
    began = time.perf_counter()
    weighing = None
    if candidates:
        asked = WeighingRequest(
            texts=tuple(texts[number] for number in choosing),
            candidates=tuple(StoredAdapter(config=row.config, blob=row.weights_blob) for row, _ in candidates),
            keep=_most(request, parts),
        )
        weighing = weigh(base.entry.id, asked)
    seconds = time.perf_counter() - began
    ways: dict[Way, tuple[Sequence[SoupPart], CookRequest]] = {}
    if weighing is not None and (weighed := _weighed(weighing, parts, base.shape)):
        ways["weighed"] = weighed, request.model_copy(update={"mixing": ConcatMixing()})
        if len(weighed) > 1 and not recompress.too_wide(weighed, RecompressMixing(), request.max_width):
            ways["recompressed"] = weighed, request.model_copy(update={"mixing": RecompressMixing()})
    if selected:
        ways["selected"] = selected, request
    progress(2, 4, f"trying {len(ways)} soups on {len(trying)} passages that were held out")
    held = [texts[number] for number in trying]
    known = None if chosen.vectors is None else chosen.vectors.base_nll
    if known is None:
        base_nll = np.array([score.nll for score in base.score(held, None, progress=progress)])
    else:
        base_nll = known[trying]
    tried = {way: _tried(registry, base, *how, held, base_nll, progress) for way, how in ways.items()}
    return Searched(
        best=_best(tried),
        search=Search(
            effort="quick",
            candidates=_reported(candidates, weighing, base.shape),
            left_out=left_out,
            trials=tuple(
                Trial(
                    way=way, members=len(one.mixed.parts), width=one.mixed.config.width,
                    difference=one.verification.difference, standard_error=one.verification.standard_error,
                )
                for way, one in tried.items()
            ),
            decided_on=len(choosing),
            held_out=len(held),
            tokens=0 if weighing is None else weighing.screen_tokens + weighing.step_tokens,
            seconds=seconds,
        ),
    )  # fmt: skip


def _candidates(registry: Registry, chosen: Chosen) -> tuple[list[tuple[AdapterRow, SoupPart]], tuple[LeftOut, ...]]:
    """The best-ranked adapters that can be put side by side with the first that can be at all; and why others not."""
    rows = rows_of(registry, chosen)
    ranked = [rows[one.member.digest] for one in chosen.ranking.ranked]
    parts = [part_of(row, "1", registry.blobs) for row in ranked]
    best = next((part for part in parts if part.config.joinable), None)
    if best is None:
        out = {part.digest: " ".join(concat.check([part], ConcatMixing())) for part in parts}
    else:
        out = apart(best, parts, ConcatMixing(), ranked=True)
    found = [(row, part) for row, part in zip(ranked, parts, strict=True) if row.digest not in out]
    out |= {row.digest: f"{MOST} better-ranked ones are weighed." for row, _ in found[MOST:]}
    left = (
        LeftOut(ref=row.ref, digest=row.digest, domain=row.domain, reason=out[row.digest])
        for row in ranked
        if row.digest in out
    )
    return found[:MOST], tuple(left)


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
    nll, tokens = nll_of(mixed, held, progress=progress)
    return Tried(mixed, verification_of(nll, base_nll, tokens, held_out=True), nll, tokens)


def _best(tried: Mapping[Way, Tried]) -> Tried | None:
    """The one with the lowest loss; of the weighed soup the narrow form, unless it is worse by a standard error."""
    left = dict(tried)
    wide, narrow = left.get("weighed"), left.get("recompressed")
    if wide is not None and narrow is not None:
        worse = paired_difference(narrow.nll, wide.nll, wide.tokens)
        del left["weighed" if worse.difference <= worse.standard_error else "recompressed"]
    return min(left.values(), key=lambda one: one.verification.soup_nll, default=None)


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
