"""Build the inputs of a training (configuration, start, hyperparameters, task) from a spec, a base model and data.

Called by `training.train`, by a grid that compares existing directories, and by a server that checks a request before
it queues it. Data are files of JSON lines; the task parses the lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from torch import Tensor

from registry.adapters import paper_config
from registry.adapters.weights import load_tensors
from registry.base_model import BaseText
from registry.errors import Incompatible, InvalidParameter, NotFound
from registry.formats import read_directory
from registry.spec import (
    AdapterConfig,
    BankConfig,
    BaseShape,
    BottleneckConfig,
    FusionConfig,
    HeadConfig,
    LoraConfig,
    PrefixConfig,
    UnionConfig,
)
from registry.spec.wording import describe_error
from training.data import Data, read_lines
from training.hyperparameters import SHORTEST_BLOCK, Hyperparameters
from training.inputs import TrainingInputs
from training.methods.fusion import fusion_config, fusion_start
from training.methods.lora_targets import lora_for
from training.spec import (
    AdapterRequest,
    BottleneckRequest,
    FusionRequest,
    HeadRequest,
    LoraRequest,
    MamRequest,
    PrefixRequest,
    TrainingSpec,
)
from training.tasks import TASKS
from training.tasks.contract import with_head


@dataclass(frozen=True)
class Member:
    """A trained adapter that a fusion holds frozen."""

    config: BottleneckConfig
    tensors: Mapping[str, Tensor]


def inputs_of(spec: TrainingSpec, base: BaseText, data: Data, *, members: Sequence[Member] = ()) -> TrainingInputs:
    """Build the inputs of a training; `members` are the adapters of a fusion.

    Raises as `config_of` does, and InvalidParameter for data that make no task.
    """
    task = TASKS[spec.task]
    # a rare label may be in the held-out share alone, and users cannot change what is held out
    head = task.head([*data.train, *data.valid] if data.is_split else data.train)
    config = config_of(spec, base.shape, head=head, members=[member.config for member in members])
    start = None
    if isinstance(config, FusionConfig):  # the only kind that starts from trained adapters
        start = fusion_start([member.tensors for member in members])
    return TrainingInputs(
        config,
        data,
        hyperparameters_on(spec, base.shape, config),
        task,
        init=spec.start,
        init_seed=spec.init_seed,
        start=start,
        pruning=None if spec.pruning is None else spec.pruning.options(),
        consistency=None if spec.adamix is None else spec.adamix.consistency,
    )


def read_items(spec: TrainingSpec, path: Path, *, where: str | None = None) -> list[Any]:
    """Read the task's items from a file of JSON lines, which messages call `where`.

    Raises NotFound, or InvalidParameter with the line that is wrong.
    """
    where = str(path) if where is None else where
    return TASKS[spec.task].items(read_lines(path, where=where), where=where)


def not_fused(config: AdapterConfig) -> str:
    """The end of a sentence that says why this adapter, which is no bottleneck, cannot be a member of a fusion."""
    merge = ": name its merge instead" if config.merged is not None else ""
    return f"the method {config.method}, and a fusion is over bottleneck adapters{merge}."


def read_member(path: Path, shape: BaseShape) -> Member:
    """Read a trained bottleneck adapter from its directory; raises Incompatible if no fusion can hold it."""
    folder = read_directory(path)
    config = FusionConfig.member_of(folder.config)
    if config is None:
        raise Incompatible(f"{path} has {not_fused(folder.config)}", param="members")
    if folder.base_fingerprint not in (None, shape.fingerprint):
        raise Incompatible(f"{path} was made for another base model ({folder.base_fingerprint}).", param="members")
    try:
        return Member(config, load_tensors(folder.weights.read_bytes()))
    except OSError as error:
        raise NotFound(f"{folder.weights} cannot be read: {error.strerror}.", param="members") from error


def config_of(
    spec: TrainingSpec, shape: BaseShape, *, head: HeadConfig | None = None, members: Sequence[BottleneckConfig] = ()
) -> AdapterConfig:
    """Build the configuration of a spec's adapter on a base model; `members` are the frozen adapters of a fusion.

    Raises InvalidParameter for an invalid configuration, Incompatible if it does not fit the base model or the task.
    """
    try:
        config = _plain(spec.adapter, shape, head, members)
        if spec.pruning is not None and spec.pruning.widen > 1:
            config = widened(config, spec.pruning.widen)
        if spec.adamix is not None:
            _check_routed(config, shape)
            bank = {"expert": config.model_dump(), "experts": spec.adamix.experts, "share": spec.adamix.share}
            config = BankConfig.model_validate(bank)
        return with_head(config, head)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        name = str(problem["loc"][-1]) if problem["loc"] else "adapter"
        raise InvalidParameter(f"{name}: {describe_error(problem)}.", param=name) from None


def _check_routed(config: AdapterConfig, shape: BaseShape) -> None:
    """Raise Incompatible for a LoRA outside the layers: the output layer runs when the route through a bank is over."""
    modules = config.modules() if isinstance(config, LoraConfig) else ()
    outside = sorted(set(modules) - set(shape.layer_linears()))
    if outside:
        raise Incompatible(
            f"AdaMix trains experts in the layers only, and {', '.join(outside)} is outside of them: name other "
            "targets, for example 'all-linear'.",
            param="targets",
        )


def widened(config: AdapterConfig, factor: int) -> AdapterConfig:
    """Return the structure with its bottleneck, or the rank of each module, `factor` times as wide, for Large-Sparse.

    That is a wider adapter of as many parameters, most of its entries pruned (SparseAdapter, section 3.3). A LoRA's
    alpha grows likewise, so that its scaling stays. In a union all members with a width are widened. Raises
    InvalidParameter for an adapter without a width, and for a width that is not allowed.
    """
    try:
        wide = config.widened(factor)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise InvalidParameter(
            f"The adapter cannot be {factor} times as wide: {describe_error(problem)}.", param="widen"
        ) from None
    if wide is None:
        raise InvalidParameter(
            f"A {config.method} adapter has no width: bottlenecks, LoRAs and unions of them have.", param="widen"
        )
    return wide


def _plain(
    request: AdapterRequest, shape: BaseShape, head: HeadConfig | None, members: Sequence[BottleneckConfig]
) -> AdapterConfig:
    """The requested configuration before it is widened, made a bank or given a head."""
    match request:
        case BottleneckRequest():
            return _bottleneck(request, shape)
        case LoraRequest():
            alpha = 2.0 * request.rank if request.alpha is None else request.alpha
            return lora_for(shape, rank=request.rank, alpha=alpha, targets=request.targets)
        case PrefixRequest():
            return PrefixConfig(length=request.length)
        case MamRequest():
            parallel = paper_config("parallel", bottleneck=request.bottleneck)
            return UnionConfig(members=(PrefixConfig(length=request.length), parallel))
        case HeadRequest():
            if head is None:
                raise InvalidParameter("This task has no head to train alone.", param="method")
            return head
        case FusionRequest():
            return fusion_config(members)


def _bottleneck(request: BottleneckRequest, shape: BaseShape) -> BottleneckConfig:
    """The structure with its paper's values for omitted fields; on an encoder Pfeiffer's reads the residual."""
    paper = paper_config(request.structure, bottleneck=request.bottleneck)
    if request.structure == "pfeiffer" and shape.kind == "encoder":
        paper = paper.model_copy(update={"input": "residual"})
    requested = request.model_dump(include={"activation", "scale", "input", "trained_norms"}, exclude_none=True)
    return BottleneckConfig.model_validate({**paper.model_dump(), **requested})


def hyperparameters_on(spec: TrainingSpec, shape: BaseShape, config: AdapterConfig) -> Hyperparameters:
    """A spec's hyperparameters on a base model; raises InvalidParameter if the prefix leaves no block."""
    available = shape.context - config.prefix_length
    if available < SHORTEST_BLOCK:
        raise InvalidParameter(
            f"A prefix of {config.prefix_length} tokens leaves {max(available, 0)} of the base model's context of "
            f"{shape.context}, and a block has at least {SHORTEST_BLOCK}: choose a shorter one.",
            param="length",
        )
    return spec.recipe.on(available)
