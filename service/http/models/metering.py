"""What inference costs a key and a namespace: rates are taken before the engine is asked and settled when it is done.

Called by the routes that infer, last of all checks; the engine calls back with what a request really took, however it
ends. Usage is counted there too. A model of a namespace is used in that namespace, a base model in the key's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from fastapi import Request

from registry.catalogue.rows import UsageSum
from registry.errors import TooLarge
from registry.quotas import effective_limits, subject_text
from registry.spec import LimitKind, UseLimits
from service.access.keys import Principal
from service.engine import GenerateRequest, ScoreRequest
from service.engine.key_quotas import ASSUMED_TOKENS
from service.http.models.named_models import ResolvedModel
from service.parts import Services
from service.rates import Measure, Rates, SharedRates, Want

Asked = TypeVar("Asked", GenerateRequest, ScoreRequest)
Subject = tuple[LimitKind, str]
MEASURES: tuple[Measure, ...] = ("requests", "tokens")


def admit(
    request: Request, services: Services, principal: Principal, asked: Sequence[tuple[ResolvedModel, Asked]]
) -> list[Asked]:
    """Take what these requests to the engine may need, and give them back as it is to have them: each settles itself.

    Raises RateLimitExceeded, and TooLarge where a minute has fewer tokens than are needed. Reads the limits.
    """
    subjects: list[tuple[Subject, Subject]] = [
        (("key", principal.key_id), ("namespace", _namespace(model, principal))) for model, _ in asked
    ]
    needed = [tokens_needed(model, one) for model, one in asked]
    total = Counter[Subject]()
    for own, tokens in zip(subjects, needed, strict=True):
        total.update(dict.fromkeys(own, tokens))
    limits = _limits(services, total)
    wants = [want for subject, tokens in total.items() for want in _wants(subject, limits[subject], tokens)]
    request.state.rate_headers = partial(_headers, services.rates, wants)
    _check_size(wants)
    services.rates.take(wants)
    meter, metered = Meter(services, principal, asked[0][0]), []
    for (model, one), own, tokens in zip(asked, subjects, needed, strict=True):
        its = [want for subject in own for want in _wants(subject, limits[subject], tokens)]
        metered.append(replace(one, on_end=partial(meter.ended, model, [w for w in its if w.measure == "tokens"])))
    return metered


class Meter:
    """What came of one HTTP request for a model, which may be several to the engine, some for another to compare."""

    def __init__(self, services: Services, principal: Principal, model: ResolvedModel) -> None:
        self._services = services
        self._principal = principal
        self._model = model
        self._counted = False

    def ended(self, model: ResolvedModel, wants: Sequence[Want], read: int, written: int) -> None:
        """A request to the engine has ended: settle its tokens, and count them. In the engine's thread."""
        for want in wants:
            self._services.rates.settle(want, read + written)
        if read:
            self._count(model, UsageSum(tokens_in=read, tokens_out=written))
            if not self._counted:
                self._count(self._model, UsageSum(requests=1))
            self._counted = True

    def _count(self, model: ResolvedModel, used: UsageSum) -> None:
        self._services.usage.count(self._principal.key_id, _namespace(model, self._principal), _name(model), used)


def tokens_needed(model: ResolvedModel, asked: GenerateRequest | ScoreRequest) -> int:
    """The tokens of a prompt and those asked for; where no limit is named, those that the engine's queue counts."""
    if isinstance(asked, ScoreRequest):
        return sum(map(len, asked.windows))
    most = asked.params.max_tokens
    if most is None:
        most = max(0, min(ASSUMED_TOKENS, asked.length_limit(model.base.shape)))
    return len(asked.prompt) + asked.params.n * most


def answer_headers(request: Request, model: ResolvedModel) -> dict[str, str]:
    """The headers of an answer: of the model, and what is left of the limits now."""
    return model.headers | rate_headers(request)


def rate_headers(request: Request) -> dict[str, str]:
    """What is left of the limits now, as OpenAI's clients read it; nothing where there are none."""
    found: Any = getattr(request.state, "rate_headers", dict)
    return dict(found())


def duration(seconds: float) -> str:
    """A duration as OpenAI writes it: `6m0s`, `1.5s`, `20ms`; milliseconds are rounded up."""
    milliseconds = -int(-seconds * 1000 // 1)
    if milliseconds < 1000:
        return f"{milliseconds}ms" if milliseconds else "0s"
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + text


def _headers(rates: Rates | SharedRates, wants: Sequence[Want]) -> dict[str, str]:
    found: dict[str, str] = {}
    for measure in MEASURES:
        left = rates.left(wants, measure)
        if left is not None:
            found |= {
                f"x-ratelimit-limit-{measure}": str(left.limit),
                f"x-ratelimit-remaining-{measure}": str(left.remaining),
                f"x-ratelimit-reset-{measure}": duration(left.reset),
            }
    return found


def _limits(services: Services, subjects: Counter[Subject]) -> dict[Subject, UseLimits]:
    with services.registry.database.read() as catalogue:
        return {subject: effective_limits(catalogue, services.registry.quotas, *subject) for subject in subjects}


def _wants(subject: Subject, limits: UseLimits, tokens: int) -> list[Want]:
    """One request and so many tokens, of what is limited."""
    numbers: tuple[tuple[Measure, int | None, int], ...] = (
        ("requests", limits.requests_per_minute, 1),
        ("tokens", limits.tokens_per_minute, tokens),
    )
    whose = subject_text(*subject)
    return [Want(whose, measure, limit, amount) for measure, limit, amount in numbers if limit is not None]


def _check_size(wants: Sequence[Want]) -> None:
    for want in wants:
        if want.amount > want.limit:
            raise TooLarge(
                f"{want.subject} has {want.limit} {want.measure} a minute, and this needs {want.amount} (what is sent, "
                "and what may be generated): send less, or ask for fewer with 'max_tokens'.",
                param="max_tokens",
            )


def _namespace(model: ResolvedModel, principal: Principal) -> str:
    return principal.home if model.row is None else model.row.namespace


def _name(model: ResolvedModel) -> str:
    """The model's one name, whichever it was asked by."""
    return f"base/{model.base_id}" if model.row is None else model.row.ref
