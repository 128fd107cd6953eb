"""Charge inference to a key and a namespace: tokens are taken from their rate limits and settled when it ends.

Called by the routes that infer, after all other checks; the engine calls back with the tokens that a request really
took, however it ends, and usage is counted then. An adapter is charged to its namespace, a base model to the key's own,
and a mixture to the namespaces of its adapters, in the proportions of their weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeVar

from fastapi import Request

from registry.catalogue.usage import UsageSum
from registry.errors import TooLarge
from registry.quotas import effective_limits, subject_text
from registry.spec import LimitKind, UseLimits
from service.access.keys import Principal
from service.engine import GenerateRequest, ScoreRequest
from service.engine.fairness import ASSUMED_TOKENS
from service.http.models.named_models import ResolvedModel
from service.rates import Measure, Rates, SharedRates, Want, remaining_of, used_after
from service.services import Services

EngineRequest = TypeVar("EngineRequest", GenerateRequest, ScoreRequest)
Subject = tuple[LimitKind, str]
MEASURES: tuple[Measure, ...] = ("requests", "tokens")


def admit(
    request: Request,
    services: Services,
    principal: Principal,
    engine_requests: Sequence[tuple[ResolvedModel, EngineRequest]],
) -> list[EngineRequest]:
    """Take the tokens that requests to the engine may need from the rate limits, and return metered requests.

    Mixtures are mixed after that, so that requests beyond the limits cause no mixing.

    A metered request settles its tokens when it ends. Raises RateLimitExceeded, and TooLarge if a request needs more
    tokens than a minute has. Reads the limits from the catalogue.
    """
    charges = [charges_of(model, principal) for model, _ in engine_requests]
    needed = [tokens_needed(model, engine_request) for model, engine_request in engine_requests]
    amounts = [_amounts(charged, principal, tokens) for charged, tokens in zip(charges, needed, strict=True)]
    totals = Counter[Subject]()
    for amount in amounts:
        totals.update(amount)
    with services.registry.database.read_autocommit() as catalogue:  # every request waits for it
        limits = effective_limits(catalogue, services.registry.quotas, totals)
    wants = [want for subject, tokens in totals.items() for want in _wants(subject, limits[subject], tokens)]
    request.state.rate_headers = partial(_headers, services.rates, wants)
    _check_size(wants)
    services.rates.take(wants)
    try:
        adapters = [model.handle for model, _ in engine_requests]
    except BaseException:
        for want in wants:
            if want.measure == "tokens":
                services.rates.settle(want, 0)
        raise
    meter = Meter(services, principal, charges[0][0])
    metered: list[EngineRequest] = []
    for (_, engine_request), adapter, charged, amount in zip(engine_requests, adapters, charges, amounts, strict=True):
        token_wants = {
            subject: want
            for subject, tokens in amount.items()
            for want in _wants(subject, limits[subject], tokens)
            if want.measure == "tokens"
        }
        metered.append(replace(engine_request, adapter=adapter, on_end=partial(meter.on_end, charged, token_wants)))
    return metered


def check_rates(request: Request, services: Services, principal: Principal) -> None:
    """Raise RateLimitExceeded if the key's limits per minute have nothing left for any request; takes nothing."""
    subject: Subject = ("key", principal.key_id)
    with services.registry.database.read_autocommit() as catalogue:
        limits = effective_limits(catalogue, services.registry.quotas, [subject])[subject]
    wants = _wants(subject, limits, 1)
    request.state.rate_headers = partial(_headers, services.rates, wants)
    used_after(wants, services.rates.used(wants))


@dataclass(frozen=True)
class Charge:
    """The share of a request that one model of a namespace is charged with; the shares of a request sum to 1."""

    namespace: str
    model: str
    share: float


class Meter:
    """Settles and counts one HTTP request, which may be several to the engine; `main` counts it as a request."""

    def __init__(self, services: Services, principal: Principal, main: Charge) -> None:
        self._services = services
        self._principal = principal
        self._main = main
        self._is_counted = False

    def on_end(self, charges: Sequence[Charge], wants: Mapping[Subject, Want], tokens_in: int, tokens_out: int) -> None:
        """Settle and count the tokens of a request to the engine that has ended. Called in the engine's thread."""
        used = _amounts(charges, self._principal, tokens_in + tokens_out)
        for subject, want in wants.items():
            self._services.rates.settle(want, used[subject])
        if not tokens_in:
            return
        shares = [charge.share for charge in charges]
        split_in, split_out = split(tokens_in, shares), split(tokens_out, shares)
        for charge, charged_in, charged_out in zip(charges, split_in, split_out, strict=True):
            self._count(charge, UsageSum(tokens_in=charged_in, tokens_out=charged_out))
        if not self._is_counted:
            self._count(self._main, UsageSum(requests=1))
        self._is_counted = True

    def _count(self, charge: Charge, used: UsageSum) -> None:
        self._services.usage.count(self._principal.key_id, charge.namespace, charge.model, used)


def tokens_needed(model: ResolvedModel, engine_request: GenerateRequest | ScoreRequest) -> int:
    """Return the tokens of a prompt and its answers; an answer without a limit counts as in the engine's queue."""
    if isinstance(engine_request, ScoreRequest):
        return sum(map(len, engine_request.windows))
    max_tokens = engine_request.params.max_tokens
    if max_tokens is None:
        max_tokens = max(0, min(ASSUMED_TOKENS, engine_request.length_limit(model.base.shape)))
    return len(engine_request.prompt) + engine_request.params.n * max_tokens


def answer_headers(request: Request, model: ResolvedModel) -> dict[str, str]:
    """Return the headers of the answer to an admitted request: those of the model, and the rates that remain."""
    headers: dict[str, str] = model.headers | request.state.rate_headers()
    return headers


def duration(seconds: float) -> str:
    """Return a duration as OpenAI writes it: `6m0s`, `1.5s`, `20ms`; milliseconds are rounded up."""
    milliseconds = -int(-seconds * 1000 // 1)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + text


def used_rates(services: Services, subject: Subject, limits: UseLimits) -> dict[str, int]:
    """Return the used part of a subject's limits per minute that are in force, by the name of the limit."""
    wants = _wants(subject, limits, 0)
    used = services.rates.used(wants)
    return {f"{want.measure}_per_minute": want.limit - remaining_of(want, used[want.name]).remaining for want in wants}


def _headers(rates: Rates | SharedRates, wants: Sequence[Want]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for measure in MEASURES:
        remaining = rates.remaining(wants, measure)
        if remaining is not None:
            headers |= {
                f"x-ratelimit-limit-{measure}": str(remaining.limit),
                f"x-ratelimit-remaining-{measure}": str(remaining.remaining),
                f"x-ratelimit-reset-{measure}": duration(remaining.reset),
            }
    return headers


def _wants(subject: Subject, limits: UseLimits, tokens: int) -> list[Want]:
    """Return the wants of a subject for one request and its tokens, of the measures that are limited."""
    numbers: tuple[tuple[Measure, int | None, int], ...] = (
        ("requests", limits.requests_per_minute, 1),
        ("tokens", limits.tokens_per_minute, tokens),
    )
    label = subject_text(*subject)
    return [Want(label, measure, limit, amount) for measure, limit, amount in numbers if limit is not None]


def _check_size(wants: Sequence[Want]) -> None:
    for want in wants:
        if want.amount > want.limit:
            raise TooLarge(
                f"{want.subject} has {want.limit} {want.measure} a minute, and this request needs {want.amount} "
                "(its input and its maximum output): send less, or lower 'max_tokens'.",
                param="max_tokens",
            )


def split(total: int, shares: Sequence[float]) -> list[int]:
    """Split a number in the proportions of shares that sum to 1; the sum of the result is the number."""
    bounds = [round(total * bound) for bound in accumulate(shares)]
    return [stop - start for start, stop in pairwise([0, *bounds[:-1], total])]


def charges_of(model: ResolvedModel, principal: Principal) -> list[Charge]:
    """Return the charges of a request for a model, the largest share first."""
    if not model.rows:
        return [Charge(principal.home, f"base/{model.base_id}", 1.0)]
    charges = [Charge(row.namespace, row.ref, share) for row, share in model.rows]
    return sorted(charges, key=lambda charge: -charge.share)


def _amounts(charges: Sequence[Charge], principal: Principal, tokens: int) -> dict[Subject, int]:
    """Return the amounts that tokens take from the limits of the key and of each namespace, rounded up."""
    shares: dict[Subject, float] = {}
    for charge in charges:
        shares["namespace", charge.namespace] = shares.get(("namespace", charge.namespace), 0.0) + charge.share
    amounts = {subject: min(tokens, math.ceil(share * tokens)) for subject, share in shares.items()}
    return {("key", principal.key_id): tokens, **amounts}
