"""The client of the command line and the demo: it returns the JSON objects of the API, and raises `registry.errors`.

Programs use `adaptersoup.Client`, with typed values; both send through `adaptersoup.client.synchronous`. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from adaptersoup.client.answers import LONGEST_EMBEDDING, Json, drop_none, object_of, path_segment
from adaptersoup.client.paths import (
    CHAT,
    COMPLETIONS,
    adapter_path,
    alias_path,
    body_of_request,
    if_match_header,
    iso_dates,
    job_path,
    key_path,
    limits_path,
    namespace_path,
)
from adaptersoup.client.synchronous.calls import Calls
from adaptersoup.client.synchronous.connection import Stream
from registry.errors import Busy, InvalidSample, Unavailable
from registry.names import KeyScope
from registry.progress import Progress, silent
from registry.spec import (
    Card,
    CookRequest,
    EncoderName,
    Manifest,
    Passage,
    PoolRequest,
    SampleSource,
    SelectOptions,
    SelectorSpec,
    json_of,
)
from training.request import TrainingRequest

CREATED = 201
LONGEST_WAIT = 3600
"""Seconds to wait for a server whose queue is full, before a push of many fails."""


def _unchanged(row: Json) -> Json:
    return row


def _event_value(_: str, value: Any) -> Any:
    return value


class SoupClient(Calls):
    """A client of one server, with JSON answers."""

    # --- adapters ---------------------------------------------------------------------------------------------

    def push_patiently(self, manifest: Manifest, *, progress: Progress | None = None) -> tuple[Json, bool]:
        """Push an adapter, waiting while the server's queue is full: the Adapter, and True if it is new.

        `progress` is called each second of waiting, and may raise to end it. Raises Busy after an hour.
        """
        body, waited, report = manifest.model_dump(mode="json", exclude_none=True), 0, progress or silent
        while True:
            try:
                answer = self.send("POST", "/v1/adapters", json=body, repeat=False)
            except Busy as error:
                pause = max(1, error.retry_after)
                waited += pause
                if waited > LONGEST_WAIT:
                    raise
                for _ in range(pause):
                    report(0, 0, "the server is full: waiting")
                    self.pause(1.0)
            else:
                return object_of(answer), answer.status_code == CREATED

    def adapters(self, *, limit: int | None = None, **filters: str | Sequence[str] | None) -> Iterator[Json]:
        """Adapters the key sees, newest first, without provenance; filters as of `adaptersoup.Client`."""
        return self.rows("/v1/adapters", filters, limit, _unchanged)

    def adapter(self, ref: str) -> Json:
        """One adapter, by name or digest. Raises NotFound or Retired."""
        return self.json("GET", adapter_path(ref))

    def update_adapter(
        self,
        ref: str,
        *,
        card: Card | None = None,
        domain: str | None = None,
        owner: str | None = None,
        if_match: str | None = None,
    ) -> Json:
        """Change the card or domain of a version, or the owner of its name, which an empty text removes."""
        body = body_of_request({"card": card, "domain": domain}) | ({} if owner is None else {"owner": owner or None})
        return self.json("PATCH", adapter_path(ref), json=body, headers=if_match_header(if_match))

    def aliases(self, ref: str) -> list[Json]:
        """Every alias of a name, and the version it points at."""
        return self.data("GET", f"{self.named_path(ref)}/aliases")

    def put_alias(self, name: str, alias: str, version: int, *, if_match: str | None = None) -> Json:
        """Point an alias of `namespace/name` at a version; with `if_match` only if that is its etag."""
        return self.json("PUT", alias_path(name, alias), json={"version": version}, headers=if_match_header(if_match))

    def delete_adapter(self, ref: str) -> list[Json]:
        """Retire all live versions of a name, or the one that `@version` names; returns the retired versions."""
        return self.data("DELETE", self.named_path(ref))

    def restore(self, ref: str, *, if_match: str | None = None) -> Json:
        """Bring a retired version back, `namespace/name@version`; with `if_match` only if that is its etag."""
        return self.json("POST", f"{adapter_path(ref)}/restore", headers=if_match_header(if_match))

    def purge(self, ref: str) -> Json:
        """Remove a version for good, `namespace/name@version`. Needs scope admin."""
        return self.json("POST", f"{adapter_path(ref)}/purge")

    def collect(self, *, dry_run: bool = False) -> Json:
        """Remove expired data by the server's settings, or only list it. Needs an admin key for all namespaces."""
        return self.json("POST", "/v1/collect", json={"dry_run": dry_run})

    def lineage(self, ref: str) -> Json:
        """The recipe, parents, children and evidence of an adapter."""
        return self.json("GET", f"{self.named_path(ref)}/lineage")

    def files(self, ref: str) -> list[Json]:
        """The files of an adapter: name, size, digest."""
        return self.data("GET", f"{self.named_path(ref)}/files")

    # --- selectors, soups, jobs -------------------------------------------------------------------------------

    def result(self, answer: Json, progress: Progress | None = None) -> Json:
        """The answer, or the result of its job if it is one; raises the errors of `wait_job`."""
        return self.result_of(answer, progress) if answer["object"] == "job" else answer

    def fit(
        self,
        selector: SelectorSpec,
        *,
        pool: PoolRequest | None = None,
        wait: bool = True,
        progress: Progress | None = None,
    ) -> Json:
        """Fit a selector over a pool: a Selector, or a Job if `wait` is False and the fit has not ended.

        Raises Unavailable without `wait` if no sample of the pool is embedded yet.
        """
        values = {"selector": selector, "pool": pool, "wait": 0}
        if not wait:
            return self.json("POST", "/v1/selectors", json=body_of_request(values))
        return self.fitted(self.begin("/v1/selectors", values, progress), progress)

    def selector(self, selector_id: str) -> Json:
        """One fitted selector."""
        return self.json("GET", f"/v1/selectors/{path_segment(selector_id)}")

    def select(
        self,
        sample: SampleSource,
        *,
        selector: SelectorSpec | None = None,
        options: SelectOptions | None = None,
        pool: PoolRequest | None = None,
        list_all: bool = False,
        progress: Progress | None = None,
    ) -> Json:
        """The adapters that a selector chooses for a sample, with reasons; a pool never fitted is fitted first."""
        values = {
            "sample": sample,
            "selector": selector,
            "options": options,
            "pool": pool,
            "list_all": list_all or None,
        }
        return self.once_fitted("/v1/select", values, progress)

    def nearest(
        self,
        texts: Sequence[Passage],
        *,
        limit: int | None = None,
        encoder: EncoderName | None = None,
        pool: PoolRequest | None = None,
        progress: Progress | None = None,
    ) -> Json:
        """The adapters whose samples are most like these texts; a pool never fitted is fitted first."""
        values = {"texts": [json_of(text) for text in texts], "limit": limit, "encoder": encoder, "pool": pool}
        return self.once_fitted("/v1/adapters/search", values, progress)

    def cook(self, request: CookRequest, *, wait: bool = True, progress: Progress | None = None) -> Json:
        """Cook a soup, or abstain: a Soup, or a Job if `wait` is False and the cook has not ended.

        Raises Unavailable without `wait` if no sample of the pool is embedded yet.
        """
        if not wait:
            return self.json(
                "POST", "/v1/soups", json={**request.model_dump(mode="json", exclude_none=True), "wait": 0}
            )
        return self.result(self.begin_cook(request, progress=progress), progress)

    def begin_cook(self, request: CookRequest, *, progress: Progress | None = None) -> Json:
        """Start a cook, once a sample of its pool is embedded: a Job, or the Soup if it is done already."""
        return self.begin("/v1/soups", {**request.model_dump(mode="json", exclude_none=True), "wait": 0}, progress)

    def train(self, request: TrainingRequest, *, wait: bool = True, progress: Progress | None = None) -> Json:
        """Train an adapter on uploaded data: the result of the job, or the Job if `wait` is False."""
        job = self.json("POST", "/v1/trainings", json=request.model_dump(mode="json", exclude_none=True))
        return self.result_of(job, progress) if wait else job

    def evaluate_pool(
        self,
        *,
        pool: PoolRequest | None = None,
        passages: int | None = None,
        wait: bool = True,
        progress: Progress | None = None,
    ) -> Json:
        """Evaluate every adapter of a pool on the samples of all: the job's result, or the Job if `wait` is False.

        Raises Unavailable without `wait` if no sample of the pool is embedded yet.
        """
        if not wait:
            return self.json("POST", "/v1/evaluations", json=body_of_request({"pool": pool, "passages": passages}))
        return self.result_of(self.begin_evaluate_pool(pool=pool, passages=passages, progress=progress), progress)

    def begin_evaluate_pool(
        self, *, pool: PoolRequest | None = None, passages: int | None = None, progress: Progress | None = None
    ) -> Json:
        """Start the evaluation of a pool, once a sample of it is embedded: its Job."""
        return self.begin("/v1/evaluations", {"pool": pool, "passages": passages}, progress)

    def evaluations(self, *, limit: int | None = None, **filters: str | None) -> Iterator[Json]:
        """Evaluations, newest first; filters are base_model, namespace, and digests of an adapter and of a sample."""
        return self.rows("/v1/evaluations", filters, limit, _unchanged)

    def jobs(self, *, limit: int | None = None, **filters: str | None) -> Iterator[Json]:
        """Jobs the key sees, newest first."""
        return self.rows("/v1/jobs", filters, limit, _unchanged)

    def job(self, job_id: str) -> Json:
        """One job."""
        return self.json("GET", job_path(job_id))

    def cancel_job(self, job_id: str) -> Json:
        """Ask a job to stop."""
        return self.json("POST", f"{job_path(job_id)}/cancel")

    def wait_embedded(self, adapter: Json, *, progress: Progress | None = None) -> None:
        """Wait until an adapter's sample is embedded: by its job, or by its state if another push started the job.

        Raises the errors of `wait_job`, InvalidSample for a sample that cannot be embedded, Unavailable after an hour.
        """
        if adapter.get("job"):
            self.wait_job(str(adapter["job"]), progress=progress)
            return
        for _ in range(LONGEST_EMBEDDING):
            state = self.json("GET", f"/v1/adapters/{adapter['ref']}")["sample_state"]
            if state == "failed":
                raise InvalidSample(
                    f"The sample of {adapter['ref']} could not be embedded: push the adapter with another sample."
                )
            if state != "pending":
                return
            (progress or silent)(0, 0, "another push's job embeds it")
            self.pause(1.0)
        raise Unavailable(f"The sample of {adapter['ref']} is not embedded after {LONGEST_EMBEDDING} seconds.")

    # --- inference --------------------------------------------------------------------------------------------

    def models(self) -> list[Json]:
        """The base models and adapters that `model` may name, as in OpenAI's list."""
        return self.data("GET", "/v1/models")

    def base_model(self, base_id: str) -> Json:
        """A base model by its id, with its architecture. Raises NotFound if the server does not have it."""
        return self.json("GET", f"/v1/models/{path_segment(base_id)}")

    def perplexity(self, model: str, texts: Sequence[Passage], *, baseline: str | None = None) -> Json:
        """Perplexity of texts under a model, and a baseline's with the paired standard error."""
        body = drop_none({"model": model, "texts": [json_of(text) for text in texts], "baseline": baseline})
        return self.json("POST", "/v1/perplexity", json=body)

    def complete(self, model: str, prompt: str, **sampling: Any) -> Json:
        """A text completion in OpenAI's format; `sampling` has max_tokens, temperature, top_p, n, stop, seed ..."""
        return self.json("POST", COMPLETIONS, json={"model": model, "prompt": prompt, **drop_none(sampling)})

    def stream(self, model: str, prompt: str, **sampling: Any) -> Stream[Json]:
        """A text completion as a stream of chunks; closing it ends the generation on the server too."""
        body = {"model": model, "prompt": prompt, **drop_none(sampling), "stream": True}
        return self.events("POST", COMPLETIONS, body, _event_value)

    def stream_chat(self, model: str, messages: Sequence[Mapping[str, str]], **sampling: Any) -> Stream[Json]:
        """A chat completion as a stream of chunks; closing it ends the generation on the server too."""
        body = {"model": model, "messages": list(messages), **drop_none(sampling), "stream": True}
        return self.events("POST", CHAT, body, _event_value)

    def chat(self, model: str, messages: Sequence[Mapping[str, str]], **sampling: Any) -> Json:
        """A chat completion in OpenAI's format; `messages` are {role, content}, and the last one is answered."""
        return self.json("POST", CHAT, json={"model": model, "messages": list(messages), **drop_none(sampling)})

    def embed(self, model: str, texts: str | Sequence[str]) -> Json:
        """Vectors of one text or several under a base model's encoder of samples, in OpenAI's format."""
        content = texts if isinstance(texts, str) else list(texts)
        return self.json("POST", "/v1/embeddings", json={"model": model, "input": content})

    # --- operators --------------------------------------------------------------------------------------------

    def create_key(
        self,
        name: str,
        *,
        scopes: Sequence[KeyScope],
        namespaces: Sequence[str] | None = None,
        expires_at: datetime | None = None,
    ) -> Json:
        """Make a key; only this answer has its `secret`. `namespaces` None grants all."""
        body = {"name": name, "scopes": list(scopes), "namespaces": namespaces and list(namespaces)}
        body |= iso_dates(drop_none({"expires_at": expires_at}))
        return self.json("POST", "/v1/keys", json=body, repeat=False)

    def keys(self, *, limit: int | None = None) -> Iterator[Json]:
        """Keys, oldest first, without secrets: all, or the first `limit` of them."""
        return self.rows("/v1/keys", {}, limit, _unchanged)

    def change_key(self, key_id: str, **changes: str | Sequence[str] | datetime | None) -> Json:
        """Change name, scopes, namespaces (None: all) or expires_at (None: never) of a key; others stay unchanged."""
        return self.json("PATCH", key_path(key_id), json=iso_dates(changes))

    def rotate_key(self, key_id: str, *, grace_seconds: int = 0) -> Json:
        """Replace the `secret` of a key, which only this answer has; the old one expires after the grace period."""
        return self.json("POST", f"{key_path(key_id)}/rotate", json={"grace_seconds": grace_seconds}, repeat=False)

    def revoke_key(self, key_id: str) -> Json:
        """Revoke a key, from the next request on."""
        return self.json("DELETE", key_path(key_id))

    def audit(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        **filters: str | None,
    ) -> Iterator[Json]:
        """Entries of the audit log, newest first; filters are action, subject, namespace and key_id.

        `since` and `until` need a time zone.
        """
        moments = iso_dates({"since": since, "until": until})
        return self.rows("/v1/audit", {**filters, **moments}, limit, _unchanged)

    def audit_csv(self, *, since: datetime | None = None, until: datetime | None = None, **filters: str | None) -> str:
        """All entries of the audit log that match, as CSV."""
        return self.csv("/v1/audit", {**filters, **iso_dates({"since": since, "until": until})})

    def namespace(self, namespace: str) -> Json:
        """The settings of a namespace, and their etag."""
        return self.json("GET", namespace_path(namespace))

    def change_namespace(
        self, namespace: str, *, if_match: str | None = None, **settings: str | int | list[str] | None
    ) -> Json:
        """Change settings of a namespace; others stay unchanged. With `if_match` only if that is their etag."""
        return self.json("PATCH", namespace_path(namespace), json=settings, headers=if_match_header(if_match))

    def limits(self, *, key_id: str | None = None, namespace: str | None = None) -> Json:
        """The limits of a key (by its id) or of a namespace: its own, those in force, and the usage of its quotas."""
        return self.json("GET", limits_path(key_id, namespace))

    def change_limits(self, *, key_id: str | None = None, namespace: str | None = None, **limits: int | None) -> Json:
        """Change limits; None restores the server's default, others stay unchanged."""
        return self.json("PATCH", limits_path(key_id, namespace), json=limits)

    def usage(self, *, by: Sequence[str] = (), limit: int | None = None, **filters: str | None) -> Iterator[Json]:
        """Sums of requests and tokens, last day first, grouped `by` day, key_id, namespace, model or some of these."""
        return self.rows("/v1/usage", {**filters, "by": by or None}, limit, _unchanged)

    def usage_csv(self, *, by: Sequence[str] = (), **filters: str | None) -> str:
        """All rows of `usage` that match, as CSV."""
        return self.csv("/v1/usage", {**filters, "by": by or None})
