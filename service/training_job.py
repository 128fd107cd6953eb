"""A queued training, done: its data laid out, trained in a child process, and what comes of it pushed.

Called by the job runner. What a training saves on the way stands in a folder called by the request's digest: the same
request again, a retry, and the next server after one that was killed go on from there.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from registry.catalogue.rows import AdapterRow
from registry.errors import Incompatible, Invalid, TooLarge, Unavailable
from registry.folder import AdapterFolder, read_folder, write_folder
from registry.intake import Caller
from registry.names import parse_ref, split_name
from registry.push import WEIGHTS_FILE, Pushed, push
from registry.samples import decode_lines
from registry.spec import FileSource, Manifest, SampleSource
from service.limits import intake_limits
from service.training_process import in_child
from service.training_schemas import TrainingRequest
from training.spec import BANK, FusionRequest
from training.work import Work
from training.worker import Bench, Task

if TYPE_CHECKING:
    from service.runtime import Runtime

HOPELESS = (Invalid, Incompatible, TooLarge)
"""What the same training would end with again: nothing of it is kept."""
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Training:
    """A training at work: its request, where its files are, and what it reports to (which raises to end it)."""

    runtime: Runtime
    request: TrainingRequest
    arguments: Mapping[str, Any]
    created_by: str
    progress: Progress

    @property
    def place(self) -> Path:
        """The folder of its files."""
        return place_of(self.runtime, self.arguments["key"])

    @property
    def caller(self) -> Caller:
        """On whose behalf it is pushed."""
        scope = self.arguments["scope"]
        return Caller(self.created_by, None if scope is None else tuple(scope), self.arguments["request_id"])


def place_of(runtime: Runtime, key: str) -> Path:
    """The folder of a training's files."""
    return runtime.settings.trainings_dir / key.removeprefix("sha256:")[:32]


def train(training: Training) -> Pushed:
    """Train in a child process, and push what comes of it: the bank, where it is one of experts.

    What was pushed for the same request before is that. Raises what the training or the push does; where the same
    would end so again, its files are removed.
    """
    known = _known(training)
    if known is not None:
        return Pushed(known, created=False)
    try:
        _check_base(training)
        _lay_out(training)
        pushed = _pushed(training, _told(training))
    except HOPELESS:
        shutil.rmtree(training.place, ignore_errors=True)
        raise
    shutil.rmtree(training.place, ignore_errors=True)
    return pushed


def _pushed_name(training: Training) -> str:
    return training.request.name + (BANK if training.request.spec.adamix is not None else "")


def _known(training: Training) -> AdapterRow | None:
    """What was pushed for this request, in case a server ended before it said so, or the request is one of before."""
    with training.runtime.database.read() as catalogue:
        rows = catalogue.adapters.live_versions(*split_name(_pushed_name(training)))
    key = training.arguments["key"]
    return next((row for row in rows if row.provenance.training.get("request") == key), None)


def _check_base(training: Training) -> None:
    base_id = training.request.base_model
    if base_id not in training.runtime.bases:
        raise Unavailable(f"The training needs base model {base_id!r}, which this server no longer serves.")
    found, asked = training.runtime.shape(base_id).fingerprint, training.arguments["fingerprint"]
    if found != asked:
        raise Incompatible(
            f"Base model {base_id!r} is {found} now, and was {asked} when the training was asked for: ask again.",
            param="base_model",
        )


def _lay_out(training: Training) -> None:
    """Put the data and the members of a fusion where the child finds them."""
    place, request, blobs = training.place, training.request, training.runtime.blobs
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, digest in (("train.jsonl", request.texts), ("valid.jsonl", request.valid)):
            if digest is not None:
                with blobs.open(digest) as source, (place / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
        for number, row in enumerate(_rows(training)):
            write_folder(
                place / f"member{number}", config=row.config, domain=row.domain, weights=blobs.read(row.weights_blob),
                base_fingerprint=row.base_fingerprint, replace=True,
            )  # fmt: skip
    except OSError as error:
        raise Unavailable(f"The training's files cannot be written on the server: {error.strerror}.") from error


def _rows(training: Training) -> list[AdapterRow]:
    """The members of a fusion, by digest."""
    adapter = training.request.spec.adapter
    if not isinstance(adapter, FusionRequest):
        return []
    with training.runtime.database.read() as catalogue:
        return [catalogue.adapters.resolve(None, parse_ref(digest)) for digest in adapter.members]


def _work(training: Training) -> Work:
    place, request = training.place, training.request
    return Work(
        spec=request.spec, train=place / "train.jsonl", valid=None if request.valid is None else place / "valid.jsonl",
        valid_share=request.share, called=("texts", "valid"), out=place / "adapter", replace=True,
        members=tuple(place / f"member{number}" for number in range(len(_rows(training)))), domain=request.domain,
        base_id=request.base_model, sample=request.sample, checkpoint=place / "checkpoint",
    )  # fmt: skip


def _told(training: Training) -> dict[str, Any]:
    """What the child says of the training, once the adapter is written; raises its error."""
    settings, request = training.runtime.settings, training.request
    bench = Bench(entry=training.runtime.bases[request.base_model], cache=settings.cache, threads=settings.threads)
    task = Task(work=_work(training), turn=training.place / "turn")
    return in_child(bench, task, progress=training.progress, private=training.place)


def _pushed(training: Training, told: dict[str, Any]) -> Pushed:
    """Push what the child has written, with all that is known of its making."""
    runtime, request = training.runtime, training.request
    folder = read_folder(training.place / "adapter")
    sample, warnings = _sample(training, folder)
    if request.spec.adamix is not None:
        folder = read_folder(training.place / f"adapter{BANK}")
    weights = folder.weights.read_bytes()
    digest = runtime.blobs.put_bytes(weights)
    namespace, _ = split_name(request.name)
    with runtime.database.write() as catalogue:
        catalogue.blobs.seen(digest, len(weights))
        catalogue.blobs.grant(namespace, digest)
    manifest = Manifest(
        name=_pushed_name(training), domain=request.domain, base_model=request.base_model,
        base_fingerprint=training.arguments["fingerprint"], config=folder.config,
        files={WEIGHTS_FILE: FileSource(digest=digest)}, sample=sample, card=request.card,
        provenance=folder.provenance.model_copy(update={"training": _record(training, folder)}),
    )  # fmt: skip
    pushed = push(
        manifest, database=runtime.database, blobs=runtime.blobs, bases=runtime.shapes(), encoders=runtime.encoders,
        caller=training.caller, limits=intake_limits(runtime.settings),
        refit_delay=runtime.settings.refit_delay_seconds,
    )  # fmt: skip
    runtime.jobs.wake()
    note = (str(told["note"]),) if told.get("note") else ()
    return replace(pushed, warnings=(*note, *warnings, *pushed.warnings))


def _record(training: Training, folder: AdapterFolder) -> dict[str, Any]:
    """The training's record, with the request that it answers and the blobs of its data."""
    request = training.request
    blobs = {"train": request.texts} | ({} if request.valid is None else {"valid": request.valid})
    share = {"valid_share": request.share} if request.valid is None else {}
    return {**folder.provenance.training, **share, "blobs": blobs, "request": training.arguments["key"]}


def _sample(training: Training, folder: AdapterFolder) -> tuple[SampleSource | None, tuple[str, ...]]:
    """The passages as a sample, where there are enough that are different and not too long; else why there is none."""
    if folder.sample is None:
        return None, ()
    limits = intake_limits(training.runtime.settings).sample
    texts = decode_lines(folder.sample.read_bytes())
    usable = [text for text in dict.fromkeys(texts) if text.strip() and len(text) <= limits.max_chars]
    if len(usable) >= limits.minimum:
        return SampleSource(texts=tuple(usable)), ()
    return None, (
        f"Pushed without a sample: {len(usable)} different passages can be used, and {limits.minimum} are needed.",
    )


def sweep(folder: Path, *, older_than: float) -> int:
    """Remove what trainings left that nobody went on with for so many seconds; returns how many there were."""
    if not folder.is_dir():
        return 0
    limit = time.time() - older_than
    left = [place for place in folder.iterdir() if place.is_dir() and _touched(place) < limit]
    for place in left:
        shutil.rmtree(place, ignore_errors=True)
    return len(left)


def _touched(place: Path) -> float:
    """When anything in a training's folder was last written."""
    return max(path.stat().st_mtime for path in (place, *place.rglob("*")))
