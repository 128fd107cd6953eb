"""Calls that take several requests, with JSON answers: jobs, requests that may start one, pushes and pulls."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from adaptersoup.client.additions import PULLED, Additions, inline, manifest_of, texts_of
from adaptersoup.client.answers import (
    DONE,
    LONGEST_EMBEDDING,
    MAX_FITS,
    NO_CONTENT,
    Json,
    check_ours,
    check_succeeded,
    path_segment,
    report_progress,
    result_in,
)
from adaptersoup.client.asynchronous.blobs import AsyncBlobs
from adaptersoup.client.paths import adapter_path, alias_path, body_of_request, job_path
from adaptersoup.client.waiting import in_thread
from registry.errors import Busy, DamagedBlob, Unavailable
from registry.formats import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    AdapterDirectory,
    EmbeddingsNote,
    check_place,
    move_into_place,
    new_directory_beside,
    read_directory,
)
from registry.progress import Progress, silent
from registry.spec import EmbeddingSource, FileSource, Manifest, SampleSource


class AsyncCalls(AsyncBlobs):
    """The calls that all clients share."""

    async def begin(self, path: str, values: Mapping[str, Any], progress: Progress | None = None) -> Json:
        """The answer of a POST that selects from a pool; waits while no sample of the pool is embedded yet."""
        waited = 0
        while True:
            try:
                return await self.json("POST", path, json=body_of_request(values))
            except Unavailable as error:
                pause = max(1, error.retry_after or 0)
                waited += pause
                if error.param != "pool" or waited > LONGEST_EMBEDDING:
                    raise
                (progress or silent)(0, 0, "samples are being embedded")
                await self.pause(pause)

    async def once_fitted(self, path: str, values: Mapping[str, Any], progress: Progress | None = None) -> Json:
        """The answer of a POST for which a selector may have to be fitted first; waits for the fit's job."""
        for _ in range(MAX_FITS):
            answer = await self.begin(path, {**values, "wait": 0}, progress)
            if answer["object"] != "job":
                return answer
            await self.result_of(answer, progress)
        raise Unavailable("The pool changes faster than its selector can be fitted: try again after the pushes.")

    async def fitted(self, answer: Json, progress: Progress | None = None) -> Json:
        """The selector of a fit: the answer itself, or the selector that its job fitted."""
        if answer["object"] != "job":
            return answer
        result = await self.result_of(answer, progress)
        return await self.json("GET", f"/v1/selectors/{path_segment(str(result['selector']))}")

    async def result_of(self, job: Json, progress: Progress | None = None) -> Json:
        """The result of a job, once it has succeeded; raises the errors of `wait_job`."""
        return result_in(await self.wait_job(str(job["id"]), progress=progress))

    async def wait_job(self, job_id: str, *, progress: Progress | None = None, patience: int = 30) -> Json:
        """The job once it has succeeded, following its events, also over a restart of the server.

        Waits longer where the key's rate limit is used up. Raises the error of a failed job, Cancelled for a cancelled
        one, and Unavailable after `patience` seconds without a server.
        """
        missing_since: float | None = None
        while True:
            begun = monotonic()
            try:
                events = self.events("GET", f"{job_path(job_id)}/events", None, lambda name, value: (name, value))
                with suppress(Unavailable):  # a proxy may end a long answer: the request of the job tells who is away
                    async with events:
                        async for name, value in events:
                            report_progress(value, progress)
                            if name == "done":
                                break
                begun = monotonic()
                job = await self.json("GET", job_path(job_id))
            except Busy as error:  # the rate of the key is used up: the job runs on
                missing_since = None
                await self.pause(error.retry_after)
            except Unavailable:
                missing_since = begun if missing_since is None else missing_since
                if monotonic() - missing_since >= patience:
                    raise
            else:
                missing_since = None
                if job.get("state") in DONE:
                    return check_succeeded(job)
            await self.pause(1.0)

    async def push_directory(
        self,
        folder: Path | AdapterDirectory,
        *,
        name: str,
        more: Additions = Additions(),
        progress: Progress | None = None,
        anew: bool = False,
    ) -> Json:
        """Push an adapter directory as `name`; a PEFT directory of a LoRA is accepted unchanged.

        With `anew` all bytes are sent, also those that the server has. Raises InvalidManifest if neither the directory
        nor `more` names the domain, and for an empty owner.
        """
        local = folder if isinstance(folder, AdapterDirectory) else await in_thread(read_directory, folder)
        manifest = manifest_of(local, name, more)
        try:
            return await self.push(await self.with_files(local, manifest, more, progress, anew=anew))
        except DamagedBlob:  # `has_blob` does not read a blob: sending the right bytes repairs it
            return await self.push(await self.with_files(local, manifest, more, progress, anew=True))

    async def push(self, manifest: Manifest) -> Json:
        """Push an adapter by its manifest (201, or 200 if stored): an Adapter object with `job` and `warnings`."""
        return await self.json("POST", "/v1/adapters", json=manifest.model_dump(mode="json", exclude_none=True))

    async def delete_alias(self, name: str, alias: str) -> None:
        """Remove an alias of `namespace/name`."""
        response = await self.send("DELETE", alias_path(name, alias))
        check_ours(response, response.status_code == NO_CONTENT)

    async def with_files(
        self,
        local: AdapterDirectory,
        manifest: Manifest,
        more: Additions,
        progress: Progress | None,
        *,
        anew: bool = False,
    ) -> Manifest:
        """The manifest with its files and its sample, of which large ones are uploaded."""
        files = {WEIGHTS_FILE: await self._file(local.weights, progress, anew=anew)}
        sample = await self._sample(local, more, anew=anew)
        return manifest.model_copy(update={"files": files, "sample": sample})

    async def pull_directory(
        self, ref: str, target: Path, *, replace: bool = False, progress: Progress | None = None
    ) -> AdapterDirectory:
        """Write an adapter to the directory `target`, whole or not at all, with every file's digest checked.

        Raises the Conflict of `registry.formats.check_place`, NotFound, Retired, DigestMismatch.
        """
        await in_thread(check_place, target, replace=replace, advice="replace it with --force")
        row = await self.json("GET", adapter_path(ref))
        pinned = str(row["ref"])  # the version this name means now, whatever is pushed meanwhile
        rows = await self.data("GET", f"{adapter_path(pinned)}/files")
        files = {str(file["name"]): str(file["digest"]) for file in rows}
        missing = [name for name in (CONFIG_FILE, WEIGHTS_FILE) if name not in files]
        if missing:
            raise Unavailable(f"The server offers no {missing[0]} for {pinned}; it may be another kind of server.")
        partial = new_directory_beside(target)
        try:
            for name in PULLED:
                if name in files:
                    await self.download(pinned, name, partial / name, digest=files[name], progress=progress)
            await in_thread(read_directory, partial)
            move_into_place(partial, target, replace=replace)  # not in a thread: a cancelled call would remove it
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return await in_thread(read_directory, target)

    async def _sample(self, local: AdapterDirectory, more: Additions, *, anew: bool) -> SampleSource | None:
        texts = await in_thread(texts_of, local, more)
        if isinstance(texts, EmbeddingsNote):
            assert local.embeddings is not None
            file = await self._file(local.embeddings, None, anew=anew)
            return SampleSource(embeddings=(EmbeddingSource(encoder=texts.encoder, unit=texts.unit, file=file),))
        return None if texts is None else await self.sample(texts, anew=anew)

    async def _file(self, path: Path, progress: Progress | None, *, anew: bool) -> FileSource:
        content = await in_thread(inline, path, self.inline_bytes)
        if content is not None:
            return FileSource(base64=content)
        return FileSource(digest=await self.upload(path, progress=progress, anew=anew))
