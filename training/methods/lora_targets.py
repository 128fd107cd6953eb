"""Resolve the target names of a new LoRA to the paths of linear modules of a base model.

Called by `soup train`. Needs no table of families: `BaseShape.linears` holds the path of every linear module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from registry.errors import Incompatible
from registry.spec import BaseShape, LoraConfig, LoraModule

ALL = "all-linear"
"""Target for every linear module of the layers without the output layer, as in PEFT."""
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
SHOWN = 20


def lora_for(shape: BaseShape, *, rank: int, alpha: float, targets: Sequence[str] = ()) -> LoraConfig:
    """Return a LoRA of this rank and alpha on the modules that `targets` name, by default the attention's projections.

    A target is the last component of a path (`q_proj`), several last ones (`self_attn.q_proj`) or all; in each, `*`
    stands for anything (`model.layers.*.mlp.*`). `all-linear` is every linear module of the layers. Raises
    Incompatible for a target that names no module of this base, listing the names of the base.
    """
    paths = _named(shape, targets) if targets else _attention(shape)
    return LoraConfig.of({path: LoraModule(rank, alpha) for path in paths})


def _attention(shape: BaseShape) -> list[str]:
    """The linear modules inside the attention modules of layers."""
    paths = [path for path in shape.layer_linears() if any(_ATTENTION.search(name) for name in path.split(".")[:-1])]
    if not paths:
        raise Incompatible(
            f"The attention modules of this base model (family {shape.model_type!r}) are not known: name the LoRA's "
            f"targets; there are {_leaves(shape)}.",
            param="targets",
        )
    return paths


def _named(shape: BaseShape, targets: Iterable[str]) -> list[str]:
    matched: dict[str, None] = {}
    unmatched = []
    for target in targets:
        paths = shape.layer_linears() if target == ALL else [path for path in shape.linears if _ends_with(path, target)]
        if not paths:
            unmatched.append(target)
        matched |= dict.fromkeys(paths)
    if unmatched:
        raise Incompatible(
            f"The base model has no linear module {', '.join(repr(target[:80]) for target in unmatched[:3])}; it has "
            f"{_leaves(shape)}.",
            param="targets",
            problems=[f"No linear module is named {target[:80]!r}." for target in unmatched[:SHOWN]],
        )
    return list(matched)


def _ends_with(path: str, target: str) -> bool:
    """Return True if the last components of `path` match those of `target`."""
    names, patterns = path.split("."), target.split(".")
    return len(patterns) <= len(names) and all(map(fnmatchcase, names[-len(patterns) :], patterns))


def _leaves(shape: BaseShape) -> str:
    names = sorted({path.rpartition(".")[2] for path in shape.linears})
    return ", ".join(names[:SHOWN]) if names else "none that are known"
