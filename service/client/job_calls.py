"""What a client asks of jobs, and of what may become one: fit, select, cook, train.

Each is described once, as steps that any of the clients runs (`service.client.steps`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from registry.errors import Cancelled, InvalidSample, Unavailable, rebuild
from registry.progress import Progress, silent
from registry.spec import CookRequest, EncoderName, PoolRequest, SampleSource, SelectOptions, SelectorSpec
from service.client.answers import given, part
from service.client.steps import Hear, Json, Listing, Pause, Steps, Streamed, json_of, listing
from training.request import TrainingRequest

MAX_FITS = 5
LONGEST_EMBEDDING = 3600
"""Seconds that are waited for the samples of a pool of which none is embedded yet."""
DONE = frozenset({"succeeded", "failed", "cancelled"})


def fit(
    selector: SelectorSpec, *, pool: PoolRequest | None = None, wait: bool = True,
    progress: Progress | None = None,
) -> Steps[Json]:  # fmt: skip
    """Fit a selector over a pool: a Selector; a Job where `wait` is False and it is not done.

    Without `wait` a pool of which no sample is embedded yet is not waited for either: Unavailable is raised.
    """
    body = given({"selector": _dump(selector), "pool": _dump(pool), "wait": 0})
    if not wait:
        return (yield from json_of("POST", "/v1/selectors", json=body))
    answer = yield from _when_embedded("/v1/selectors", body, progress)
    if answer["object"] != "job":
        return answer
    fitted = yield from result_of(answer, progress)
    return (yield from json_of("GET", _selector_path(str(fitted["selector"]))))


def selector(selector_id: str) -> Steps[Json]:
    """One fitted selector."""
    return (yield from json_of("GET", _selector_path(selector_id)))


def selectors(*, limit: int | None = None) -> Listing[Json]:
    """Fitted selectors, newest first."""
    return listing("/v1/selectors", {}, limit)


def select(
    sample: SampleSource, *, selector: SelectorSpec | None = None, options: SelectOptions | None = None,
    pool: PoolRequest | None = None, list_all: bool = False, progress: Progress | None = None,
) -> Steps[Json]:  # fmt: skip
    """Which adapters a selector would take for a sample, and why; a pool never fitted is fitted first.

    Of those left out the best-scored are named, with `list_all` all.
    """
    body = given({
        "sample": _dump(sample), "selector": _dump(selector), "options": _dump(options), "pool": _dump(pool),
        "list_all": list_all or None, "wait": 0,
    })  # fmt: skip
    return (yield from _once_fitted("/v1/select", body, progress))


def nearest(
    texts: Sequence[str], *, limit: int | None = None, encoder: EncoderName | None = None,
    pool: PoolRequest | None = None, progress: Progress | None = None,
) -> Steps[Json]:  # fmt: skip
    """The adapters whose samples are most like these texts: a Nearest; a pool never fitted is fitted first."""
    body = given({"texts": list(texts), "limit": limit, "encoder": encoder, "pool": _dump(pool), "wait": 0})
    return (yield from _once_fitted("/v1/adapters/search", body, progress))


def _once_fitted(path: str, body: Json, progress: Progress | None) -> Steps[Json]:
    """The answer of a call that may give the job of a fit first."""
    for _ in range(MAX_FITS):
        answer = yield from _when_embedded(path, body, progress)
        if answer["object"] != "job":
            return answer
        yield from result_of(answer, progress)
    raise Unavailable("The pool changes faster than its selector can be fitted; try again when pushing is over.")


def _when_embedded(path: str, body: Json, progress: Progress | None) -> Steps[Json]:
    """The answer of a call that chooses from a pool; waits while all samples of the pool are still embedded."""
    waited = 0
    while True:
        try:
            return (yield from json_of("POST", path, json=body))
        except Unavailable as error:
            pause = max(1, error.retry_after)
            waited += pause
            if error.param != "pool" or waited > LONGEST_EMBEDDING:
                raise
            (progress or silent)(0, 0, "samples are being embedded")
            yield Pause(pause)


def cook(request: CookRequest, *, wait: bool = True, progress: Progress | None = None) -> Steps[Json]:
    """Cook a soup, or abstain: a Soup; a Job where `wait` is False and it is not done.

    Without `wait` a pool of which no sample is embedded yet is not waited for either: Unavailable is raised.
    """
    if not wait:
        return (yield from json_of("POST", "/v1/soups", json=_cooking(request)))
    answer = yield from begin_cook(request, progress=progress)
    return answer if answer["object"] != "job" else (yield from result_of(answer, progress))


def begin_cook(request: CookRequest, *, progress: Progress | None = None) -> Steps[Json]:
    """Have a soup cooked, once a sample of its pool is embedded: a Job, or the Soup where it is done."""
    return (yield from _when_embedded("/v1/soups", _cooking(request), progress))


def train(request: TrainingRequest, *, wait: bool = True, progress: Progress | None = None) -> Steps[Json]:
    """Train an adapter on uploaded data: what the job gave (`adapter`, its name and version, and `digest`).

    A Job where `wait` is False. The same request again gives the same, and goes on where one was stopped.
    """
    begun = yield from json_of("POST", "/v1/trainings", json=request.model_dump(mode="json", exclude_none=True))
    return (yield from result_of(begun, progress)) if wait else begun


def evaluate_pool(
    *, pool: PoolRequest | None = None, passages: int | None = None, wait: bool = True,
    progress: Progress | None = None,
) -> Steps[Json]:  # fmt: skip
    """Evaluate every adapter of a pool on the samples of all of them: what the job did, and what was known.

    A Job where `wait` is False.
    """
    begun = yield from _when_embedded("/v1/evaluations", given({"pool": _dump(pool), "passages": passages}), progress)
    return (yield from result_of(begun, progress)) if wait else begun


def evaluations(*, limit: int | None = None, **filters: str | None) -> Listing[Json]:
    """Evaluations, newest first; filters are base_model, namespace, and digests of an adapter and of a sample."""
    return listing("/v1/evaluations", filters, limit)


def result_of(job: Json, progress: Progress | None = None) -> Steps[Json]:
    """What a job came to, once it has succeeded; raises as `wait_job`."""
    result = (yield from wait_job(str(job["id"]), progress=progress)).get("result")
    if not isinstance(result, dict):
        raise Unavailable(f"Job {job['id']} left no result; `soup jobs show {job['id']}` shows it.")
    return dict(result)


def jobs(*, limit: int | None = None, **filters: str | None) -> Listing[Json]:
    """Jobs the key sees, newest first."""
    return listing("/v1/jobs", filters, limit)


def job(job_id: str) -> Steps[Json]:
    """One job."""
    return (yield from json_of("GET", f"/v1/jobs/{part(job_id)}"))


def cancel_job(job_id: str) -> Steps[Json]:
    """Ask a job to stop."""
    return (yield from json_of("POST", f"/v1/jobs/{part(job_id)}/cancel"))


def wait_job(job_id: str, *, progress: Progress | None = None, patience: int = 30) -> Steps[Json]:
    """The job once it has succeeded, following its events; a server that restarts is waited for.

    Raises the error a failed job names, Cancelled for a cancelled one, and Unavailable after `patience` seconds
    without a server.
    """
    unheard = 0
    while True:
        try:
            yield from _follow(job_id, progress)
            found = yield from job(job_id)
            unheard = 0
        except Unavailable:
            unheard += 1
            if unheard >= patience:
                raise
            found = {}
        if found.get("state") in DONE:
            return _succeeded(found)
        yield Pause(1.0)


def wait_embedded(adapter: Json, *, progress: Progress | None = None) -> Steps[None]:
    """Wait until the sample of an adapter is embedded: by its job, or where that is another's, by its state.

    Raises as `wait_job`, InvalidSample for a sample that could not be embedded, Unavailable after an hour.
    """
    if adapter.get("job"):
        yield from wait_job(str(adapter["job"]), progress=progress)
        return
    path = f"/v1/adapters/{adapter['ref']}"
    for _ in range(LONGEST_EMBEDDING):
        state = (yield from json_of("GET", path))["sample_state"]
        if state == "failed":
            raise InvalidSample(f"The sample of {adapter['ref']} could not be embedded; push it with another.")
        if state != "pending":
            return
        (progress or silent)(0, 0, "another push's job embeds it")
        yield Pause(1.0)
    raise Unavailable(f"The sample of {adapter['ref']} is still to be embedded after {LONGEST_EMBEDDING} seconds.")


def _follow(job_id: str, progress: Progress | None) -> Steps[None]:
    def heard(name: str, value: Any) -> bool:
        found = value.get("progress", value) if isinstance(value, dict) else None
        if progress is not None and isinstance(found, dict) and "done" in found:
            progress(int(found["done"]), int(found.get("total") or 0), str(found.get("message") or ""))
        return name == "done"

    yield Hear(_events_path(job_id), heard)


def watch(job_id: str) -> Streamed[Json]:
    """What a job says of itself while it runs: its progress whenever that changes, then the whole Job.

    Ends without it where the server is restarted meanwhile: `wait_job` asks again.
    """
    return Streamed("GET", _events_path(job_id), None, lambda _, value: value)


def _events_path(job_id: str) -> str:
    return f"/v1/jobs/{part(job_id)}/events"


def _selector_path(selector_id: str) -> str:
    return f"/v1/selectors/{part(selector_id)}"


def _succeeded(job: Json) -> Json:
    """`job`, or the error it ended with."""
    if job["state"] == "succeeded":
        return job
    if job["state"] == "cancelled":
        raise Cancelled(f"Job {job['id']} was cancelled.")
    error = job.get("error") or {}
    message = str(error.get("message") or f"Job {job['id']} failed; the server's log says why.")
    raise rebuild(str(error.get("code")), message, param=error.get("param"), problems=error.get("problems") or ())


def _cooking(request: CookRequest) -> Json:
    return {**request.model_dump(mode="json", exclude_none=True), "wait": 0}


def _dump(value: Any) -> Json | None:
    return None if value is None else value.model_dump(mode="json", exclude_none=True)
