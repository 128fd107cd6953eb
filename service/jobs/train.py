"""The job that trains an adapter: writes the data to a folder, trains in a child process, pushes the adapter.

Checkpoints are in a folder named by the request's digest (`jobs.training_folder`): a repeated request, a retry, and the
next server after a crash resume from them. The data are stored for one attempt only.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from registry.catalogue.rows import AdapterRow, JobRow
from registry.cook.cook import cook
from registry.errors import Busy, Conflict, Forbidden, Incompatible, Invalid, QuotaExceeded, TooLarge, Unavailable
from registry.formats import WEIGHTS_FILE, AdapterContents, AdapterDirectory, read_directory, write_directory
from registry.names import parse_ref, split_name
from registry.progress import Progress
from registry.push import Pushed, push
from registry.quotas import check_stored
from registry.spec import FileSource, Manifest, SampleSource, full_text, scored_text
from registry.spec.passage import decode_lines
from registry.stored.files import deleted_unless_recorded, record_bytes
from service.jobs.contract import JobContext, JobKind, namespaces_of
from service.jobs.train_process import in_child
from service.jobs.training_folder import CHECKPOINT, TURN, training_folder
from service.jobs.training_requests import pushed_adapter, pushed_name
from service.services import Services
from training.checkpoint import saved_step
from training.losses_file import read_losses
from training.request import TrainingRequest, TrainingRun, merge_request
from training.spec import BANK, FusionRequest
from training.worker import WorkerRequest, WorkerSetup

log = logging.getLogger("soup.training")
LOSSES = "losses.json"
"""Name of the file of losses in the folder of an attempt's data."""
CURVE_SECONDS = 5.0
"""Least seconds between two writes of the curve."""
HOPELESS = (Forbidden, Invalid, Incompatible, TooLarge)
"""Errors that a retry would repeat: the training's files are removed."""


@dataclass(frozen=True)
class Training:
    """A training job while it runs: its context and its request."""

    context: JobContext
    request: TrainingRequest

    @property
    def services(self) -> Services:
        """The server's services."""
        return self.context.services

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The job's arguments: the digests of request and base, and the caller's scope."""
        return self.context.row.arguments

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return training_folder(self.services.settings, self.arguments["key"])


def _run(context: JobContext) -> dict[str, Any]:
    """Train and push the adapter; for a bank of experts, cook its merge under the requested name too."""
    request = TrainingRequest.model_validate(context.row.arguments["request"])
    training = Training(context, request)
    pushed = train(training)
    result: dict[str, Any] = {
        "adapter": pushed.row.ref,
        "digest": pushed.row.digest,
        "created": pushed.created,
        "warnings": list(pushed.warnings),
    }
    if request.spec.adamix is None:
        return result
    training = _refreshed(training)
    cooked = cook(
        context.services.registry,
        training.context.caller,
        merge_request(pushed.row.ref, name=request.name, owner=training.arguments.get("owner")),
        namespace=split_name(request.name)[0],
        computations=context.computations,
        progress=context.progress,
    )
    return {**result, "bank": result["adapter"], "adapter": cooked.model, "digest": cooked.digest}


def train(training: Training) -> Pushed:
    """Train in a child process and push the adapter (for AdaMix the bank of experts).

    Returns an adapter that was already pushed for the same request. Raises what the training or the push raises, and
    Forbidden if the key was revoked meanwhile. Errors that a retry would repeat remove the training's files; after
    QuotaExceeded they stay, so that an equal request under a higher quota only pushes the adapter.
    """
    try:
        _check_key(training)
        row = _already_pushed(training)
        pushed = _train_and_push(training) if row is None else Pushed(row, created=False)
    except QuotaExceeded:  # an admin can raise the quota, and `TooLarge` would remove hours of work
        raise
    except HOPELESS:
        shutil.rmtree(training.folder, ignore_errors=True)
        raise
    pushed = replace(pushed, row=_with_owner(training, pushed.row))
    with training.services.registry.database.write() as catalogue:
        # from now on the curve is in the adapter's record, and is purged with it
        catalogue.curves.remove(training.context.row.id)
    shutil.rmtree(training.folder, ignore_errors=True)
    return pushed


class TrainingCurve:
    """Reports the progress of a training job, and stores the losses in `path` with the job as they grow.

    So they can be seen while it runs, and if it fails.
    """

    def __init__(self, context: JobContext, path: Path) -> None:
        self._context = context
        self._path = path
        self._stored: dict[str, Any] | None = None
        self._checked_at = time.monotonic()

    def report(self, done: int, total: int, message: str) -> None:
        """Pass progress on to the job, and store new losses from time to time."""
        if time.monotonic() - self._checked_at >= CURVE_SECONDS:
            self._checked_at = time.monotonic()
            self.store()
        self._context.progress(done, total, message)

    def store(self) -> None:
        """Store the losses if they have changed; problems are only logged."""
        try:
            losses = read_losses(self._path)
            if losses is None or losses == self._stored:
                return
            with self._context.services.registry.database.write() as catalogue:
                catalogue.curves.put(self._context.row.id, losses)
            self._stored = losses
        except (Busy, Unavailable, OSError) as error:  # a missing curve must not end the training or hide its error
            log.warning("a curve is not stored: %s", error)


def _train_and_push(training: Training) -> Pushed:
    _check_base(training)
    with _data_folder(training) as data:
        curve = TrainingCurve(training.context, data / LOSSES)
        try:
            answer = _train_in_child(training, _training_run(training, data), curve.report)
        finally:
            curve.store()
    steps = training.request.spec.recipe.steps
    training.context.progress(steps, steps, "pushing")  # raises if it was cancelled during the last step
    training = _refreshed(training)
    _check_key(training)
    return _push(training, answer)


def _refreshed(training: Training) -> Training:
    """The training with its job's current row: an equal request may set the owner, and replace a revoked key."""
    with training.services.registry.database.read() as catalogue:
        row = catalogue.jobs.get(None, training.context.row.id)
    return replace(training, context=replace(training.context, row=row))


def _check_key(training: Training) -> None:
    """Raise Forbidden if the key was revoked; checked before the training and, hours later, before the push."""
    with training.services.registry.database.read() as catalogue:
        is_revoked = catalogue.keys.is_revoked(training.context.row.created_by)
    if is_revoked:
        raise Forbidden("The key that asked for the training was revoked: ask again with another.")


def _with_owner(training: Training, row: AdapterRow) -> AdapterRow:
    """Set the owner that was requested last on the pushed version, if it is another."""
    training = _refreshed(training)
    owner = training.arguments.get("owner")
    if owner in (None, row.owner):
        return row
    with training.services.registry.database.write() as catalogue:
        training.context.caller.audit(catalogue, "adapter.change", row.ref, digest=row.digest, owner=owner)
        return catalogue.adapters.set_owner(row, owner)


def _already_pushed(training: Training) -> AdapterRow | None:
    """The adapter already pushed for an equal request, perhaps by a server that then crashed."""
    with training.services.registry.database.read() as catalogue:
        return pushed_adapter(catalogue, training.request, key=training.arguments["key"])


def _check_base(training: Training) -> None:
    base_id = training.request.base_model
    if base_id not in training.services.bases:
        raise Unavailable(f"The training needs base model {base_id!r}, which this server no longer serves.")
    current, requested = training.services.bases[base_id].shape.fingerprint, training.arguments["fingerprint"]
    if current != requested:
        raise Incompatible(
            f"Base model {base_id!r} is {current} now, but was {requested} at the request: send the request again.",
            param="base_model",
        )


@contextmanager
def _data_folder(training: Training) -> Iterator[Path]:
    """A temporary folder with the data and the members of a fusion for this attempt.

    Each attempt has its own: the child of a stopped attempt or of a killed server may still read the previous one.
    """
    try:
        training.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = TemporaryDirectory(prefix="data-", dir=training.folder, ignore_cleanup_errors=True)
    except OSError as error:
        raise _unwritable(error) from error
    with folder as name:
        data = Path(name)
        try:
            _write_data(training, data)
        except OSError as error:
            raise _unwritable(error) from error
        yield data


def _unwritable(error: OSError) -> Unavailable:
    return Unavailable(f"The training's files cannot be written on the server: {error.strerror}.")


def _write_data(training: Training, data: Path) -> None:
    request, blobs = training.request, training.services.registry.blobs
    for name, digest in (("train.jsonl", request.texts), ("valid.jsonl", request.valid)):
        if digest is not None:
            with blobs.open(digest) as source, (data / name).open("wb") as target:
                shutil.copyfileobj(source, target)
    for number, row in enumerate(_fusion_members(training)):
        write_directory(
            data / f"member{number}",
            AdapterContents(
                config=row.config,
                domain=row.domain,
                weights=blobs.read(row.weights_blob),
                base_fingerprint=row.base_fingerprint,
            ),
        )


def _fusion_members(training: Training) -> list[AdapterRow]:
    """The members of a fusion, resolved by digest."""
    adapter = training.request.spec.adapter
    if not isinstance(adapter, FusionRequest):
        return []
    with training.services.registry.database.read() as catalogue:
        return [catalogue.adapters.resolve(None, parse_ref(digest)) for digest in adapter.members]


def _training_run(training: Training, data: Path) -> TrainingRun:
    request = training.request
    return TrainingRun(
        spec=request.spec,
        train=data / "train.jsonl",
        valid=None if request.valid is None else data / "valid.jsonl",
        valid_share=request.share,
        called=("texts", "valid"),
        out=training.folder / "adapter",
        members=tuple(sorted(data.glob("member*"), key=lambda path: int(path.name.removeprefix("member")))),
        domain=request.domain,
        base_id=request.base_model,
        sample=request.sample,
        sample_seed=request.spec.recipe.data_seed,
        checkpoint=training.folder / CHECKPOINT,
        losses=data / LOSSES,
        replace=True,  # the folder is this request's, and a bank in it may come from another version
    )


def _train_in_child(training: Training, run: TrainingRun, progress: Progress) -> dict[str, Any]:
    """Train in the child process; returns its answer once the adapter is written, or raises its error.

    A checkpoint of another version, or one that cannot be read, is deleted, as the caller could not do it.
    """
    settings, request = training.services.settings, training.request
    entry = training.services.bases[request.base_model].entry
    setup = WorkerSetup(entry=entry, cache=settings.cache, threads=settings.threads, log_level=settings.log_level)
    worker_request = WorkerRequest(run=run, turn=training.folder / TURN)
    try:
        return in_child(setup, worker_request, progress=progress, private=training.folder)
    except (Conflict, Invalid) as error:
        if error.param != "checkpoint":
            raise
        log.warning("a training begins anew: %s", error.message)
    shutil.rmtree(training.folder / CHECKPOINT, ignore_errors=True)
    return in_child(setup, worker_request, progress=progress, private=training.folder)


def _push(training: Training, answer: dict[str, Any]) -> Pushed:
    """Push the adapter that the child has written, with its training record."""
    services, request = training.services, training.request
    folder = read_directory(training.folder / "adapter")
    sample, warnings = _sample(training, folder)
    if request.spec.adamix is not None:
        folder = read_directory(training.folder / f"adapter{BANK}")
    weights = folder.weights.read_bytes()
    digest = services.registry.blobs.put_bytes(weights)
    namespace, _ = split_name(request.name)
    with deleted_unless_recorded(services.registry, [digest]), services.registry.database.write() as catalogue:
        record_bytes(services.registry, catalogue, digest, weights)
        catalogue.blobs.grant(namespace, digest)
        key_id = training.context.caller.key_id
        check_stored(catalogue, services.registry.quotas, "stored_bytes", key_id=key_id, namespaces=[namespace])
    manifest = Manifest(
        name=pushed_name(request),
        domain=request.domain,
        base_model=request.base_model,
        base_fingerprint=training.arguments["fingerprint"],
        config=folder.config,
        files={WEIGHTS_FILE: FileSource(digest=digest)},
        sample=sample,
        card=request.card,
        provenance=folder.provenance.model_copy(update={"training": _record(training, folder)}),
    )
    pushed = push(services.registry, training.context.caller, manifest)
    services.jobs.wake()
    note = (str(answer["note"]),) if answer.get("note") else ()
    return replace(pushed, warnings=(*note, *warnings, *pushed.warnings))


def _record(training: Training, folder: AdapterDirectory) -> dict[str, Any]:
    """The training's record with its request's digest and the blobs of its data."""
    request = training.request
    blobs = {"train": request.texts} | ({} if request.valid is None else {"valid": request.valid})
    share = {"valid_share": request.share} if request.valid is None else {}
    return {**folder.provenance.training, **share, "blobs": blobs, "request": training.arguments["key"]}


def _sample(training: Training, folder: AdapterDirectory) -> tuple[SampleSource | None, tuple[str, ...]]:
    """The passages as a sample, or None and a warning if too few are distinct and short enough."""
    if folder.sample is None:
        return None, ()
    limits = training.services.registry.limits.sample
    texts = decode_lines(folder.sample.read_bytes())
    filled = [text for text in dict.fromkeys(texts) if scored_text(text).strip()]
    usable = [text for text in filled if len(full_text(text)) <= limits.max_chars]
    cumulative = accumulate(len(full_text(text)) for text in usable)
    usable = [text for text, characters in zip(usable, cumulative, strict=True) if characters <= limits.characters]
    if len(usable) >= limits.minimum:
        return SampleSource(texts=tuple(usable)), ()
    return None, (
        f"Pushed without a sample: {len(usable)} different passages can be used, and {limits.minimum} are needed.",
    )


def _reached(services: Services, row: JobRow) -> int:
    """The step of the training's checkpoint."""
    return saved_step(training_folder(services.settings, row.arguments["key"]) / CHECKPOINT)


TRAIN = JobKind(run=_run, reach=lambda row: namespaces_of(row.arguments["reach"]), lane="training", reached=_reached)
