"""The calls of the HTTP API with typed values: what is asked for, and what the answer is read as.

Each is described once, from the description of the same call in `service.client`, which gives JSON. `Client` and
`AsyncClient` have them as methods, and `Store` asks through a `Client`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from pydantic import BaseModel, ValidationError

from adaptersoup.values import Adapter, Adapters, Listed, Perplexity, Selection, Selector, Soup
from registry.errors import InvalidParameter
from registry.progress import Progress
from registry.spec import CookRequest, PoolRequest, SampleSource
from service.client import adapter_calls, inference_calls, job_calls, transfer
from service.client.steps import Json, Listing, Steps, Streamed
from service.http.schemas.adapters import ListedAdapter
from service.http.schemas.completions import CompletionAnswer
from service.http.schemas.jobs import Job
from service.http.schemas.jobs import Progress as JobProgress
from service.http.schemas.reading import body_of
from service.http.schemas.selectors import FitRequest, Nearest, NearestRequest, SelectRequest
from training.request import TrainingRequest

P = ParamSpec("P")
T = TypeVar("T", bound=BaseModel)
Model = str | Listed | Adapter | Soup
"""What answers: the name of an adapter, a soup or a base model (`base/...`), or a value of one."""


# --- of a description that gives JSON one that gives values ------------------------------------------------------


def one(describe: Callable[P, Steps[Json]], kind: type[T]) -> Callable[P, Steps[T]]:
    """The same call, whose answer is read as a value of this kind."""

    @wraps(describe)
    def call(*given: P.args, **named: P.kwargs) -> Steps[T]:
        return body_of(kind, (yield from describe(*given, **named)))

    return call


def each(describe: Callable[P, Steps[list[Json]]], kind: type[T]) -> Callable[P, Steps[list[T]]]:
    """The same call, whose rows are read as values of this kind."""

    @wraps(describe)
    def call(*given: P.args, **named: P.kwargs) -> Steps[list[T]]:
        return [body_of(kind, row) for row in (yield from describe(*given, **named))]

    return call


def rows(describe: Callable[P, Listing[Json]], kind: type[T]) -> Callable[P, Listing[T]]:
    """The same list, whose rows are read as values of this kind."""

    @wraps(describe)
    def call(*given: P.args, **named: P.kwargs) -> Listing[T]:
        return describe(*given, **named).of(lambda row: body_of(kind, row))

    return call


def pieces(describe: Callable[P, Streamed[Json]], kind: type[T]) -> Callable[P, Streamed[T]]:
    """The same stream, whose pieces are read as values of this kind."""

    @wraps(describe)
    def call(*given: P.args, **named: P.kwargs) -> Streamed[T]:
        return describe(*given, **named).of(lambda said: body_of(kind, said))

    return call


# --- adapters -----------------------------------------------------------------------------------------------------


def push(
    folder: Path | str, *, name: str, domain: str | None = None, texts: Sequence[str] | None = None,
    tags: Sequence[str] = (), base: str | None = None, owner: str | None = None, progress: Progress | None = None,
) -> Steps[Adapter]:  # fmt: skip
    """Push an adapter of a folder (ours, or PEFT's of a LoRA) as `name`, `namespace/name`.

    `domain` says what it was trained on, where the folder does not, and `texts` are passages of that: without them no
    selector can rank it. `owner` is who answers for it, a label that gives no right. What is there already is not sent
    again. The value's `job` embeds the texts: `wait_job` it before asking for a selection that is to have the adapter.
    Raises InvalidManifest and others.
    """
    more = transfer.Additions(
        domain=domain, base=base, texts=None if texts is None else checked(texts), tags=tags, owner=owner
    )  # fmt: skip
    return body_of(Adapter, (yield from transfer.pushing(Path(folder), name=name, more=more, progress=progress)))


def pull(model: Model, folder: Path | str, *, replace: bool = False, progress: Progress | None = None) -> Steps[Path]:
    """Write an adapter to a folder, whole or not at all, each file compared with its digest: the folder.

    Raises Conflict where the folder is there and is not to be replaced, NotFound, Retired, DigestMismatch.
    """
    found = yield from transfer.pulling(name_of(model), Path(folder), replace=replace, progress=progress)
    return found.path


def adapter(model: Model) -> Steps[Adapter]:
    """A stored adapter or soup, with how it came to be. Raises NotFound or Retired."""
    return body_of(Adapter, (yield from adapter_calls.adapter(name_of(model))))


def adapters(*, limit: int | None = None, **filters: str | Sequence[str] | None) -> Steps[Adapters]:
    """Stored adapters and soups, newest first.

    Filters are base_model, method, domain, owner, namespace, name, tag (one, or several that all hold), kind,
    tuned_on, and q: words that are there, or begin one that is, in name, domain, tags and card.
    """
    found = adapter_calls.adapters(limit=limit, **filters).of(lambda row: body_of(Listed, row))
    return Adapters((yield from found.whole()))


# --- selectors and soups --------------------------------------------------------------------------------------------


def fit(
    selector: str | Mapping[str, Any] = "posterior", *, pool: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> Steps[Selector]:  # fmt: skip
    """Fit a selector over a pool, which its first selection does too; shows how well it tells domains apart.

    `selector` is a kind (`posterior`, `gmm`, `cosine`, `uniform`) or a mapping with its fields, `pool` has those of
    PoolRequest.
    """
    asked = request_of(FitRequest, selector=spec_of(selector), pool=pool)
    return body_of(Selector, (yield from job_calls.fit(asked.selector, pool=asked.pool, progress=progress)))


def select(
    texts: Sequence[str], *, selector: str | Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None, pool: Mapping[str, Any] | None = None, list_all: bool = False,
    progress: Progress | None = None,
) -> Steps[Selection]:  # fmt: skip
    """Which adapters a selector would take for a sample of a domain; a pool that was never fitted is fitted first.

    `selector` is a kind (`posterior`, `gmm`, `cosine`, `uniform`) or a mapping with its fields; `options` and `pool`
    have those of SelectOptions and PoolRequest. With `list_all` all who were left out are named.
    """
    sample = yield from _sample(texts)
    asked = request_of(SelectRequest, sample=sample, selector=spec_of(selector), options=options, pool=pool)
    found = yield from job_calls.select(
        asked.sample, selector=asked.selector, options=asked.options, pool=asked.pool, list_all=list_all,
        progress=progress,
    )  # fmt: skip
    return body_of(Selection, found)


def nearest(
    texts: Sequence[str], *, limit: int = 10, pool: Mapping[str, Any] | None = None, progress: Progress | None = None
) -> Steps[Nearest]:
    """The adapters whose samples are most like these texts; a pool that was never fitted is fitted first."""
    asked = request_of(NearestRequest, texts=tuple(checked(texts)), limit=limit, pool=pool)
    found = yield from job_calls.nearest(asked.texts, limit=asked.limit, pool=asked.pool, progress=progress)
    return body_of(Nearest, found)


def cook(
    texts: Sequence[str] | None = None, *, effort: str | None = None, name: str | None = None,
    selector: str | Mapping[str, Any] | None = None, progress: Progress | None = None, **more: Any,
) -> Steps[Soup]:  # fmt: skip
    """Pick adapters for a sample of a new domain and mix them, or say that nothing helps (`abstained`).

    `more` are further fields of CookRequest: `recipe` mixes by hand, `pool` and `options` say who may be chosen.
    """
    request = yield from _cooking(texts, effort, name, selector, more)
    return body_of(Soup, (yield from job_calls.cook(request, progress=progress)))


def begin_cook(
    texts: Sequence[str] | None = None, *, effort: str | None = None, name: str | None = None,
    selector: str | Mapping[str, Any] | None = None, progress: Progress | None = None, **more: Any,
) -> Steps[Soup | Job]:  # fmt: skip
    """As `cook`, but for waiting: the job that cooks (`watch`, `soup_of`), or the soup where it is there at once."""
    request = yield from _cooking(texts, effort, name, selector, more)
    answer = yield from job_calls.begin_cook(request, progress=progress)
    return body_of(Job, answer) if answer["object"] == "job" else body_of(Soup, answer)


def _cooking(
    texts: Sequence[str] | None, effort: str | None, name: str | None, selector: str | Mapping[str, Any] | None,
    more: Mapping[str, Any],
) -> Steps[CookRequest]:  # fmt: skip
    sample = None if texts is None else (yield from _sample(texts))
    mixing = {"method": more["mixing"]} if isinstance(more.get("mixing"), str) else more.get("mixing")
    return request_of(
        CookRequest, sample=sample, effort=effort, name=name, selector=spec_of(selector), **{**more, "mixing": mixing}
    )


def train(request: TrainingRequest, *, progress: Progress | None = None) -> Steps[Adapter]:
    """Train an adapter on the server, on uploaded data: the adapter, once it is there.

    The same request again gives the same, and goes on where one was stopped.
    """
    found = yield from job_calls.train(request, progress=progress)
    return body_of(Adapter, (yield from adapter_calls.adapter(str(found["adapter"]))))


def begin_train(request: TrainingRequest) -> Steps[Job]:
    """As `train`, but for waiting: the job that trains."""
    return body_of(Job, (yield from job_calls.train(request, wait=False)))


def evaluate_pool(
    *, pool: Mapping[str, Any] | None = None, passages: int | None = None, progress: Progress | None = None
) -> Steps[Job]:
    """Evaluate every adapter of a pool on the samples of all of them: the job, ended. `evaluations` lists them.

    `pool` has the fields of PoolRequest; raises as `wait_job`.
    """
    begun = yield from begin_evaluate_pool(pool=pool, passages=passages)
    return (yield from wait_job(begun, progress=progress))


def begin_evaluate_pool(*, pool: Mapping[str, Any] | None = None, passages: int | None = None) -> Steps[Job]:
    """As `evaluate_pool`, but for waiting: the job that evaluates."""
    asked = None if pool is None else request_of(PoolRequest, **pool)
    return body_of(Job, (yield from job_calls.evaluate_pool(pool=asked, passages=passages, wait=False)))


# --- jobs -----------------------------------------------------------------------------------------------------------


def wait_job(job: Job | str, *, progress: Progress | None = None, patience: int = 30) -> Steps[Job]:
    """A job once it has succeeded, following its events; a server that restarts is waited for.

    Raises the error a failed job names, Cancelled for a cancelled one, and Unavailable after `patience` seconds
    without a server.
    """
    return body_of(Job, (yield from job_calls.wait_job(_id(job), progress=progress, patience=patience)))


def soup_of(job: Job | str, *, progress: Progress | None = None) -> Steps[Soup]:
    """What a job that cooks came to, once it has succeeded; raises as `wait_job`, InvalidParameter for another job."""
    found = yield from job_calls.wait_job(_id(job), progress=progress)
    if found["kind"] != "cook":
        raise InvalidParameter(f"Job {found['id']} is of kind {found['kind']}, and cooks nothing.", param="job")
    return body_of(Soup, (yield from job_calls.result_of(found)))


def watch(job: Job | str) -> Streamed[JobProgress | Job]:
    """What a job says of itself while it runs: its progress whenever that changes, then the whole job, ended.

    Ends without it where the server is restarted meanwhile: `wait_job` asks again.
    """
    return job_calls.watch(_id(job)).of(
        lambda said: body_of(Job, said) if said.get("object") == "job" else body_of(JobProgress, said)
    )


def cancel_job(job: Job | str) -> Steps[Job]:
    """Ask a job to stop."""
    return body_of(Job, (yield from job_calls.cancel_job(_id(job))))


def _id(job: Job | str) -> str:
    return job if isinstance(job, str) else job.id


# --- inference --------------------------------------------------------------------------------------------------------


def evaluate(model: Model, texts: Sequence[str], *, baseline: Model | None = None) -> Steps[Perplexity]:
    """Perplexity of texts under a model, against a baseline's with the paired difference where one is named."""
    against = None if baseline is None else name_of(baseline)
    return body_of(
        Perplexity, (yield from inference_calls.perplexity(name_of(model), checked(texts), baseline=against))
    )


def complete(model: Model, prompt: str, **sampling: Any) -> Steps[CompletionAnswer]:
    """A text completion; `sampling` has max_tokens, temperature, top_p, n, stop, seed ..."""
    return body_of(CompletionAnswer, (yield from inference_calls.complete(name_of(model), prompt, **sampling)))


def generate(model: Model, prompt: str, **sampling: Any) -> Steps[str]:
    """The text of a completion alone."""
    answer = yield from complete(model, prompt, **sampling)
    return answer.choices[0].text


def stream(model: Model, prompt: str, **sampling: Any) -> Streamed[CompletionAnswer]:
    """A text completion in pieces, as they are generated; closing it ends it on the server too."""
    return inference_calls.stream(name_of(model), prompt, **sampling).of(lambda said: body_of(CompletionAnswer, said))


# --- requests --------------------------------------------------------------------------------------------------------


def name_of(model: Model) -> str:
    """The name that a model is asked by."""
    if isinstance(model, Soup):
        return model.model
    return model.ref if isinstance(model, ListedAdapter) else model


def checked(texts: Sequence[str]) -> list[str]:
    """Raises InvalidParameter for one text, which is a sequence of texts to Python, and for what is no text."""
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise InvalidParameter("Give a list of texts: strings, one for each passage.", param="texts")
    return list(texts)


def request_of(kind: type[T], **fields: Any) -> T:
    """A request of these fields, those that are None left out; raises InvalidParameter with what is wrong."""
    try:
        return kind.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, one['loc'])) or 'the request'}: {one['msg']}" for one in error.errors()]
        raise InvalidParameter(f"This cannot be asked for: {problems[0]}.", problems=problems) from None


def spec_of(given: str | Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A selector by its kind, or by its fields."""
    return {"kind": given} if isinstance(given, str) else given


def _sample(texts: Sequence[str]) -> Steps[SampleSource]:
    return (yield from adapter_calls.sample(checked(texts)))
