"""Requests for trainings: checked without reading the data, then queued as jobs; equal requests share a job.

Called by the route; `service.jobs.train` runs the jobs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from registry.adapters import expected_tensors
from registry.catalogue import Catalogue
from registry.catalogue.database import Database
from registry.catalogue.rows import AdapterRow, JobRow
from registry.context import Caller
from registry.errors import Incompatible, InvalidParameter, QuotaExceeded, TooLarge
from registry.names import check_part, digest_of, parse_ref, split_name
from registry.quotas import check_additions
from registry.spec import SCORING_PASSES, FusionConfig, HeadConfig
from registry.uploads.files import blob_size
from service.access.keys import Principal
from service.jobs.queue_limits import queue_job
from service.jobs.training_folder import sweep, training_folder
from service.services import Services
from service.settings import Settings
from training.build import config_of, hyperparameters_on, not_fused
from training.hyperparameters import Hyperparameters
from training.inputs import check_block
from training.request import TrainingRequest
from training.spec import BANK, FusionRequest, TaskKey, TrainingSpec
from training.tasks import TASKS

KIND = "train"
SMALLEST_HEAD: dict[TaskKey, HeadConfig] = {
    "classification": HeadConfig(task="classification", labels=("no", "yes")),
    "question_answering": HeadConfig(task="question_answering", labels=("start", "end")),
}
"""The head to estimate sizes with, for tasks that need one: the number of labels is only known from the data."""


def submit(services: Services, principal: Principal, request: TrainingRequest) -> JobRow:
    """Queue a training, or join the unfinished job of an equal request; the latest owner counts.

    Raises Forbidden, InvalidName, NotFound (base model, blob, member), InvalidParameter, Incompatible, TooLarge,
    QuotaExceeded if it would push more adapters than the quotas allow, and Busy if too many wait; errors in the data
    are raised by the job.
    """
    namespace, name = split_name(request.name)
    principal.check_write(namespace)
    if request.spec.adamix is not None:
        check_part(f"{name}{BANK}", "name of the bank")
    members = _members(services, principal, request)
    _check_size(services, request, members)
    for field, digest in (("texts", request.texts), ("valid", request.valid)):
        if digest is not None:
            _check_blob(services, principal.caller, digest, field=field)
    if request.valid == request.texts:
        raise InvalidParameter(
            "'valid' is the same text as 'texts': validate on other text, or leave it out to hold out a part "
            "of 'texts'.",
            param="valid",
        )
    pinned = _pinned(request, members)
    shape = services.bases[request.base_model].shape
    body = pinned.model_dump(mode="json", exclude={"owner"})
    owner = {} if request.owner is None else {"owner": request.owner}
    key = digest_of([shape.fingerprint, body])  # all that the pushed bytes depend on
    arguments = {
        "request": body,
        "fingerprint": shape.fingerprint,
        "key": key,
        "reach": sorted({namespace, *(member.namespace for member in members)}),
        "scope": principal.namespaces,
        "request_id": principal.request_id,
        **owner,
    }
    with services.registry.database.write() as catalogue:
        dedupe = f"{KIND}:{key}"
        job = catalogue.jobs.find_active(dedupe)
        if job is not None:
            catalogue.jobs.add_requester(job.id, principal.key_id, request_id=principal.request_id)
            if owner:
                job = catalogue.jobs.update_arguments(job, owner)
            principal.caller.audit(catalogue, "training.ask", job.id, namespace=namespace, name=request.name, **owner)
            return job
        _check_quota(catalogue, services, request, key=key, key_id=principal.key_id)
        return queue_job(
            services,
            catalogue,
            principal,
            KIND,
            partial(catalogue.jobs.enqueue, KIND, arguments, dedupe_key=dedupe),
            namespace=namespace,
            action="training.ask",
            name=request.name,
            **owner,
        )


def pushed_name(request: TrainingRequest) -> str:
    """The name of the adapter that a training pushes; for AdaMix that of the bank."""
    return request.name + (BANK if request.spec.adamix is not None else "")


def pushed_adapter(catalogue: Catalogue, request: TrainingRequest, *, key: str) -> AdapterRow | None:
    """The adapter that a training for the digest `key` pushed or gave again, None if there is none.

    Requests that differ in domain, card or sample give the same adapter, whose record names the first of them.
    """
    rows = catalogue.adapters.live_versions(*split_name(pushed_name(request)))
    job = catalogue.jobs.find_succeeded(f"{KIND}:{key}")
    result = {} if job is None else job.result or {}
    ref = result.get("bank", result.get("adapter"))
    return next((row for row in rows if row.ref == ref or row.provenance.training.get("request") == key), None)


def blobs_in_use(catalogue: Catalogue) -> set[str]:
    """The blobs that queued and running trainings read."""
    requests = [job.arguments["request"] for job in catalogue.jobs.active(KIND)]
    return {request[field] for request in requests for field in ("texts", "valid") if request.get(field) is not None}


def remove_old_trainings(database: Database, settings: Settings) -> None:
    """Remove the saved states of stopped trainings at the age that the settings give.

    A queued or running job will resume from its state, and its child may not have locked the folder yet.
    """
    with database.read() as catalogue:
        unfinished = catalogue.jobs.active(KIND)
    used = {training_folder(settings, job.arguments["key"]).name for job in unfinished}
    sweep(settings.trainings_dir, older_than=settings.keep_training_seconds, used=used)


def _members(services: Services, principal: Principal, request: TrainingRequest) -> list[AdapterRow]:
    """The members of a fusion, resolved among what the principal may see."""
    adapter = request.spec.adapter
    if not isinstance(adapter, FusionRequest):
        return []
    fingerprint = services.bases[request.base_model].shape.fingerprint
    with services.registry.database.read() as catalogue:
        rows = [catalogue.adapters.resolve(principal.namespaces, parse_ref(ref)) for ref in adapter.members]
    _check_different(adapter.members, rows)
    problems = []
    for row in rows:
        if FusionConfig.member_of(row.config) is None:
            problems.append(f"{row.ref} has {not_fused(row.config)}")
        elif row.base_fingerprint != fingerprint:
            problems.append(f"{row.ref} is of another base model.")
    if problems:
        raise Incompatible(problems[0], param="spec.adapter.members", problems=problems)
    return rows


def _check_different(refs: Sequence[str], rows: Sequence[AdapterRow]) -> None:
    """Raise InvalidParameter if two refs name the same adapter, such as a name with and without its version."""
    ref_by_digest: dict[str, str] = {}
    for ref, row in zip(refs, rows, strict=True):
        first_ref = ref_by_digest.setdefault(row.digest, ref)
        if first_ref != ref:
            raise InvalidParameter(
                f"{first_ref!r} and {ref!r} are the same adapter: a fusion learns to choose between different "
                "adapters.",
                param="spec.adapter.members",
            )


def _check_quota(catalogue: Catalogue, services: Services, request: TrainingRequest, *, key: str, key_id: str) -> None:
    """Raise QuotaExceeded if a quota has no room for the adapter, or for a bank and its merge, unless it was pushed.

    The push decides, hours later.
    """
    adapters, (namespace, _) = 1 if request.spec.adamix is None else 2, split_name(request.name)
    try:
        check_additions(catalogue, services.registry.quotas, {}, adapters=adapters, key_id=key_id, namespace=namespace)
    except QuotaExceeded:
        if pushed_adapter(catalogue, request, key=key) is None:
            raise


def _check_size(services: Services, request: TrainingRequest, members: Sequence[AdapterRow]) -> None:
    """Raise Incompatible or InvalidParameter if the base cannot be trained so, TooLarge beyond the settings."""
    spec, settings, shape = request.spec, services.settings, services.bases[request.base_model].shape
    TASKS[spec.task].check_base(services.bases[request.base_model].text)
    frozen = [config for config in (FusionConfig.member_of(member.config) for member in members) if config is not None]
    config = config_of(spec, shape, head=SMALLEST_HEAD.get(spec.task), members=frozen)
    numbers = hyperparameters_on(spec, shape, config)
    _check_numbers(numbers, config.prefix_length, settings, scoring=_scoring_passes(spec))
    check_block(numbers.block, shape, config)
    tensors = expected_tensors(config, shape)
    size = sum(4 * math.prod(tensor_shape) for tensor_shape in tensors.values())
    if size > settings.max_weights_bytes:
        raise TooLarge(
            f"The adapter would have {size} bytes, and the limit is {settings.max_weights_bytes} "
            "(SOUP_MAX_WEIGHTS_BYTES).",
            param="spec.adapter",
        )


def _scoring_passes(spec: TrainingSpec) -> int:
    """Forward and backward passes of pruning before the first step."""
    return 0 if spec.pruning is None else spec.pruning.batches * SCORING_PASSES.get(spec.pruning.score, 0)


def _check_numbers(numbers: Hyperparameters, prefix: int, settings: Settings, *, scoring: int) -> None:
    """Raise TooLarge for more passes, or more tokens in a pass (`prefix` before each block), than the settings allow.

    Validation passes are not counted, as their number is only known from the data.
    """
    passes, tokens = numbers.steps * numbers.accumulate + scoring, numbers.batch * (prefix + numbers.block)
    if passes > settings.max_training_steps:
        addition = f" and {scoring} passes to score what is pruned" if scoring else ""
        raise TooLarge(
            f"{numbers.steps} steps of {numbers.accumulate} passes{addition} were asked for, and the limit is "
            f"{settings.max_training_steps} passes (SOUP_MAX_TRAINING_STEPS).",
            param="spec.recipe.steps",
        )
    if tokens > settings.max_training_tokens:
        addition = f" and a prefix of {prefix}" if prefix else ""
        raise TooLarge(
            f"A batch of {numbers.batch} blocks of {numbers.block} tokens{addition} is {tokens}, and the limit is "
            f"{settings.max_training_tokens} (SOUP_MAX_TRAINING_TOKENS): take a smaller 'batch' with more "
            "'accumulate'.",
            param="spec.recipe.batch",
        )


def _check_blob(services: Services, caller: Caller, digest: str, *, field: str) -> None:
    """Raise NotFound for a blob that the caller may not see, TooLarge, or InvalidParameter for a gzip file."""
    size, limit = blob_size(services.registry, caller, digest, field=field), services.settings.max_training_bytes
    if size > limit:
        raise TooLarge(f"{field} has {size} bytes and the limit is {limit} (SOUP_MAX_TRAINING_BYTES).", param=field)
    with services.registry.blobs.open(digest) as file:
        if file.read(2) == b"\x1f\x8b":
            raise InvalidParameter(f"{field} is a gzip file: upload the JSON lines as they are.", param=field)


def _pinned(request: TrainingRequest, members: Sequence[AdapterRow]) -> TrainingRequest:
    """The request with members by digest, as names may be pushed again while it waits."""
    if not members:
        return request
    adapter = FusionRequest(members=tuple(member.digest for member in members))
    return request.model_copy(update={"spec": request.spec.model_copy(update={"adapter": adapter})})
