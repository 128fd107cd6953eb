"""The job that trains an adapter: writes the data to a folder, trains in a child process, pushes the adapter.

Checkpoints are kept in a folder named by the request's digest (`jobs.training_folder`): the same request again, a
retry, and the next server after one that was killed go on from there. The data are kept for one attempt only.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from registry.catalogue.rows import AdapterRow, JobRow
from registry.cook.cook import cook
from registry.errors import Conflict, Forbidden, Incompatible, Invalid, TooLarge, Unavailable
from registry.files import decode_lines
from registry.formats import WEIGHTS_FILE, AdapterContents, AdapterDirectory, read_directory, write_directory
from registry.names import parse_ref, split_name
from registry.progress import Progress
from registry.push import Pushed, push
from registry.quotas import check_stored
from registry.spec import FileSource, Manifest, SampleSource
from registry.stored_files import record_bytes
from service.jobs.contract import JobContext, JobKind, namespaces_of
from service.jobs.train_process import in_child
from service.jobs.training_curve import kept_curve
from service.jobs.training_folder import CHECKPOINT, TURN, place_of, sweep
from service.parts import Services
from training.checkpoint import saved_step
from training.request import TrainingRequest, TrainingRun, merge_request
from training.spec import BANK, FusionRequest
from training.worker import WorkerRequest, WorkerSetup

log = logging.getLogger("soup.training")
LOSSES = "losses.json"
"""File in the folder of an attempt's data that the losses are written to."""
HOPELESS = (Forbidden, Invalid, Incompatible, TooLarge)
"""Errors that the same training would end with again: nothing of it is kept."""


@dataclass(frozen=True)
class Training:
    """A training job while it runs: its context and its request."""

    context: JobContext
    request: TrainingRequest

    @property
    def services(self) -> Services:
        """The server's parts."""
        return self.context.services

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The job's arguments: the digests of request and base, and what its caller may see."""
        return self.context.row.arguments

    @property
    def place(self) -> Path:
        """The folder of its files."""
        return place_of(self.services.settings, self.arguments["key"])


def _run(context: JobContext) -> dict[str, Any]:
    """Train and push; of a bank of experts its merge too, which is what is named."""
    request = TrainingRequest.model_validate(context.row.arguments["request"])
    training = Training(context, request)
    pushed = train(training)
    found: dict[str, Any] = {
        "adapter": pushed.row.ref, "digest": pushed.row.digest, "created": pushed.created,
        "warnings": list(pushed.warnings),
    }  # fmt: skip
    if request.spec.adamix is None:
        return found
    cooked = cook(
        context.services.registry,
        _present(training).context.caller,
        merge_request(pushed.row.ref, name=request.name, owner=_owner(training)),
        namespace=split_name(request.name)[0],
        workers=context.workers,
        progress=context.progress,
    )
    return {**found, "bank": found["adapter"], "adapter": cooked.model, "digest": cooked.digest}


def train(training: Training) -> Pushed:
    """Train in a child process and push the adapter (of AdaMix the bank of experts).

    An adapter that was pushed for the same request before is given back instead. Raises what the training or the push
    does, and Forbidden where the key was revoked since; errors that a retry would repeat remove the training's files.
    """
    settings = training.services.settings
    try:
        _check_key(training)
        known = _known(training)
        pushed = _made(training) if known is None else Pushed(known, created=False)
    except HOPELESS:
        shutil.rmtree(training.place, ignore_errors=True)
        raise
    pushed = replace(pushed, row=_owned(training, pushed.row))
    shutil.rmtree(training.place, ignore_errors=True)
    sweep(settings.trainings_dir, older_than=settings.keep_training_seconds)
    return pushed


def _made(training: Training) -> Pushed:
    _check_base(training)
    with _laid_out(training) as data:
        run = _training_run(training, data)
        with kept_curve(training.context, data / LOSSES) as progress:
            told = _told(training, run, progress)
    steps = training.request.spec.recipe.steps
    training.context.progress(steps, steps, "pushing")  # cancelled while it trained its last: nothing is pushed
    training = _present(training)
    _check_key(training)
    return _pushed(training, told)


def _present(training: Training) -> Training:
    """The training with its job as it is now: of another key, where the one that asked first was revoked since."""
    with training.services.registry.database.read() as catalogue:
        row = catalogue.jobs.get(None, training.context.row.id)
    return replace(training, context=replace(training.context, row=row))


def _check_key(training: Training) -> None:
    """Raises Forbidden where the key was revoked; asked before a training begins and, hours later, before it pushes."""
    with training.services.registry.database.read() as catalogue:
        key = catalogue.keys.find(training.context.row.created_by)
    if key is not None and key.revoked_at is not None:
        raise Forbidden("The key that asked for the training was revoked: ask again with another.")


def _owner(training: Training) -> str | None:
    """The owner that was said last of what is trained: by whoever asked for the same while it was."""
    return _present(training).arguments.get("owner")


def _owned(training: Training, row: AdapterRow) -> AdapterRow:
    """The version with that owner, who answers for its name from now on."""
    owner = _owner(training)
    if owner in (None, row.owner):
        return row
    with training.services.registry.database.write() as catalogue:
        training.context.caller.audit(catalogue, "adapter.change", row.ref, digest=row.digest, owner=owner)
        return catalogue.adapters.set_owner(row, owner)


def _pushed_name(training: Training) -> str:
    return training.request.name + (BANK if training.request.spec.adamix is not None else "")


def _known(training: Training) -> AdapterRow | None:
    """The adapter that was pushed for an equal request before, maybe by a server that ended before it said so."""
    with training.services.registry.database.read() as catalogue:
        rows = catalogue.adapters.live_versions(*split_name(_pushed_name(training)))
    key = training.arguments["key"]
    return next((row for row in rows if row.provenance.training.get("request") == key), None)


def _check_base(training: Training) -> None:
    base_id = training.request.base_model
    if base_id not in training.services.bases:
        raise Unavailable(f"The training needs base model {base_id!r}, which this server no longer serves.")
    found, asked = training.services.bases[base_id].shape.fingerprint, training.arguments["fingerprint"]
    if found != asked:
        raise Incompatible(
            f"Base model {base_id!r} is {found} now, and was {asked} when the training was asked for: ask again.",
            param="base_model",
        )


@contextmanager
def _laid_out(training: Training) -> Iterator[Path]:
    """A folder with the data and the members of a fusion, of this attempt only: it is removed when this ends.

    A child that was stopped, or that a killed server left, may still be reading those of the attempt before.
    """
    try:
        training.place.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = TemporaryDirectory(prefix="data-", dir=training.place, ignore_cleanup_errors=True)
    except OSError as error:
        raise _unwritable(error) from error
    with folder as name:
        data = Path(name)
        try:
            _lay_out(training, data)
        except OSError as error:
            raise _unwritable(error) from error
        yield data


def _unwritable(error: OSError) -> Unavailable:
    return Unavailable(f"The training's files cannot be written on the server: {error.strerror}.")


def _lay_out(training: Training, data: Path) -> None:
    request, blobs = training.request, training.services.registry.blobs
    for name, digest in (("train.jsonl", request.texts), ("valid.jsonl", request.valid)):
        if digest is not None:
            with blobs.open(digest) as source, (data / name).open("wb") as target:
                shutil.copyfileobj(source, target)
    for number, row in enumerate(_rows(training)):
        write_directory(
            data / f"member{number}",
            AdapterContents(
                config=row.config,
                domain=row.domain,
                weights=blobs.read(row.weights_blob),
                base_fingerprint=row.base_fingerprint,
            ),
        )


def _rows(training: Training) -> list[AdapterRow]:
    """The members of a fusion, by digest."""
    adapter = training.request.spec.adapter
    if not isinstance(adapter, FusionRequest):
        return []
    with training.services.registry.database.read() as catalogue:
        return [catalogue.adapters.resolve(None, parse_ref(digest)) for digest in adapter.members]


def _training_run(training: Training, data: Path) -> TrainingRun:
    place, request = training.place, training.request
    return TrainingRun(
        spec=request.spec, train=data / "train.jsonl", valid=None if request.valid is None else data / "valid.jsonl",
        valid_share=request.share, called=("texts", "valid"), out=place / "adapter",
        members=tuple(sorted(data.glob("member*"), key=lambda path: int(path.name.removeprefix("member")))),
        domain=request.domain, base_id=request.base_model, sample=request.sample, checkpoint=place / CHECKPOINT,
        losses=data / LOSSES,
        replace=True,  # the place is this request's: a bank in it may be of another version
    )  # fmt: skip


def _told(training: Training, run: TrainingRun, progress: Progress) -> dict[str, Any]:
    """What the child answers once the adapter is written; raises its error.

    A checkpoint of another version is deleted and the training begins anew: whoever asked could not delete it.
    """
    settings, request = training.services.settings, training.request
    entry = training.services.bases[request.base_model].entry
    setup = WorkerSetup(entry=entry, cache=settings.cache, threads=settings.threads)
    asked = WorkerRequest(run=run, turn=training.place / TURN)
    try:
        return in_child(setup, asked, progress=progress, private=training.place)
    except Conflict as error:
        log.warning("a training begins anew: %s", error.message)
    shutil.rmtree(training.place / CHECKPOINT, ignore_errors=True)
    return in_child(setup, asked, progress=progress, private=training.place)


def _pushed(training: Training, told: dict[str, Any]) -> Pushed:
    """Push what the child has written, with all that is known of its making."""
    services, request = training.services, training.request
    folder = read_directory(training.place / "adapter")
    sample, warnings = _sample(training, folder)
    if request.spec.adamix is not None:
        folder = read_directory(training.place / f"adapter{BANK}")
    weights = folder.weights.read_bytes()
    digest = services.registry.blobs.put_bytes(weights)
    namespace, _ = split_name(request.name)
    with services.registry.database.write() as catalogue:
        record_bytes(services.registry, catalogue, digest, weights)
        catalogue.blobs.grant(namespace, digest)
        key_id = training.context.caller.key_id
        check_stored(catalogue, services.registry.quotas, "stored_bytes", key_id=key_id, namespaces=[namespace])
    manifest = Manifest(
        name=_pushed_name(training), domain=request.domain, base_model=request.base_model,
        base_fingerprint=training.arguments["fingerprint"], config=folder.config,
        files={WEIGHTS_FILE: FileSource(digest=digest)}, sample=sample, card=request.card,
        provenance=folder.provenance.model_copy(update={"training": _record(training, folder)}),
    )  # fmt: skip
    pushed = push(services.registry, training.context.caller, manifest)
    with services.registry.database.write() as catalogue:
        catalogue.curves.remove(
            training.context.row.id
        )  # the adapter's record has it from now on, and is purged with it
    services.jobs.wake()
    note = (str(told["note"]),) if told.get("note") else ()
    return replace(pushed, warnings=(*note, *warnings, *pushed.warnings))


def _record(training: Training, folder: AdapterDirectory) -> dict[str, Any]:
    """The training's record, with the request that it answers and the blobs of its data."""
    request = training.request
    blobs = {"train": request.texts} | ({} if request.valid is None else {"valid": request.valid})
    share = {"valid_share": request.share} if request.valid is None else {}
    return {**folder.provenance.training, **share, "blobs": blobs, "request": training.arguments["key"]}


def _sample(training: Training, folder: AdapterDirectory) -> tuple[SampleSource | None, tuple[str, ...]]:
    """The passages as a sample, where there are enough that are different and not too long; else why there is none."""
    if folder.sample is None:
        return None, ()
    limits = training.services.registry.limits.sample
    texts = decode_lines(folder.sample.read_bytes())
    usable = [text for text in dict.fromkeys(texts) if text.strip() and len(text) <= limits.max_chars]
    upto = accumulate(map(len, usable))
    usable = [text for text, characters in zip(usable, upto, strict=True) if characters <= limits.characters]
    if len(usable) >= limits.minimum:
        return SampleSource(texts=tuple(usable)), ()
    return None, (
        f"Pushed without a sample: {len(usable)} different passages can be used, and {limits.minimum} are needed.",
    )


def _reached(services: Services, row: JobRow) -> int:
    """The step that the training was saved after."""
    return saved_step(place_of(services.settings, row.arguments["key"]) / CHECKPOINT)


TRAIN = JobKind(run=_run, reach=lambda row: namespaces_of(row.arguments["reach"]), lane="training", reached=_reached)
