"""Which linear modules of a base model a new LoRA sits on, from the names that people give.

Called by `soup train`. Needs no table of families: `BaseShape.linears` has the path of every linear module.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from registry.errors import Incompatible
from registry.spec import BaseShape, LoraConfig, LoraModule

ALL = "all-linear"
"""Every linear module of the layers, and not the output layer: what PEFT calls by this name."""
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
SHOWN = 20


def lora_for(shape: BaseShape, *, rank: int, alpha: float, targets: Sequence[str] = ()) -> LoraConfig:
    """The LoRA of this rank and alpha on the modules that `targets` name; without any, the attention's projections.

    A target is the last part of a path (`q_proj`), the end of one (`self_attn.q_proj`) or a whole one; in each part
    `*` stands for anything (`model.layers.*.mlp.*`). `all-linear` is every linear module of the layers. Raises
    Incompatible for a target that names no module of this base, with the names there are.
    """
    paths = _named(shape, targets) if targets else _attention(shape)
    return LoraConfig.of({path: LoraModule(rank, alpha) for path in paths})


def _attention(shape: BaseShape) -> list[str]:
    """The linear modules inside of an attention module of a layer."""
    found = [path for path in _in_layers(shape) if any(_ATTENTION.search(part) for part in path.split(".")[:-1])]
    if not found:
        raise Incompatible(
            f"Which modules of this base model (family {shape.model_type!r}) are its attention is not known: name the "
            f"LoRA's targets; there are {_leaves(shape)}.",
            param="targets",
        )
    return found


def _named(shape: BaseShape, targets: Iterable[str]) -> list[str]:
    found: dict[str, None] = {}
    nothing = []
    for target in targets:
        paths = _in_layers(shape) if target == ALL else [path for path in shape.linears if _ends_with(path, target)]
        if not paths:
            nothing.append(target)
        found |= dict.fromkeys(paths)
    if nothing:
        raise Incompatible(
            f"The base model has no linear module {', '.join(repr(target[:80]) for target in nothing[:3])}; it has "
            f"{_leaves(shape)}.",
            param="targets",
            problems=[f"No linear module is named {target[:80]!r}." for target in nothing[:SHOWN]],
        )
    return list(found)


def _ends_with(path: str, target: str) -> bool:
    """Whether the last parts of `path` are those of `target`."""
    have, wanted = path.split("."), target.split(".")
    return len(wanted) <= len(have) and all(map(fnmatchcase, have[-len(wanted) :], wanted))


def _in_layers(shape: BaseShape) -> list[str]:
    """The paths with a number in them: what is not in a layer is the output layer and the like."""
    return [path for path in shape.linears if any(part.isdigit() for part in path.split("."))]


def _leaves(shape: BaseShape) -> str:
    names = sorted({path.rpartition(".")[2] for path in shape.linears})
    return ", ".join(names[:SHOWN]) if names else "none that are known"
