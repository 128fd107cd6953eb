"""The options that describe a training, once for `soup train`, `soup train sweep` and `soup train submit`.

Each stands for a field of `training.spec.TrainingSpec`; one that is not given leaves the field as it is by default.
Never imports torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import typer
from pydantic import BaseModel, ValidationError

from registry.errors import InvalidParameter
from registry.spec import PruningScore
from training.hyperparameters import Consistency, Hyperparameters, Schedule, TrainingDtype
from training.spec import (
    BLOCK,
    METHODS,
    SPARSITY,
    AdamixRequest,
    Init,
    PruningRequest,
    Structure,
    TaskKey,
    TrainingSpec,
)


class Asks(NamedTuple):
    """An option: the field of the spec it stands for, its type, its flag and what the help says."""

    field: tuple[str, ...]
    kind: Any
    flag: str
    help: str
    least: int | None = None


def _default(model: type[BaseModel], name: str) -> str:
    return str(model.model_fields[name].default)


def _number(name: str, flag: str, kind: type, help: str, least: int | None = None) -> Asks:
    return Asks(("recipe", name), kind, flag, f"{help}; by default {_default(Hyperparameters, name)}.", least)


ASKED: dict[str, Asks] = {
    "method": Asks(
        ("adapter", "method"), Literal["bottleneck", "lora", "prefix", "mam", "fusion", "head"], "--method",
        "Kind of adapter; by default bottleneck. mam is prefix + parallel, fusion is over --members, head is the "
        "task's head alone.",
    ),
    "structure": Asks(("adapter", "structure"), Structure, "--structure", "Of a bottleneck; by default bapna_firat."),
    "bottleneck": Asks(("adapter", "bottleneck"), int, "--bottleneck", "Width of a bottleneck; by default 64.", 1),
    "activation": Asks(
        ("adapter", "activation"), Literal["relu", "gelu", "swish"], "--activation",
        "Of a bottleneck; by default its paper's.",
    ),
    "input": Asks(
        ("adapter", "input"), Literal["module", "residual"], "--input",
        "What a bottleneck reads: its module's output (parallel: argument), or the residual stream; by default its "
        "paper's.",
    ),
    "scale": Asks(("adapter", "scale"), float, "--scale", "Of a bottleneck's output; by default its paper's."),
    "trained_norms": Asks(
        ("adapter", "trained_norms"), bool, "--trained-norms/--frozen-norms",
        "Whether the base's norms train with a Houlsby adapter; by default they do.",
    ),
    "rank": Asks(("adapter", "rank"), int, "--rank", "Rank of a LoRA; by default 8.", 1),
    "alpha": Asks(("adapter", "alpha"), float, "--alpha", "Of a LoRA; by default twice the rank."),
    "targets": Asks(
        ("adapter", "targets"), list[str], "--targets",
        "Linear modules of a LoRA, separated by commas: names (q_proj), ends of paths, '*' for anything, "
        "all-linear; by default the attention's projections.",
    ),
    "length": Asks(("adapter", "length"), int, "--length", "Virtual tokens of a prefix or MAM; by default 30.", 1),
    "members": Asks(
        ("adapter", "members"), list[str], "--members",
        "Adapters of one structure that a fusion holds frozen, separated by commas; may be repeated.",
    ),
    "init": Asks(
        ("init",), Init, "--init", "How it starts; by default near_identity, parallel zero_up, a LoRA with B = 0."
    ),
    "init_seed": Asks(
        ("init_seed",), int, "--init-seed", "Only adapters that share it can be averaged; by default 0.", 0
    ),
    "task": Asks(("task",), TaskKey, "--task", "What it is trained for; by default language_modelling."),
    "adamix": Asks(("adamix", "experts"), int, "--adamix", "Train a bank of so many experts (AdaMix).", 2),
    "share": Asks(
        ("adamix", "share"), Literal["up", "down", "none"], "--share",
        f"The projection of which a bank has one copy; by default {_default(AdamixRequest, 'share')}.",
    ),
    "consistency": Asks(
        ("adamix", "consistency"), Consistency, "--consistency",
        f"How a bank's two passes agree; by default {_default(AdamixRequest, 'consistency')}.",
    ),
    "sparsity": Asks(
        ("pruning", "sparsity"), float, "--sparsity",
        f"Share of the projections' entries to prune first; by default {SPARSITY}, with --widen 1 - 1/widen.",
    ),
    "score": Asks(
        ("pruning", "score"), PruningScore, "--score",
        f"What is pruned: by which score; by default {_default(PruningRequest, 'score')}.",
    ),
    "scope": Asks(
        ("pruning", "scope"), Literal["global", "layer"], "--scope",
        "Entries ranked over all projections, or within each layer; by default global.",
    ),
    "pruning_seed": Asks(
        ("pruning", "seed"), int, "--pruning-seed", "Draws random scores, or the batches of others; by default 0.", 0
    ),
    "pruning_batches": Asks(
        ("pruning", "batches"), int, "--pruning-batches",
        f"Batches that scores take their gradient on; by default {_default(PruningRequest, 'batches')}.", 1,
    ),
    "widen": Asks(
        ("pruning", "widen"), int, "--widen", "Bottleneck or rank so many times as wide, then pruned (Large-Sparse).", 2
    ),
    "steps": _number("steps", "--steps", int, "Updates", 1),
    "batch": _number("batch", "--batch", int, "Blocks in a forward pass", 1),
    "accumulate": _number(
        "accumulate", "--accumulate", int, "Forward passes in an update, the same as a batch so much larger", 1
    ),
    "block": Asks(("recipe", "block"), int, "--block", f"Tokens in a block; by default {BLOCK} at most.", 2),
    "learning_rate": _number("learning_rate", "--lr", float, "Highest learning rate"),
    "schedule": Asks(
        ("recipe", "schedule"), Schedule, "--schedule",
        "How the learning rate falls after the warm-up; by default linear.",
    ),
    "warmup": _number("warmup", "--warmup", float, "Share of the steps over which the learning rate rises"),
    "weight_decay": _number("weight_decay", "--weight-decay", float, "AdamW's"),
    "beta1": _number("beta1", "--beta1", float, "AdamW's, of the mean of gradients"),
    "beta2": _number("beta2", "--beta2", float, "AdamW's, of the mean of their squares"),
    "clip": _number("clip", "--clip", float, "Largest norm of an update's gradient"),
    "dtype": Asks(
        ("recipe", "dtype"), TrainingDtype, "--dtype",
        "Of forward passes, the adapter stays float32; by default float32.",
    ),
    "evaluations": _number(
        "evaluations", "--evaluations", int, "How often validation data are scored; the best state is kept", 1
    ),
    "data_seed": _number("data_seed", "--seed", int, "Seed of the order of the data and of the sample", 0),
}  # fmt: skip
"""By the name of the command's parameter."""
LISTS = ("targets", "members")
FLAGS: Mapping[tuple[str, ...], str] = {asks.field: asks.flag.partition("/")[0] for asks in ASKED.values()}


@dataclass(frozen=True)
class Asked:
    """What the options of a command say, by their names; None where they are not given."""

    given: Mapping[str, Any]

    def spec(self) -> TrainingSpec:
        """The spec they describe.

        Raises BadParameter for an option of another method, and InvalidParameter for what cannot be trained.
        """
        wanted: dict[str, Any] = {}
        for name, value in self.given.items():
            if value is None or value == []:
                continue
            *parents, last = ASKED[name].field
            place = wanted
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = _parts(value) if name in LISTS else value
        self._check_company()
        try:
            return TrainingSpec.model_validate(wanted)
        except ValidationError as error:
            raise _refused(error, str(self.given.get("method") or "bottleneck")) from None

    def _check_company(self) -> None:
        """Raises BadParameter for options that would be of no effect without another."""
        given = {name: value for name, value in self.given.items() if value is not None}
        score = given.get("score", _default(PruningRequest, "score"))
        for names, heeded, needs in (
            (("share", "consistency"), "adamix" in given, "--adamix, which says how many experts"),
            (
                ("scope", "pruning_seed", "pruning_batches"), bool(given.keys() & {"sparsity", "score", "widen"}),
                "--sparsity, --score or --widen",
            ),
            (("pruning_batches",), score in ("snip", "grasp"), "--score snip or grasp"),
            (("pruning_seed",), score != "magnitude", "a --score that draws: magnitude does not"),
            (("trained_norms",), given.get("structure") == "houlsby", "--structure houlsby"),
        ):  # fmt: skip
            alone = [FLAGS[ASKED[name].field] for name in names if name in given]
            if alone and not heeded:
                raise typer.BadParameter(f"{', '.join(alone)}: only with {needs}.")


def asking(*, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function: in the place of its parameter `asked` stand the options, but for `without`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        names = [name for name in ASKED if name not in without]

        def command(*positional: Any, **values: Any) -> None:
            asked = Asked({name: values.pop(name) for name in names})
            function(*positional, asked=asked, **values)

        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(function, eval_str=True).parameters.values():
            own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            parameters += [_parameter(name) for name in names] if parameter.name == "asked" else [own]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def _parameter(name: str) -> inspect.Parameter:
    asks = ASKED[name]
    info = typer.Option(asks.flag, help=asks.help, min=asks.least)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[asks.kind | None, info]
    )


def _parts(texts: list[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _refused(error: ValidationError, method: str) -> Exception:
    """What pydantic says of a spec, by the options' names."""
    found = error.errors(include_url=False, include_input=False)
    foreign = [_flag(one["loc"]) for one in found if one["type"] == "extra_forbidden"]
    if foreign:
        return typer.BadParameter(f"{', '.join(foreign)}: not an option of --method {method}.")
    missing = [_flag(one["loc"]) for one in found if one["type"] == "missing"]
    if missing:
        return typer.BadParameter(f"--method {method} needs {', '.join(missing)}.")
    name = _flag(found[0]["loc"])
    said = str(found[0]["msg"]).removeprefix("Value error, ")
    return InvalidParameter(f"{name}: {said}." if name else f"{said[:1].upper()}{said[1:]}.", param=name or None)


def _flag(loc: tuple[int | str, ...]) -> str:
    """The flag of a place in a spec; of the names that tell the kinds of adapters apart nobody knows."""
    parts = tuple(
        str(part)
        for before, part in zip(("", *loc), loc, strict=False)
        if not (before == "adapter" and part in METHODS)
    )
    return next((FLAGS[parts[:end]] for end in range(len(parts), 0, -1) if parts[:end] in FLAGS), ".".join(parts))
