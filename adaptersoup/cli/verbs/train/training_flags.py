"""The options of a training, shared by `soup train`, `soup train sweep` and `soup train submit`.

Each sets a field of `training.spec.TrainingSpec`. Does not import torch.
"""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import ValidationError

from adaptersoup.cli.flags import Flag, Flags, ParsedFlags
from registry.errors import InvalidParameter
from registry.spec import SCORING_PASSES
from registry.spec.wording import describe_error
from training.hyperparameters import SPARSITY
from training.spec import BLOCK, PruningRequest, TrainingSpec

SampleSize = Annotated[
    int, typer.Option("--sample", min=0, help="Training passages to store beside the weights; 0 for none.")
]


def _by_commas(texts: list[str]) -> list[str]:
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


TRAINING = Flags(
    TrainingSpec,
    {
        "method": Flag(
            "adapter.method",
            "Kind of adapter; by default {default}. mam is prefix and parallel, fusion combines --members, head is "
            "only the head of the task.",
        ),
        "structure": Flag("adapter.structure", "Structure of a bottleneck; by default {default}."),
        "bottleneck": Flag("adapter.bottleneck", "Width of a bottleneck; by default {default}."),
        "activation": Flag("adapter.activation", "Activation of a bottleneck; by default that of its paper."),
        "input": Flag(
            "adapter.input",
            "Input of a bottleneck: the output of its module (parallel: the argument), or the residual stream; by "
            "default that of its paper.",
        ),
        "scale": Flag("adapter.scale", "Factor on the output of a bottleneck; by default that of its paper."),
        "trained_norms": Flag(
            "adapter.trained_norms",
            "Train the base model's norms with a Houlsby adapter, or not; by default yes.",
            "--trained-norms/--frozen-norms",
        ),
        "rank": Flag("adapter.rank", "Rank of a LoRA; by default {default}."),
        "alpha": Flag("adapter.alpha", "Alpha of a LoRA; by default twice the rank."),
        "targets": Flag(
            "adapter.targets",
            "Linear modules of a LoRA, separated by commas: names (q_proj), ends of paths, '*' for anything, or "
            "all-linear; by default the projections of attention.",
            parse=_by_commas,
        ),
        "length": Flag("adapter.length", "Virtual tokens of a prefix or MAM; by default {default}."),
        "members": Flag(
            "adapter.members",
            "Frozen adapters of a fusion, of one structure, separated by commas; repeatable.",
            parse=_by_commas,
        ),
        "init": Flag("init", "Initialisation; by default near_identity, for parallel zero_up, for a LoRA B = 0."),
        "init_seed": Flag(
            "init_seed", "Seed of the initialisation, which averaged adapters must share; by default {default}."
        ),
        "task": Flag("task", "Task of the adapter; by default {default}."),
        "adamix": Flag("adamix.experts", "Train a bank of this number of experts (AdaMix)."),
        "share": Flag("adamix.share", "Projection that the experts of a bank share; by default {default}."),
        "consistency": Flag(
            "adamix.consistency", "Loss for the consistency of a bank's two passes; by default {default}."
        ),
        "sparsity": Flag(
            "pruning.sparsity",
            f"Fraction of the projections to prune before training; by default {SPARSITY}, with --widen 1 - 1/widen.",
        ),
        "score": Flag("pruning.score", "Score to prune by; by default {default}."),
        "scope": Flag(
            "pruning.scope", "Rank entries over all projections, or within each layer; by default {default}."
        ),
        "pruning_seed": Flag(
            "pruning.seed", "Seed of random scores, or of the batches for other scores; by default {default}."
        ),
        "pruning_batches": Flag("pruning.batches", "Batches for scores that use gradients; by default {default}."),
        "widen": Flag(
            "pruning.widen", "Factor on the bottleneck or rank before pruning (Large-Sparse).", limits=(2, None)
        ),
        "steps": Flag("recipe.steps", "Number of updates; by default {default}."),
        "batch": Flag("recipe.batch", "Blocks per forward pass; by default {default}."),
        "accumulate": Flag(
            "recipe.accumulate",
            "Forward passes per update, with the effect of a larger batch; by default {default}.",
        ),
        "block": Flag("recipe.block", f"Tokens per block; by default at most {BLOCK}."),
        "learning_rate": Flag("recipe.learning_rate", "Maximum learning rate; by default {default}.", "--lr"),
        "schedule": Flag("recipe.schedule", "Decay of the learning rate after the warm-up; by default {default}."),
        "warmup": Flag("recipe.warmup", "Fraction of the steps for the warm-up; by default {default}."),
        "weight_decay": Flag("recipe.weight_decay", "Weight decay of AdamW; by default {default}."),
        "beta1": Flag("recipe.beta1", "AdamW's decay of the mean gradient; by default {default}."),
        "beta2": Flag("recipe.beta2", "AdamW's decay of the mean squared gradient; by default {default}."),
        "clip": Flag("recipe.clip", "Maximum norm of the gradient; by default {default}."),
        "dtype": Flag("recipe.dtype", "Type of forward passes; the adapter stays float32. By default {default}."),
        "evaluations": Flag(
            "recipe.evaluations", "Number of evaluations on the validation data; by default {default}."
        ),
        "data_seed": Flag(
            "recipe.data_seed", "Seed of the data order and of the sample; by default {default}.", "--seed"
        ),
    },
    {
        "Structure": (
            "structure",
            "bottleneck",
            "activation",
            "input",
            "scale",
            "trained_norms",
            "rank",
            "alpha",
            "targets",
            "length",
            "members",
            "init",
            "init_seed",
        ),
        "AdaMix": ("adamix", "share", "consistency"),
        "Pruning": ("sparsity", "score", "scope", "pruning_seed", "pruning_batches", "widen"),
        "Optimisation": (
            "batch",
            "accumulate",
            "block",
            "schedule",
            "warmup",
            "weight_decay",
            "beta1",
            "beta2",
            "clip",
            "dtype",
            "evaluations",
        ),
    },
)


def spec_of(flags: ParsedFlags) -> TrainingSpec:
    """The training of the flags.

    Raises BadParameter for an option of another method or without effect, InvalidParameter for other invalid values.
    """
    _check_effect(flags)
    try:
        return TrainingSpec.model_validate(flags.nested())
    except ValidationError as error:
        raise _refused(error, flags) from None


def _check_effect(flags: ParsedFlags) -> None:
    """Raise BadParameter for options that have no effect without another."""
    score = flags["score"] or PruningRequest().score
    for names, is_effective, needs in (
        (("share", "consistency"), "adamix" in flags, "--adamix, which says how many experts"),
        (
            ("scope", "pruning_seed", "pruning_batches"),
            flags.present("sparsity", "score", "widen"),
            "--sparsity, --score or --widen",
        ),
        (("pruning_batches",), score in SCORING_PASSES, f"--score {' or '.join(SCORING_PASSES)}"),
        (("pruning_seed",), score != "magnitude", "a --score that draws: magnitude does not"),
        (("trained_norms",), flags["structure"] == "houlsby", "--structure houlsby"),
    ):
        present = flags.present(*names)
        if present and not is_effective:
            raise typer.BadParameter(f"{', '.join(present)}: only with {needs}.")


def _refused(error: ValidationError, flags: ParsedFlags) -> Exception:
    """The error for an invalid spec, with the names of the options."""
    method = flags["method"] or "bottleneck"
    errors = error.errors(include_url=False, include_input=False)
    foreign = [TRAINING.flag_at(details["loc"]) for details in errors if details["type"] == "extra_forbidden"]
    if foreign:
        return typer.BadParameter(f"{', '.join(foreign)}: not an option of --method {method}.")
    missing = [TRAINING.flag_at(details["loc"]) for details in errors if details["type"] == "missing"]
    if missing:
        return typer.BadParameter(f"--method {method} needs {', '.join(missing)}.")
    name = TRAINING.flag_at(errors[0]["loc"])
    sentence = describe_error(errors[0])
    return InvalidParameter(
        f"{name}: {sentence}." if name else f"{sentence[:1].upper()}{sentence[1:]}.", param=name or None
    )
