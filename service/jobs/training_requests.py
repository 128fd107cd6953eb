"""Requests for trainings: checked as far as that needs no data read, then queued as jobs; equal ones share a job.

Called by the route; `service.jobs.train` does what is queued.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from registry.adapters import expected_tensors
from registry.catalogue import Catalogue
from registry.catalogue.rows import AdapterRow, JobRow
from registry.context import Caller
from registry.errors import Incompatible, InvalidParameter, TooLarge
from registry.names import check_part, digest_of, parse_ref, split_name
from registry.quotas import check_jobs
from registry.spec import FusionConfig, HeadConfig
from registry.uploads.files import blob_size
from service.access.keys import Principal
from service.jobs.queue_room import check_room
from service.parts import Services
from service.settings import Settings
from training.build import config_of, hyperparameters_on, not_fused
from training.hyperparameters import Hyperparameters
from training.inputs import check_block
from training.methods.pruning_scores import NEEDS_GRADIENTS
from training.request import TrainingRequest
from training.spec import BANK, FusionRequest, TaskKey, TrainingSpec
from training.tasks import TASKS

KIND = "train"
SMALLEST_HEAD: dict[TaskKey, HeadConfig] = {
    "classification": HeadConfig(task="classification", labels=("no", "yes")),
    "question_answering": HeadConfig(task="question_answering", labels=("start", "end")),
}
"""The head that sizes are estimated with, for tasks that need one: how many labels there are only the data say."""


def submit(services: Services, who: Principal, request: TrainingRequest, *, request_id: str) -> JobRow:
    """Queue a training, or give the job that is at the same one already; the owner that was said last is taken.

    Raises what can be known before the data are read: Forbidden, InvalidName, NotFound (base model, blob, member),
    InvalidParameter, Incompatible, TooLarge, and Busy where too many wait.
    """
    namespace, name = split_name(request.name)
    who.check_write(namespace)
    if request.spec.adamix is not None:
        check_part(f"{name}{BANK}", "name of the bank")
    members = _members(services, who, request)
    _check_size(services, request, members)
    for what, digest in (("texts", request.texts), ("valid", request.valid)):
        if digest is not None:
            _check_blob(services, who.caller(request_id), digest, what=what)
    if request.valid == request.texts:
        raise InvalidParameter(
            "'valid' is the text that is trained on: validate on other text, or leave it out and a share is held out.",
            param="valid",
        )
    pinned = _pinned(request, members)
    shape = services.bases[request.base_model].shape
    told = pinned.model_dump(mode="json", exclude={"owner"})  # beside it, as workers of the last release do not know it
    owned = {} if request.owner is None else {"owner": request.owner}
    arguments = {
        "request": told,
        "fingerprint": shape.fingerprint,
        "key": digest_of([shape.fingerprint, told]),  # all that the bytes which are pushed depend on
        "reach": sorted({namespace, *(member.namespace for member in members)}),
        "scope": who.namespaces,
        "request_id": request_id,
        **owned,
    }
    asked = who.caller(request_id).audit
    with services.registry.database.write() as catalogue:
        dedupe = f"{KIND}:{arguments['key']}"
        known = catalogue.jobs.find_active(dedupe)
        if known is not None:
            catalogue.jobs.add_requester(known.id, who.key_id, request_id=request_id)
            if owned:
                known = catalogue.jobs.update_arguments(known, owned)
            asked(catalogue, "training.ask", known.id, namespace=namespace, name=request.name, **owned)
            return known
        check_room(catalogue, services.settings, KIND, who.key_id, most=services.settings.training_queue)
        job = catalogue.jobs.enqueue(KIND, arguments, namespace=namespace, created_by=who.key_id, dedupe_key=dedupe)
        check_jobs(catalogue, services.registry.quotas, KIND, key_id=who.key_id, namespace=namespace)
        asked(catalogue, "training.ask", job.id, namespace=namespace, name=request.name, **owned)
        return job


def blobs_in_use(catalogue: Catalogue) -> set[str]:
    """Blobs that trainings which wait or run read."""
    requests = [job.arguments["request"] for job in catalogue.jobs.active(KIND)]
    return {request[what] for request in requests for what in ("texts", "valid") if request.get(what) is not None}


def _members(services: Services, who: Principal, request: TrainingRequest) -> list[AdapterRow]:
    """The adapters that a fusion is over, which the caller sees."""
    adapter = request.spec.adapter
    if not isinstance(adapter, FusionRequest):
        return []
    fingerprint = services.bases[request.base_model].shape.fingerprint
    with services.registry.database.read() as catalogue:
        rows = [catalogue.adapters.resolve(who.namespaces, parse_ref(ref)) for ref in adapter.members]
    problems = [
        f"{row.ref} is of another base model." if fusable else f"{row.ref} has {not_fused(row.config)}"
        for row in rows
        for fusable in [FusionConfig.member_of(row.config) is not None]
        if not fusable or row.base_fingerprint != fingerprint
    ]
    if problems:
        raise Incompatible(problems[0], param="spec.adapter.members", problems=problems)
    return rows


def _check_size(services: Services, request: TrainingRequest, members: Sequence[AdapterRow]) -> None:
    """Raises Incompatible or InvalidParameter for what cannot be trained on the base, TooLarge beyond the settings."""
    spec, settings, shape = request.spec, services.settings, services.bases[request.base_model].shape
    TASKS[spec.task].check_base(services.bases[request.base_model].text)
    frozen = [one for member in members if (one := FusionConfig.member_of(member.config)) is not None]
    config = config_of(spec, shape, head=SMALLEST_HEAD.get(spec.task), members=frozen)
    numbers = hyperparameters_on(spec, shape, config)
    _check_numbers(numbers, config.prefix_length, settings, scoring=_scoring_passes(spec))
    check_block(numbers.block, shape, config)
    tensors = expected_tensors(config, shape)
    size = sum(4 * math.prod(found) for found in tensors.values())
    if size > settings.max_weights_bytes:
        raise TooLarge(
            f"The adapter would have {size} bytes, and the limit is {settings.max_weights_bytes} "
            "(SOUP_MAX_WEIGHTS_BYTES).",
            param="spec.adapter",
        )


def _scoring_passes(spec: TrainingSpec) -> int:
    """Forward and backward passes before the first step that score what is pruned; GraSP's Hessian doubles them."""
    if spec.pruning is None or spec.pruning.score not in NEEDS_GRADIENTS:
        return 0
    return spec.pruning.batches * (2 if spec.pruning.score == "grasp" else 1)


def _check_numbers(numbers: Hyperparameters, prefix: int, settings: Settings, *, scoring: int) -> None:
    """Raises TooLarge for more passes, or more tokens in one (`prefix` before each block), than the settings allow.

    Passes for validation are not counted: how many blocks there are only the data say.
    """
    passes, tokens = numbers.steps * numbers.accumulate + scoring, numbers.batch * (prefix + numbers.block)
    if passes > settings.max_training_steps:
        before = f" and {scoring} passes to score what is pruned" if scoring else ""
        raise TooLarge(
            f"{numbers.steps} steps of {numbers.accumulate} passes{before} were asked for, and the limit is "
            f"{settings.max_training_steps} passes (SOUP_MAX_TRAINING_STEPS).",
            param="spec.recipe.steps",
        )
    if tokens > settings.max_training_tokens:
        before = f" and a prefix of {prefix}" if prefix else ""
        raise TooLarge(
            f"A batch of {numbers.batch} blocks of {numbers.block} tokens{before} is {tokens}, and the limit is "
            f"{settings.max_training_tokens} (SOUP_MAX_TRAINING_TOKENS): take a smaller 'batch' with more "
            "'accumulate'.",
            param="spec.recipe.batch",
        )


def _check_blob(services: Services, caller: Caller, digest: str, *, what: str) -> None:
    """Raises NotFound for a blob that the caller does not see, TooLarge, and InvalidParameter for a gzip file."""
    size, limit = blob_size(services.registry, caller, digest, field=what), services.settings.max_training_bytes
    if size > limit:
        raise TooLarge(f"{what} has {size} bytes and the limit is {limit} (SOUP_MAX_TRAINING_BYTES).", param=what)
    with services.registry.blobs.open(digest) as file:
        if file.read(2) == b"\x1f\x8b":
            raise InvalidParameter(f"{what} is a gzip file: upload the JSON lines as they are.", param=what)


def _pinned(request: TrainingRequest, members: Sequence[AdapterRow]) -> TrainingRequest:
    """The request with members by digest, since what a name means may change while it waits."""
    if not members:
        return request
    adapter = FusionRequest(members=tuple(member.digest for member in members))
    return request.model_copy(update={"spec": request.spec.model_copy(update={"adapter": adapter})})
