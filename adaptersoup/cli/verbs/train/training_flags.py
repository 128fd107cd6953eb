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
    int, typer.Option("--sample", min=0, help="Training passages to put beside the weights; 0 for none.")
]


def _by_commas(texts: list[str]) -> list[str]:
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


TRAINING = Flags(
    TrainingSpec,
    {
        "method": Flag(
            "adapter.method",
            "Kind of adapter; by default {default}. mam is prefix + parallel, fusion is over --members, head is the "
            "task's head alone.",
        ),
        "structure": Flag("adapter.structure", "Of a bottleneck; by default {default}."),
        "bottleneck": Flag("adapter.bottleneck", "Width of a bottleneck; by default {default}."),
        "activation": Flag("adapter.activation", "Of a bottleneck; by default its paper's."),
        "input": Flag(
            "adapter.input",
            "What a bottleneck reads: its module's output (parallel: argument), or the residual stream; by default "
            "its paper's.",
        ),
        "scale": Flag("adapter.scale", "Of a bottleneck's output; by default its paper's."),
        "trained_norms": Flag(
            "adapter.trained_norms",
            "Whether the base's norms train with a Houlsby adapter; by default they do.",
            "--trained-norms/--frozen-norms",
        ),
        "rank": Flag("adapter.rank", "Rank of a LoRA; by default {default}."),
        "alpha": Flag("adapter.alpha", "Of a LoRA; by default twice the rank."),
        "targets": Flag(
            "adapter.targets",
            "Linear modules of a LoRA, separated by commas: names (q_proj), ends of paths, '*' for anything, "
            "all-linear; by default the attention's projections.",
            parse=_by_commas,
        ),
        "length": Flag("adapter.length", "Virtual tokens of a prefix or MAM; by default {default}."),
        "members": Flag(
            "adapter.members",
            "Adapters of one structure that a fusion holds frozen, separated by commas; may be repeated.",
            parse=_by_commas,
        ),
        "init": Flag("init", "How it starts; by default near_identity, parallel zero_up, a LoRA with B = 0."),
        "init_seed": Flag("init_seed", "Only adapters that share it can be averaged; by default {default}."),
        "task": Flag("task", "What it is trained for; by default {default}."),
        "adamix": Flag("adamix.experts", "Train a bank of so many experts (AdaMix)."),
        "share": Flag("adamix.share", "The projection of which a bank has one copy; by default {default}."),
        "consistency": Flag("adamix.consistency", "How a bank's two passes agree; by default {default}."),
        "sparsity": Flag(
            "pruning.sparsity",
            f"Share of the projections' entries to prune first; by default {SPARSITY}, with --widen 1 - 1/widen.",
        ),
        "score": Flag("pruning.score", "What is pruned: by which score; by default {default}."),
        "scope": Flag(
            "pruning.scope", "Entries ranked over all projections, or within each layer; by default {default}."
        ),
        "pruning_seed": Flag("pruning.seed", "Draws random scores, or the batches of others; by default {default}."),
        "pruning_batches": Flag("pruning.batches", "Batches that scores take their gradient on; by default {default}."),
        "widen": Flag(
            "pruning.widen", "Bottleneck or rank so many times as wide, then pruned (Large-Sparse).", limits=(2, None)
        ),
        "steps": Flag("recipe.steps", "Updates; by default {default}."),
        "batch": Flag("recipe.batch", "Blocks in a forward pass; by default {default}."),
        "accumulate": Flag(
            "recipe.accumulate",
            "Forward passes in an update, the same as a batch so much larger; by default {default}.",
        ),
        "block": Flag("recipe.block", f"Tokens in a block; by default {BLOCK} at most."),
        "learning_rate": Flag("recipe.learning_rate", "Highest learning rate; by default {default}.", "--lr"),
        "schedule": Flag("recipe.schedule", "How the learning rate falls after the warm-up; by default {default}."),
        "warmup": Flag("recipe.warmup", "Share of the steps over which the learning rate rises; by default {default}."),
        "weight_decay": Flag("recipe.weight_decay", "AdamW's; by default {default}."),
        "beta1": Flag("recipe.beta1", "AdamW's, of the mean of gradients; by default {default}."),
        "beta2": Flag("recipe.beta2", "AdamW's, of the mean of their squares; by default {default}."),
        "clip": Flag("recipe.clip", "Largest norm of an update's gradient; by default {default}."),
        "dtype": Flag("recipe.dtype", "Of forward passes, the adapter stays float32; by default {default}."),
        "evaluations": Flag(
            "recipe.evaluations", "How often validation data are scored; the best state is kept; by default {default}."
        ),
        "data_seed": Flag(
            "recipe.data_seed", "Seed of the order of the data and of the sample; by default {default}.", "--seed"
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
