"""A client of the HTTP API of a server with typed values, without torch.

Errors are those of `registry.errors`. What is left early without a `with` block is generated to its end, or until
Python collects it. A client that was closed raises Unavailable.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx2

from adaptersoup.requests import Model, checked, cook_values, id_of, name_of, request_of, spec_of, values_of
from adaptersoup.values import Adapter, Adapters, Listed, Perplexity, Selection, Selector, Soup
from registry.errors import InvalidParameter
from registry.names import KeyScope
from registry.progress import Progress
from registry.spec import Card, PoolRequest
from service.client.additions import Additions
from service.client.answers import given, part
from service.client.paths import (
    CHAT,
    COMPLETIONS,
    adapter_path,
    alias_path,
    body_of_request,
    job_path,
    key_path,
    limits_path,
    matching,
    namespace_path,
    plain,
)
from service.client.synchronous.calls import Calls
from service.client.synchronous.connection import ADDRESS, Stream
from service.client.waiting import Pause, sleep
from service.http.schemas.adapters import Alias, Lineage, Purged, StoredFile
from service.http.schemas.audit import AuditEntry
from service.http.schemas.chat import ChatAnswer, ChatChunk
from service.http.schemas.collections import Collection
from service.http.schemas.completions import CompletionAnswer
from service.http.schemas.embeddings import EmbeddingAnswer
from service.http.schemas.evaluations import Evaluation
from service.http.schemas.health import Ready
from service.http.schemas.jobs import Job
from service.http.schemas.jobs import Progress as JobProgress
from service.http.schemas.keys import CreatedKey, Key
from service.http.schemas.limits import Limits
from service.http.schemas.models import ModelCard
from service.http.schemas.namespaces import Namespace
from service.http.schemas.reading import body_of, reader_of
from service.http.schemas.selectors import FitRequest, Nearest, NearestRequest, SelectRequest
from service.http.schemas.usage import UsageEntry
from training.request import TrainingRequest


class Client:
    """A client of one server. `transport` replaces the network, `pause` the waiting between two requests."""

    def __init__(
        self,
        url: str = ADDRESS,
        key: str | None = None,
        *,
        timeout: float = 600.0,
        transport: httpx2.BaseTransport | None = None,
        pause: Pause = sleep,
    ) -> None:
        self._http = Calls(url, key, transport=transport, timeout=timeout, pause=pause)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    # --- adapters ---------------------------------------------------------------------------------------------

    def upload(
        self,
        source: bytes | Path,
        *,
        part_bytes: int | None = None,
        progress: Progress | None = None,
        anew: bool = False,
    ) -> str:
        """Make sure the server has these bytes, and return their digest; what is there already is not sent.

        With `anew` everything is sent all the same. What has more than `part_bytes` is sent in parts, and continues
        where it ended after a connection that broke or a process that was killed, here or there.
        """
        return self._http.upload(source, part_bytes=part_bytes, progress=progress, anew=anew)

    def has_blob(self, digest: str) -> bool:
        """Return True if the server has the blob, whole, and this key sees it."""
        return self._http.has_blob(digest)

    def push(
        self,
        folder: Path | str,
        *,
        name: str,
        domain: str | None = None,
        texts: Sequence[str] | None = None,
        tags: Sequence[str] = (),
        base: str | None = None,
        owner: str | None = None,
        progress: Progress | None = None,
    ) -> Adapter:
        """Push an adapter of a folder (ours, or PEFT's of a LoRA) as `name`, `namespace/name`.

        `domain` says what it was trained on, where the folder does not, and `texts` are passages of that: without them
        no selector can rank it. `owner` is who answers for it, a label that gives no right. What is there already is
        not sent again. The value's `job` embeds the texts: `wait_job` it before asking for a selection that is to have
        the adapter. Raises InvalidManifest and others.
        """
        more = Additions(
            domain=domain, base=base, texts=None if texts is None else checked(texts), tags=tags, owner=owner
        )  # fmt: skip
        pushed = self._http.push_directory(Path(folder), name=name, more=more, progress=progress)
        return body_of(Adapter, pushed)

    def pull(
        self, model: Model, folder: Path | str, *, replace: bool = False, progress: Progress | None = None
    ) -> Path:
        """Write an adapter to a folder, whole or not at all, each file compared with its digest: the folder.

        Raises Conflict where the folder is there and is not to be replaced, NotFound, Retired, DigestMismatch.
        """
        pulled = self._http.pull_directory(name_of(model), Path(folder), replace=replace, progress=progress)
        return pulled.path

    def adapter(self, model: Model) -> Adapter:
        """A stored adapter or soup, with how it came to be. Raises NotFound or Retired."""
        return body_of(Adapter, self._http.json("GET", adapter_path(name_of(model))))

    def adapters(self, *, limit: int | None = None, **filters: str | Sequence[str] | None) -> Adapters:
        """Stored adapters and soups, newest first.

        Filters are base_model, method, domain, owner, namespace, name, tag (one, or several that all hold), kind,
        tuned_on, and q: words that are there, or begin one that is, in name, domain, tags and card.
        """
        return Adapters([row for row in self._http.rows("/v1/adapters", filters, limit, reader_of(Listed))])

    def update_adapter(
        self,
        ref: str,
        *,
        card: Card | None = None,
        domain: str | None = None,
        owner: str | None = None,
        if_match: str | None = None,
    ) -> Adapter:
        """Change card or domain, or the owner of all versions of the name, whom an empty text removes.

        With `if_match` (an etag) only if nobody else has changed it meanwhile.
        """
        body = body_of_request({"card": card, "domain": domain}) | ({} if owner is None else {"owner": owner or None})
        changed = self._http.json("PATCH", adapter_path(ref), json=body, headers=matching(if_match))
        return body_of(Adapter, changed)

    def aliases(self, ref: str) -> list[Alias]:
        """Every alias of a name, and the version it points at."""
        path = self._http.named_path(ref)
        return [body_of(Alias, row) for row in self._http.data("GET", f"{path}/aliases")]

    def put_alias(self, name: str, alias: str, version: int, *, if_match: str | None = None) -> Alias:
        """Point an alias of `namespace/name` at a version; with `if_match` only if that is its etag."""
        headers = matching(if_match)
        return body_of(
            Alias, self._http.json("PUT", alias_path(name, alias), json={"version": version}, headers=headers)
        )

    def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias of `namespace/name`."""
        self._http.send("DELETE", alias_path(name, alias))

    def delete_adapter(self, ref: str) -> list[Listed]:
        """Retire an adapter: all live versions of a name, or the one that `@version` names; what was retired."""
        path = self._http.named_path(ref)
        return [body_of(Listed, row) for row in self._http.data("DELETE", path)]

    def restore(self, ref: str, *, if_match: str | None = None) -> Adapter:
        """Bring a retired version back, `namespace/name@version`; with `if_match` only if that is its etag."""
        path = f"{adapter_path(ref)}/restore"
        return body_of(Adapter, self._http.json("POST", path, headers=matching(if_match)))

    def purge(self, ref: str) -> Purged:
        """Remove a version for good, `namespace/name@version`. Needs scope admin."""
        return body_of(Purged, self._http.json("POST", f"{adapter_path(ref)}/purge"))

    def collect(self, *, dry_run: bool = False) -> Collection:
        """Remove what is due by the server's settings, or only list it. Needs an all-seeing admin."""
        return body_of(Collection, self._http.json("POST", "/v1/collect", json={"dry_run": dry_run}))

    def lineage(self, ref: str) -> Lineage:
        """The recipe, parents, children and evidence of an adapter."""
        path = self._http.named_path(ref)
        return body_of(Lineage, self._http.json("GET", f"{path}/lineage"))

    def files(self, ref: str) -> list[StoredFile]:
        """The files of an adapter: name, size, digest."""
        path = self._http.named_path(ref)
        return [body_of(StoredFile, row) for row in self._http.data("GET", f"{path}/files")]

    # --- selectors and soups ----------------------------------------------------------------------------------

    def fit(
        self,
        selector: str | Mapping[str, Any] = "posterior",
        *,
        pool: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Selector:
        """Fit a selector over a pool, which its first selection does too; shows how well it tells domains apart.

        `selector` is a kind (`posterior`, `gmm`, `cosine`, `uniform`) or a mapping with its fields, `pool` has those of
        PoolRequest.
        """
        request = request_of(FitRequest, selector=spec_of(selector), pool=pool)
        begun = self._http.begin("/v1/selectors", {**values_of(request), "wait": 0}, progress)
        return body_of(Selector, self._http.fitted(begun, progress))

    def selector(self, selector_id: str) -> Selector:
        """One fitted selector."""
        return body_of(Selector, self._http.json("GET", f"/v1/selectors/{part(selector_id)}"))

    def selectors(self, *, limit: int | None = None) -> Iterator[Selector]:
        """Fitted selectors, newest first."""
        return self._http.rows("/v1/selectors", {}, limit, reader_of(Selector))

    def select(
        self,
        texts: Sequence[str],
        *,
        selector: str | Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        pool: Mapping[str, Any] | None = None,
        list_all: bool = False,
        progress: Progress | None = None,
    ) -> Selection:
        """Which adapters a selector would take for a sample of a domain; a pool that was never fitted is fitted first.

        `selector` is a kind (`posterior`, `gmm`, `cosine`, `uniform`) or a mapping with its fields; `options`, `pool`
        have those of SelectOptions and PoolRequest. With `list_all` all who were left out are named.
        """
        sample = self._http.sample(checked(texts))
        request = request_of(SelectRequest, sample=sample, selector=spec_of(selector), options=options, pool=pool)
        values = {**values_of(request), "list_all": list_all or None}
        return body_of(Selection, self._http.once_fitted("/v1/select", values, progress))

    def nearest(
        self,
        texts: Sequence[str],
        *,
        limit: int = 10,
        pool: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Nearest:
        """The adapters whose samples are most like these texts; a pool that was never fitted is fitted first."""
        request = request_of(NearestRequest, texts=tuple(checked(texts)), limit=limit, pool=pool)
        answer = self._http.once_fitted("/v1/adapters/search", values_of(request), progress)
        return body_of(Nearest, answer)

    def cook(
        self,
        texts: Sequence[str] | None = None,
        *,
        effort: str | None = None,
        name: str | None = None,
        selector: str | Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **more: Any,
    ) -> Soup:
        """Pick adapters for a sample of a new domain and mix them, or say that nothing helps (`abstained`).

        `more` are further fields of CookRequest: `recipe` mixes by hand, `pool` and `options` say who may be chosen.
        """
        sample = None if texts is None else self._http.sample(checked(texts))
        values = cook_values(sample, effort, name, selector, more)
        begun = self._http.begin("/v1/soups", values, progress)
        return body_of(Soup, self._http.result(begun, progress))

    def begin_cook(
        self,
        texts: Sequence[str] | None = None,
        *,
        effort: str | None = None,
        name: str | None = None,
        selector: str | Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **more: Any,
    ) -> Soup | Job:
        """As `cook`, without waiting: the job that cooks (`watch`, `soup_of`), or the soup if it is done."""
        sample = None if texts is None else self._http.sample(checked(texts))
        values = cook_values(sample, effort, name, selector, more)
        answer = self._http.begin("/v1/soups", values, progress)
        return body_of(Job, answer) if answer["object"] == "job" else body_of(Soup, answer)

    def train(self, request: TrainingRequest, *, progress: Progress | None = None) -> Adapter:
        """Train an adapter on the server, on uploaded data: the adapter, once it is there.

        The same request again gives the same, and continues where one was stopped.
        """
        job = self._http.json("POST", "/v1/trainings", json=values_of(request))
        return self.adapter(str((self._http.result_of(job, progress))["adapter"]))

    def begin_train(self, request: TrainingRequest) -> Job:
        """As `train`, without waiting: the job that trains."""
        return body_of(Job, self._http.json("POST", "/v1/trainings", json=values_of(request)))

    def evaluate_pool(
        self,
        *,
        pool: Mapping[str, Any] | None = None,
        passages: int | None = None,
        progress: Progress | None = None,
    ) -> Job:
        """Evaluate every adapter of a pool on the samples of all of them: the job, ended. `evaluations` lists them.

        `pool` has the fields of PoolRequest; raises as `wait_job`.
        """
        return self.wait_job(self.begin_evaluate_pool(pool=pool, passages=passages), progress=progress)

    def begin_evaluate_pool(self, *, pool: Mapping[str, Any] | None = None, passages: int | None = None) -> Job:
        """As `evaluate_pool`, without waiting: the job that evaluates."""
        request = None if pool is None else request_of(PoolRequest, **pool)
        return body_of(Job, self._http.begin("/v1/evaluations", {"pool": request, "passages": passages}))

    def evaluations(self, *, limit: int | None = None, **filters: str | None) -> Iterator[Evaluation]:
        """Evaluations, newest first; filters are base_model, namespace, and digests of an adapter and of a sample."""
        return self._http.rows("/v1/evaluations", filters, limit, reader_of(Evaluation))

    # --- jobs -------------------------------------------------------------------------------------------------

    def jobs(self, *, limit: int | None = None, **filters: str | None) -> Iterator[Job]:
        """Jobs the key sees, newest first."""
        return self._http.rows("/v1/jobs", filters, limit, reader_of(Job))

    def job(self, job_id: str) -> Job:
        """One job."""
        return body_of(Job, self._http.json("GET", job_path(job_id)))

    def watch(self, job: Job | str) -> Stream[JobProgress | Job]:
        """The progress of a job whenever it changes, then the whole job, ended.

        Ends without it where the server is restarted meanwhile: `wait_job` asks again.
        """

        def read(_: str, value: Any) -> JobProgress | Job:
            return body_of(Job, value) if value.get("object") == "job" else body_of(JobProgress, value)

        return self._http.events("GET", f"{job_path(id_of(job))}/events", None, read)

    def wait_job(self, job: Job | str, *, progress: Progress | None = None, patience: int = 30) -> Job:
        """A job once it has succeeded, following its events; a server that restarts is waited for.

        Raises the error a failed job names, Cancelled for a cancelled one, and Unavailable after `patience` seconds
        without a server.
        """
        return body_of(Job, self._http.wait_job(id_of(job), progress=progress, patience=patience))

    def soup_of(self, job: Job | str, *, progress: Progress | None = None) -> Soup:
        """The soup of a job that cooks, once it has succeeded; raises as `wait_job`, InvalidParameter for others."""
        ended = self._http.wait_job(id_of(job), progress=progress)
        if ended["kind"] != "cook":
            raise InvalidParameter(f"Job {ended['id']} is of kind {ended['kind']}, and cooks nothing.", param="job")
        return body_of(Soup, self._http.result_of(ended))

    def cancel_job(self, job: Job | str) -> Job:
        """Ask a job to stop."""
        return body_of(Job, self._http.json("POST", f"{job_path(id_of(job))}/cancel"))

    # --- inference --------------------------------------------------------------------------------------------

    def models(self) -> list[ModelCard]:
        """What `model` may be: base models and adapters, in OpenAI's list."""
        return [body_of(ModelCard, row) for row in self._http.data("GET", "/v1/models")]

    def base_model(self, base_id: str) -> ModelCard:
        """A base model by its id, with how it is built. Raises NotFound for one that the server does not have."""
        return body_of(ModelCard, self._http.json("GET", f"/v1/models/{part(base_id)}"))

    def evaluate(self, model: Model, texts: Sequence[str], *, baseline: Model | None = None) -> Perplexity:
        """Perplexity of texts under a model, against a baseline's with the paired difference where one is named."""
        against = None if baseline is None else name_of(baseline)
        body = given({"model": name_of(model), "texts": checked(texts), "baseline": against})
        return body_of(Perplexity, self._http.json("POST", "/v1/perplexity", json=body))

    def generate(self, model: Model, prompt: str, **sampling: Any) -> str:
        """The text of a completion alone."""
        return (self.complete(model, prompt, **sampling)).choices[0].text

    def complete(self, model: Model, prompt: str, **sampling: Any) -> CompletionAnswer:
        """A text completion; `sampling` has max_tokens, temperature, top_p, n, stop, seed ..."""
        body = {"model": name_of(model), "prompt": prompt, **given(sampling)}
        return body_of(CompletionAnswer, self._http.json("POST", COMPLETIONS, json=body))

    def stream(self, model: Model, prompt: str, **sampling: Any) -> Stream[CompletionAnswer]:
        """A text completion in pieces, as they are generated; closing it ends it on the server too."""
        body = {"model": name_of(model), "prompt": prompt, **given(sampling), "stream": True}
        return self._http.events("POST", COMPLETIONS, body, lambda _, value: body_of(CompletionAnswer, value))

    def chat(self, model: str, messages: Sequence[Mapping[str, str]], **sampling: Any) -> ChatAnswer:
        """A chat completion, in OpenAI's shape; `messages` are {role, content}, the last one is answered."""
        body = {"model": model, "messages": list(messages), **given(sampling)}
        return body_of(ChatAnswer, self._http.json("POST", CHAT, json=body))

    def stream_chat(self, model: str, messages: Sequence[Mapping[str, str]], **sampling: Any) -> Stream[ChatChunk]:
        """A chat completion in chunks, as they are generated; closing it ends it on the server too."""
        body = {"model": model, "messages": list(messages), **given(sampling), "stream": True}
        return self._http.events("POST", CHAT, body, lambda _, value: body_of(ChatChunk, value))

    def embed(self, model: str, texts: str | Sequence[str]) -> EmbeddingAnswer:
        """The vectors of one text or several, as samples are embedded: of a base model, in OpenAI's shape."""
        content = texts if isinstance(texts, str) else list(texts)
        return body_of(
            EmbeddingAnswer, self._http.json("POST", "/v1/embeddings", json={"model": model, "input": content})
        )

    # --- operators --------------------------------------------------------------------------------------------

    def create_key(
        self,
        name: str,
        *,
        scopes: Sequence[KeyScope],
        namespaces: Sequence[str] | None = None,
        expires_at: datetime | None = None,
    ) -> CreatedKey:
        """Make a key; `secret` is in this answer and nowhere else. `namespaces` None sees all of them.

        `expires_at` knows its time zone; None never expires.
        """
        body = {"name": name, "scopes": list(scopes), "namespaces": namespaces and list(namespaces)}
        body |= plain(given({"expires_at": expires_at}))
        return body_of(CreatedKey, self._http.json("POST", "/v1/keys", json=body, repeat=False))

    def keys(self, *, limit: int | None = None) -> Iterator[Key]:
        """Keys, oldest first, without secrets: all, or the first `limit` of them."""
        return self._http.rows("/v1/keys", {}, limit, reader_of(Key))

    def change_key(self, key_id: str, **changes: str | Sequence[str] | datetime | None) -> Key:
        """Change a key: name, scopes, namespaces (None: all), expires_at (None: never); what is not named stays."""
        return body_of(Key, self._http.json("PATCH", key_path(key_id), json=plain(changes)))

    def rotate_key(self, key_id: str, *, grace_seconds: int = 0) -> CreatedKey:
        """Give a key another `secret`, which is in this answer and nowhere else; the old one ends after the grace."""
        path, body = f"{key_path(key_id)}/rotate", {"grace_seconds": grace_seconds}
        return body_of(CreatedKey, self._http.json("POST", path, json=body, repeat=False))

    def revoke_key(self, key_id: str) -> Key:
        """Revoke a key, from the next request on."""
        return body_of(Key, self._http.json("DELETE", key_path(key_id)))

    def audit(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        **filters: str | None,
    ) -> Iterator[AuditEntry]:
        """Who did what, newest first; filters action, subject, namespace and key_id. Moments know their time zone."""
        moments = plain({"since": since, "until": until})
        return self._http.rows("/v1/audit", {**filters, **moments}, limit, reader_of(AuditEntry))

    def audit_csv(self, *, since: datetime | None = None, until: datetime | None = None, **filters: str | None) -> str:
        """All of the same as CSV."""
        params = {**filters, **plain({"since": since, "until": until}), "format": "csv"}
        return (self._http.send("GET", "/v1/audit", params=params)).text

    def namespace(self, namespace: str) -> Namespace:
        """The settings of a namespace, and their etag."""
        return body_of(Namespace, self._http.json("GET", namespace_path(namespace)))

    def change_namespace(
        self, namespace: str, *, if_match: str | None = None, **settings: str | int | list[str] | None
    ) -> Namespace:
        """Change settings of a namespace: tuning, protected_aliases, unnamed_soup_days; what is not named stays.

        With `if_match` (an etag) only if nobody else has changed them meanwhile.
        """
        path, headers = namespace_path(namespace), matching(if_match)
        return body_of(Namespace, self._http.json("PATCH", path, json=settings, headers=headers))

    def limits(self, *, key_id: str | None = None, namespace: str | None = None) -> Limits:
        """The limits of a key (by its id) or of a namespace, those in force, and what is in use of its quotas."""
        return body_of(Limits, self._http.json("GET", limits_path(key_id, namespace)))

    def change_limits(self, *, key_id: str | None = None, namespace: str | None = None, **limits: int | None) -> Limits:
        """Change limits: requests_per_minute, tokens_per_minute, stored_bytes, adapters, jobs.

        None leaves one to the server's default; what is not named stays.
        """
        return body_of(Limits, self._http.json("PATCH", limits_path(key_id, namespace), json=limits))

    def usage(self, *, by: Sequence[str] = (), limit: int | None = None, **filters: str | None) -> Iterator[UsageEntry]:
        """Requests and tokens by day, key, namespace and model, or `by` some of these; last day first.

        Filters are since and until (days: 2030-01-31), key_id, namespace and model.
        """
        return self._http.rows("/v1/usage", {**filters, "by": by or None}, limit, reader_of(UsageEntry))

    def usage_csv(self, *, by: Sequence[str] = (), **filters: str | None) -> str:
        """All of the same as CSV."""
        params = {**filters, "by": by or None, "format": "csv"}
        return (self._http.send("GET", "/v1/usage", params=params)).text

    def ready(self) -> Ready:
        """What /readyz says; raises Unavailable while the server is not ready."""
        return body_of(Ready, self._http.json("GET", "/readyz"))
