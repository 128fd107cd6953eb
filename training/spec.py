"""The spec of a training: what the command line, a grid and a request to the server describe.

Imports no torch. `training.build` makes an adapter's configuration from a spec and a base model. Omitted fields get the
paper's value, or one that suits the base model.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, ValidationError, field_validator, model_validator

from registry.errors import InvalidParameter
from registry.spec import Frozen
from registry.spec.unions import member_names
from registry.spec.wording import describe_error
from training.hyperparameters import SHORTEST_BLOCK, SPARSITY, Consistency, Hyperparameters, PruningOptions

BLOCK = 512
"""Default tokens in a block, at most the base's context."""
VALID_SHARE = 0.1
"""Default share of the data held out to validate on."""
SAMPLE = 200
"""Training passages that become the sample of an adapter."""
SAVE_SECONDS = 60.0
"""Default seconds between two checkpoints."""
BANK = "-bank"
"""Suffix of the name of a bank of experts; the name without it is its merge's."""
Init = Literal["near_identity", "linear", "zero_up", "small_b"]
Structure = Literal["bapna_firat", "houlsby", "pfeiffer", "parallel"]
TaskKey = Literal["language_modelling", "classification", "question_answering", "summarisation"]
HEADED: frozenset[str] = frozenset({"classification", "question_answering"})
"""Tasks whose adapters answer with a head of their own."""


class BottleneckRequest(Frozen):
    """A bottleneck adapter; what is left out of `activation`, `scale` and `input` is as in the structure's paper."""

    method: Literal["bottleneck"] = "bottleneck"
    structure: Structure = "bapna_firat"
    bottleneck: int = Field(default=64, ge=1, le=65536)
    activation: Literal["relu", "gelu", "swish"] | None = None
    scale: float | None = None
    input: Literal["module", "residual"] | None = None
    trained_norms: bool = True


Target = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class LoraRequest(Frozen):
    """A LoRA on the modules that `targets` name, by default the attention's projections; alpha is twice the rank."""

    method: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1, le=65536)
    alpha: float | None = Field(default=None, gt=0, le=1e9)
    targets: tuple[Target, ...] = Field(default=(), max_length=256, fail_fast=True)


class PrefixRequest(Frozen):
    """A prefix of this number of virtual tokens."""

    method: Literal["prefix"] = "prefix"
    length: int = Field(default=30, ge=1, le=4096)


class MamRequest(Frozen):
    """MAM: a prefix and a parallel bottleneck (He et al., ICLR 2022)."""

    method: Literal["mam"] = "mam"
    length: int = Field(default=30, ge=1, le=4096)
    bottleneck: int = Field(default=64, ge=1, le=65536)


class FusionRequest(Frozen):
    """AdapterFusion over trained adapters of one structure: directories, or on a server adapters by name or digest."""

    method: Literal["fusion"] = "fusion"
    members: tuple[Annotated[str, StringConstraints(min_length=1, max_length=4096)], ...] = Field(
        min_length=2, max_length=64, fail_fast=True
    )

    @field_validator("members")
    @classmethod
    def _each_once(cls, members: tuple[str, ...]) -> tuple[str, ...]:
        twice = sorted({member for member in members if members.count(member) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice: a fusion learns to choose between different adapters.")
        return members


class HeadRequest(Frozen):
    """The head of the task and nothing else: what the frozen base model knows by itself."""

    method: Literal["head"] = "head"


def _bottleneck_by_default(value: object) -> object:
    """A request that names no method is for a bottleneck."""
    return {"method": "bottleneck", **value} if isinstance(value, dict) else value


AdapterRequest = Annotated[
    Annotated[
        BottleneckRequest | LoraRequest | PrefixRequest | MamRequest | FusionRequest | HeadRequest,
        Field(discriminator="method"),
    ],
    BeforeValidator(_bottleneck_by_default),
]


METHODS = member_names(AdapterRequest)
"""The methods of adapter requests; pydantic puts one behind `adapter` in the location of an error."""


class AdamixRequest(Frozen):
    """A bank of `experts` trained by random routing (AdaMix, section 3)."""

    experts: int = Field(default=4, ge=2, le=64)
    share: Literal["up", "down", "none"] = "up"
    consistency: Consistency = "released"


class PruningRequest(PruningOptions):
    """Pruning before the training (SparseAdapter, section 2).

    `widen` multiplies the bottleneck or the rank (Large-Sparse). The default sparsity, 1 - 1 / widen, then keeps the
    number of parameters.
    """

    sparsity: float | None = Field(default=None, gt=0, lt=1)  # type: ignore[assignment]
    widen: int = Field(default=1, ge=1, le=64)

    def options(self) -> PruningOptions:
        """Return the trainer's pruning options."""
        sparsity = self.sparsity or (SPARSITY if self.widen == 1 else 1 - 1 / self.widen)
        return PruningOptions.model_validate({**self.model_dump(exclude={"widen"}), "sparsity": sparsity})


class RecipeRequest(Hyperparameters):
    """How the loop runs; a block is by default of 512 tokens, or of the base's context where that is shorter."""

    block: int | None = Field(default=None, ge=SHORTEST_BLOCK, le=131_072)  # type: ignore[assignment]

    def on(self, context: int) -> Hyperparameters:
        """Return the hyperparameters for a context of `context` tokens; the trainer checks that the block fits."""
        block = min(context, BLOCK) if self.block is None else self.block
        return Hyperparameters.model_validate({**self.model_dump(), "block": block})


class TrainingSpec(Frozen):
    """All that a training is, but for its base model and its data.

    Adapters that are to be averaged need the same `adapter`, `init` and `init_seed`. Without `init` a parallel
    bottleneck starts as `zero_up` and every other as `near_identity`; a LoRA starts with B = 0, or as `small_b`, which
    pruning by SNIP or GraSP needs.
    """

    adapter: AdapterRequest = BottleneckRequest()
    init: Init | None = None
    init_seed: int = Field(default=0, ge=0, lt=2**63)
    task: TaskKey = "language_modelling"
    adamix: AdamixRequest | None = None
    pruning: PruningRequest | None = None
    recipe: RecipeRequest = RecipeRequest()

    @model_validator(mode="after")
    def _check(self) -> Self:
        problems = [problem for problem in self._problems() if problem]
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _problems(self) -> list[str | None]:
        method, expert = self.adapter.method, self.adapter.method in ("bottleneck", "lora")
        return [
            self._init_problem(),
            "'adamix' makes experts of a bottleneck or a LoRA" if self.adamix and not expert else None,
            "'adamix' and 'pruning' exclude each other" if self.adamix and self.pruning else None,
            f"a fusion is not for task '{self.task}'" if method == "fusion" and self.headed else None,
            self._head_problem(),
            self._evaluations_problem(),
            f"a {method} has no projections to prune" if self.pruning and method in ("prefix", "head") else None,
            "'widen' is not for a fusion" if self.pruning and self.pruning.widen > 1 and method == "fusion" else None,
        ]

    def _init_problem(self) -> str | None:
        method = self.adapter.method
        if self.init is None or (method == "lora" and self.init == "small_b"):
            return None
        if method == "lora":
            return "a LoRA starts with B = 0, or with 'init' 'small_b'"
        if method not in ("bottleneck", "mam"):
            return f"'init' is not for method '{method}'"
        return "'init' 'small_b' is a LoRA's" if self.init == "small_b" else None

    def _head_problem(self) -> str | None:
        if self.adapter.method != "head" or self.headed:
            return None
        return f"task '{self.task}' has no head to train alone: {' and '.join(sorted(HEADED))} have"

    def _evaluations_problem(self) -> str | None:
        """More evaluations than steps are allowed up to the default."""
        steps, evaluations = self.recipe.steps, self.recipe.evaluations
        if evaluations <= max(steps, RecipeRequest().evaluations):
            return None
        return f"{evaluations} 'evaluations' in {steps} steps: there is at most one after each"

    @property
    def headed(self) -> bool:
        """True if its adapter answers with a head of its own."""
        return self.task in HEADED

    @property
    def start(self) -> Init:
        """The start of a bottleneck; meaningless for other methods."""
        if self.init is not None:
            return self.init
        parallel = isinstance(self.adapter, MamRequest) or (
            isinstance(self.adapter, BottleneckRequest) and self.adapter.structure == "parallel"
        )
        return "zero_up" if parallel else "near_identity"

    def with_numbers(self, **numbers: Any) -> TrainingSpec:
        """Return the spec with changed numbers in its recipe; raises InvalidParameter for one out of range."""
        try:
            recipe = RecipeRequest.model_validate({**self.recipe.model_dump(), **numbers})
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            name = ".".join(map(str, problem["loc"]))
            raise InvalidParameter(f"{name}: {describe_error(problem)}.", param=name) from None
        return self.model_copy(update={"recipe": recipe})
