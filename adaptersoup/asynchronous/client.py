"""A client of the HTTP API of a server with typed values, without torch.

Errors are those of `registry.errors`. A stream that is left early without a `with` block is generated to its end, or
until Python collects it. A closed client raises Unavailable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from adaptersoup.asynchronous.operators import AsyncOperatorCalls
from adaptersoup.client.additions import Additions, valid_manifest
from adaptersoup.client.answers import drop_none, path_segment, result_in
from adaptersoup.client.asynchronous.connection import AsyncStream
from adaptersoup.client.paths import (
    CHAT,
    COMPLETIONS,
    adapter_path,
    alias_path,
    body_of_request,
    if_match_header,
    job_path,
)
from adaptersoup.requests import Model, Text, check_texts, cook_body, id_of, model_name, request_of, spec_of, to_json
from adaptersoup.values import Adapter, Adapters, Listed, Perplexity, Selection, Selector, Soup
from registry.errors import InvalidParameter
from registry.names import COOKS
from registry.progress import Progress
from registry.spec import Card, PoolRequest, json_of
from service.http.schemas.adapters import Alias, Lineage, Purged, StoredFile
from service.http.schemas.collections import Collection
from service.http.schemas.embeddings import EmbeddingAnswer
from service.http.schemas.evaluations import Evaluation
from service.http.schemas.generation import ChatAnswer, ChatChunk, CompletionAnswer
from service.http.schemas.jobs import Job
from service.http.schemas.jobs import Progress as JobProgress
from service.http.schemas.models import ModelCard
from service.http.schemas.reading import body_of, reader_of
from service.http.schemas.selectors import FitRequest, Nearest, NearestRequest, SelectRequest
from training.request import TrainingRequest


class AsyncClient(AsyncOperatorCalls):
    """A client of one server. `transport` replaces the network, `pause` the waiting between two requests."""

    # --- adapters ---------------------------------------------------------------------------------------------

    async def upload(
        self,
        source: bytes | Path,
        *,
        part_bytes: int | None = None,
        progress: Progress | None = None,
        anew: bool = False,
    ) -> str:
        """Make sure the server has these bytes, and return their digest; sends them only if it does not.

        With `anew` they are sent in any case. More than `part_bytes` are sent in parts; after a broken connection, or
        when one of the processes was killed, an upload continues at the last acknowledged byte.
        """
        return await self._http.upload(source, part_bytes=part_bytes, progress=progress, anew=anew)

    async def has_blob(self, digest: str) -> bool:
        """Return True if the server has the blob, whole, and this key sees it."""
        return await self._http.has_blob(digest)

    async def push(
        self,
        folder: Path | str,
        *,
        name: str,
        domain: str | None = None,
        texts: Sequence[Text] | None = None,
        tags: Sequence[str] = (),
        base: str | None = None,
        owner: str | None = None,
        progress: Progress | None = None,
    ) -> Adapter:
        """Push an adapter of a folder (ours, or PEFT's of a LoRA) as `name`, `namespace/name`.

        `domain` says what it was trained on, if the folder does not, and `texts` are passages of that domain: without
        them no selector can rank it. `owner` is the person responsible for it, a label without rights. Bytes that the
        server has are not sent again. The value's `job` embeds the texts: `wait_job` before a selection that should
        include the adapter. Raises InvalidManifest and others.
        """
        passages = None if texts is None else check_texts(texts)
        more = Additions(domain=domain, base=base, texts=passages, tags=tags, owner=owner)
        with valid_manifest():
            pushed = await self._http.push_directory(Path(folder), name=name, more=more, progress=progress)
        return body_of(Adapter, pushed)

    async def pull(
        self, model: Model, folder: Path | str, *, replace: bool = False, progress: Progress | None = None
    ) -> Path:
        """Write an adapter to a folder, whole or not at all, with every file's digest checked; returns the folder.

        Raises Conflict if the folder exists and `replace` is False, NotFound, Retired, DigestMismatch.
        """
        pulled = await self._http.pull_directory(model_name(model), Path(folder), replace=replace, progress=progress)
        return pulled.path

    async def adapter(self, model: Model) -> Adapter:
        """A stored adapter or soup, with its provenance. Raises NotFound or Retired."""
        return body_of(Adapter, await self._http.json("GET", adapter_path(model_name(model))))

    async def adapters(self, *, limit: int | None = None, **filters: str | Sequence[str] | None) -> Adapters:
        """Stored adapters and soups, newest first.

        Filters are base_model, method, domain, owner, namespace, name, tag (one, or several that must all match), kind,
        tuned_on, and q: words, or their beginnings, of name, domain, tags and card.
        """
        return Adapters([row async for row in self._http.rows("/v1/adapters", filters, limit, reader_of(Listed))])

    async def update_adapter(
        self,
        ref: str,
        *,
        card: Card | None = None,
        domain: str | None = None,
        owner: str | None = None,
        if_match: str | None = None,
    ) -> Adapter:
        """Change the card or domain of a version, or the owner of its name, which an empty text removes.

        With `if_match` (an etag) only if it has not changed since.
        """
        body = body_of_request({"card": card, "domain": domain}) | ({} if owner is None else {"owner": owner or None})
        changed = await self._http.json("PATCH", adapter_path(ref), json=body, headers=if_match_header(if_match))
        return body_of(Adapter, changed)

    async def aliases(self, ref: str) -> list[Alias]:
        """Every alias of a name, and the version it points at."""
        path = await self._http.named_path(ref)
        return [body_of(Alias, row) for row in await self._http.data("GET", f"{path}/aliases")]

    async def put_alias(self, name: str, alias: str, version: int, *, if_match: str | None = None) -> Alias:
        """Point an alias of `namespace/name` at a version; with `if_match` only if that is its etag."""
        headers = if_match_header(if_match)
        return body_of(
            Alias, await self._http.json("PUT", alias_path(name, alias), json={"version": version}, headers=headers)
        )

    async def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias of `namespace/name`."""
        await self._http.delete_alias(name, alias)

    async def delete_adapter(self, ref: str) -> list[Listed]:
        """Retire all live versions of a name, or the one that `@version` names; returns the retired versions."""
        path = await self._http.named_path(ref)
        return [body_of(Listed, row) for row in await self._http.data("DELETE", path)]

    async def restore(self, ref: str, *, if_match: str | None = None) -> Adapter:
        """Bring a retired version back, `namespace/name@version`; with `if_match` only if that is its etag."""
        path = f"{adapter_path(ref)}/restore"
        return body_of(Adapter, await self._http.json("POST", path, headers=if_match_header(if_match)))

    async def purge(self, ref: str) -> Purged:
        """Remove a version for good, `namespace/name@version`. Needs scope admin."""
        return body_of(Purged, await self._http.json("POST", f"{adapter_path(ref)}/purge"))

    async def collect(self, *, dry_run: bool = False) -> Collection:
        """Remove expired data by the server's settings, or only list it. Needs an admin key for all namespaces."""
        return body_of(Collection, await self._http.json("POST", "/v1/collect", json={"dry_run": dry_run}))

    async def lineage(self, ref: str) -> Lineage:
        """The recipe, parents, children and evidence of an adapter."""
        path = await self._http.named_path(ref)
        return body_of(Lineage, await self._http.json("GET", f"{path}/lineage"))

    async def files(self, ref: str) -> list[StoredFile]:
        """The files of an adapter: name, size, digest."""
        path = await self._http.named_path(ref)
        return [body_of(StoredFile, row) for row in await self._http.data("GET", f"{path}/files")]

    # --- selectors and soups ----------------------------------------------------------------------------------

    async def fit(
        self,
        selector: str | Mapping[str, Any] = "posterior",
        *,
        pool: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Selector:
        """Fit a selector over a pool; the result shows how well it tells domains apart.

        The first selection from a pool fits it too. `selector` is a kind (`posterior`, `gmm`, `cosine`, `uniform`) or a
        mapping with its fields, `pool` has those of PoolRequest.
        """
        request = request_of(FitRequest, selector=spec_of(selector), pool=pool)
        values = {"selector": request.selector, "pool": request.pool, "wait": 0}
        begun = await self._http.begin("/v1/selectors", values, progress)
        return body_of(Selector, await self._http.fitted(begun, progress))

    async def selector(self, selector_id: str) -> Selector:
        """One fitted selector."""
        return body_of(Selector, await self._http.json("GET", f"/v1/selectors/{path_segment(selector_id)}"))

    def selectors(self, *, limit: int | None = None) -> AsyncIterator[Selector]:
        """Fitted selectors, newest first."""
        return self._http.rows("/v1/selectors", {}, limit, reader_of(Selector))

    async def select(
        self,
        texts: Sequence[Text],
        *,
        selector: str | Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        pool: Mapping[str, Any] | None = None,
        list_all: bool = False,
        progress: Progress | None = None,
    ) -> Selection:
        """The adapters that a selector chooses for a sample of a domain; a pool never fitted is fitted first.

        `selector` is a kind (`posterior`, `gmm`, `cosine`, `uniform`) or a mapping with its fields; `options`, `pool`
        have those of SelectOptions and PoolRequest. With `list_all` all rejected adapters are listed.
        """
        sample = await self._http.sample(check_texts(texts))
        request = request_of(SelectRequest, sample=sample, selector=spec_of(selector), options=options, pool=pool)
        values = {
            "sample": request.sample,
            "selector": request.selector,
            "options": request.options,
            "pool": request.pool,
            "list_all": list_all or None,
        }
        return body_of(Selection, await self._http.once_fitted("/v1/select", values, progress))

    async def nearest(
        self,
        texts: Sequence[Text],
        *,
        limit: int = 10,
        pool: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Nearest:
        """The adapters whose samples are most like these texts; a pool never fitted is fitted first."""
        request = request_of(NearestRequest, texts=tuple(check_texts(texts)), limit=limit, pool=pool)
        passages = [json_of(text) for text in request.texts]
        values = {"texts": passages, "limit": request.limit, "pool": request.pool}
        answer = await self._http.once_fitted("/v1/adapters/search", values, progress)
        return body_of(Nearest, answer)

    async def cook(
        self,
        texts: Sequence[Text] | None = None,
        *,
        effort: str | None = None,
        name: str | None = None,
        selector: str | Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **more: Any,
    ) -> Soup:
        """Choose adapters for a sample of a new domain and mix them, or abstain if none helps.

        `more` are further fields of SoupRequest: `recipe` mixes by hand, `pool` and `options` limit the choice.
        """
        begun = await self.begin_cook(texts, effort=effort, name=name, selector=selector, progress=progress, **more)
        return begun if isinstance(begun, Soup) else await self.soup_of(begun, progress=progress)

    async def begin_cook(
        self,
        texts: Sequence[Text] | None = None,
        *,
        effort: str | None = None,
        name: str | None = None,
        selector: str | Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        **more: Any,
    ) -> Soup | Job:
        """Start a cook without waiting: its job (`watch`, `soup_of`), or the soup if it is done already."""
        sample = None if texts is None else await self._http.sample(check_texts(texts))
        values = cook_body(sample, effort=effort, name=name, selector=selector, **more)
        answer = await self._http.begin("/v1/soups", values, progress)
        return body_of(Job, answer) if answer["object"] == "job" else body_of(Soup, answer)

    async def train(self, request: TrainingRequest, *, progress: Progress | None = None) -> Adapter:
        """Train an adapter on the server, on uploaded data; returns the adapter once it is stored.

        An equal request returns the same adapter, and continues an interrupted training.
        """
        job = await self._http.json("POST", "/v1/trainings", json=to_json(request))
        return await self.adapter(str((await self._http.result_of(job, progress))["adapter"]))

    async def begin_train(self, request: TrainingRequest) -> Job:
        """Start a training without waiting: its job."""
        return body_of(Job, await self._http.json("POST", "/v1/trainings", json=to_json(request)))

    async def evaluate_pool(
        self,
        *,
        pool: Mapping[str, Any] | None = None,
        passages: int | None = None,
        progress: Progress | None = None,
    ) -> Job:
        """Evaluate every adapter of a pool on the samples of all; returns the ended job. `evaluations` has the results.

        `pool` has the fields of PoolRequest; raises the errors of `wait_job`.
        """
        return await self.wait_job(await self.begin_evaluate_pool(pool=pool, passages=passages), progress=progress)

    async def begin_evaluate_pool(self, *, pool: Mapping[str, Any] | None = None, passages: int | None = None) -> Job:
        """Start the evaluation of a pool without waiting: its job."""
        request = None if pool is None else request_of(PoolRequest, **pool)
        return body_of(Job, await self._http.begin("/v1/evaluations", {"pool": request, "passages": passages}))

    def evaluations(self, *, limit: int | None = None, **filters: str | None) -> AsyncIterator[Evaluation]:
        """Evaluations, newest first; filters are base_model, namespace, and digests of an adapter and of a sample."""
        return self._http.rows("/v1/evaluations", filters, limit, reader_of(Evaluation))

    # --- jobs -------------------------------------------------------------------------------------------------

    def jobs(self, *, limit: int | None = None, **filters: str | None) -> AsyncIterator[Job]:
        """Jobs the key sees, newest first."""
        return self._http.rows("/v1/jobs", filters, limit, reader_of(Job))

    async def job(self, job_id: str) -> Job:
        """One job."""
        return body_of(Job, await self._http.json("GET", job_path(job_id)))

    def watch(self, job: Job | str) -> AsyncStream[JobProgress | Job]:
        """The progress of a job whenever it changes, then the ended job.

        Ends without the job if the server restarts meanwhile: `wait_job` connects again.
        """

        def read(_: str, value: Any) -> JobProgress | Job:
            return body_of(Job, value) if value.get("object") == "job" else body_of(JobProgress, value)

        return self._http.events("GET", f"{job_path(id_of(job))}/events", None, read)

    async def wait_job(self, job: Job | str, *, progress: Progress | None = None, patience: int = 30) -> Job:
        """A job once it has succeeded, following its events, also over a restart of the server.

        Raises the error of a failed job, Cancelled for a cancelled one, and Unavailable after `patience` seconds
        without a server.
        """
        return body_of(Job, await self._http.wait_job(id_of(job), progress=progress, patience=patience))

    async def soup_of(self, job: Job | str, *, progress: Progress | None = None) -> Soup:
        """The soup of a cook's job, once it has succeeded; raises the errors of `wait_job`, and InvalidParameter."""
        ended = await self._http.wait_job(id_of(job), progress=progress)
        if ended["kind"] not in COOKS:
            raise InvalidParameter(f"Job {ended['id']} is a job of kind {ended['kind']}, not a cook.", param="job")
        return body_of(Soup, result_in(ended))

    async def cancel_job(self, job: Job | str) -> Job:
        """Ask a job to stop."""
        return body_of(Job, await self._http.json("POST", f"{job_path(id_of(job))}/cancel"))

    # --- inference --------------------------------------------------------------------------------------------

    async def models(self) -> list[ModelCard]:
        """The base models and adapters that `model` may name, as in OpenAI's list."""
        return [body_of(ModelCard, row) for row in await self._http.data("GET", "/v1/models")]

    async def base_model(self, base_id: str) -> ModelCard:
        """A base model by its id, with its architecture. Raises NotFound if the server does not have it."""
        return body_of(ModelCard, await self._http.json("GET", f"/v1/models/{path_segment(base_id)}"))

    async def evaluate(self, model: Model, texts: Sequence[Text], *, baseline: Model | None = None) -> Perplexity:
        """Perplexity of texts under a model, with a baseline's and their paired difference if one is named."""
        against = None if baseline is None else model_name(baseline)
        passages = [json_of(text) for text in check_texts(texts)]
        body = drop_none({"model": model_name(model), "texts": passages, "baseline": against})
        return body_of(Perplexity, await self._http.json("POST", "/v1/perplexity", json=body))

    async def generate(self, model: Model, prompt: str, **sampling: Any) -> str:
        """The text of a completion, without its metadata."""
        return (await self.complete(model, prompt, **sampling)).choices[0].text

    async def complete(self, model: Model, prompt: str, **sampling: Any) -> CompletionAnswer:
        """A text completion; `sampling` has max_tokens, temperature, top_p, n, stop, seed ..."""
        body = {"model": model_name(model), "prompt": prompt, **drop_none(sampling)}
        return body_of(CompletionAnswer, await self._http.json("POST", COMPLETIONS, json=body))

    def stream(self, model: Model, prompt: str, **sampling: Any) -> AsyncStream[CompletionAnswer]:
        """A text completion as a stream of chunks; closing it ends the generation on the server too."""
        body = {"model": model_name(model), "prompt": prompt, **drop_none(sampling), "stream": True}
        return self._http.events("POST", COMPLETIONS, body, lambda _, value: body_of(CompletionAnswer, value))

    async def chat(self, model: Model, messages: Sequence[Mapping[str, str]], **sampling: Any) -> ChatAnswer:
        """A chat completion in OpenAI's format; `messages` are {role, content}, and the last one is answered."""
        body = {"model": model_name(model), "messages": list(messages), **drop_none(sampling)}
        return body_of(ChatAnswer, await self._http.json("POST", CHAT, json=body))

    def stream_chat(
        self, model: Model, messages: Sequence[Mapping[str, str]], **sampling: Any
    ) -> AsyncStream[ChatChunk]:
        """A chat completion as a stream of chunks; closing it ends the generation on the server too."""
        body = {"model": model_name(model), "messages": list(messages), **drop_none(sampling), "stream": True}
        return self._http.events("POST", CHAT, body, lambda _, value: body_of(ChatChunk, value))

    async def embed(self, model: Model, texts: str | Sequence[str]) -> EmbeddingAnswer:
        """Vectors of one text or several under a model, in OpenAI's format; `base/<id>` embeds as samples are."""
        content = texts if isinstance(texts, str) else list(texts)
        body = {"model": model_name(model), "input": content}
        return body_of(EmbeddingAnswer, await self._http.json("POST", "/v1/embeddings", json=body))
