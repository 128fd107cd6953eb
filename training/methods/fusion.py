"""The configuration and start of a fusion of trained, frozen adapters of one structure (Pfeiffer et al., EACL 2021).

Called by `training.build` with the configurations and tensors of the members.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from registry.adapters.masks import is_mask
from registry.errors import Incompatible
from registry.spec import BottleneckConfig, FusionConfig


def fusion_config(members: Sequence[BottleneckConfig]) -> FusionConfig:
    """Return the fusion of two or more such adapters; raises Incompatible with every reason against it.

    A pruned member becomes a dense one whose pruned entries are zero.
    """
    kinds = [config.dense() for config in members]
    problems = _differences(kinds)
    if any(kind.structure == "houlsby" for kind in kinds):
        problems.insert(0, "Members of structure 'houlsby' act at two places of a layer, and a fusion at one.")
    if problems:
        raise Incompatible(f"These adapters cannot be fused: {problems[0]}", param="members", problems=problems)
    return FusionConfig(member=kinds[0], members=len(members))


def _differences(kinds: Sequence[BottleneckConfig]) -> list[str]:
    """One sentence for each field in which the configurations differ."""
    differences = []
    for name in BottleneckConfig.model_fields:
        values = list(dict.fromkeys(str(getattr(kind, name)) for kind in kinds))
        if len(values) > 1:
            differences.append(
                f"The members of a fusion are of one structure, and their {name!r} is {' or '.join(values)}."
            )
    return differences


def fusion_start(members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Rename the members' tensors to the fusion's: `layers.0.ffn...` of member k is `layers.0.member<k>.ffn...`.

    The result is the trainer's `start`. Raises Incompatible for members whose tensors differ from the first's.
    """
    start: dict[str, Tensor] = {}
    for number, tensors in enumerate(members):
        dense = {name: tensor for name, tensor in tensors.items() if not is_mask(name)}
        unexpected = sorted(name for name in dense if not name.startswith("layers."))
        differing = sorted({*dense} ^ {name for name in members[0] if not is_mask(name)})
        if unexpected or differing:
            raise Incompatible(
                f"Member {number + 1} is no bottleneck adapter like the first: its tensors differ by "
                f"{(unexpected or differing)[0]!r}.",
                param="members",
            )
        for name, tensor in dense.items():
            _, layer, rest = name.split(".", 2)
            start[f"layers.{layer}.member{number}.{rest}"] = tensor
    return start
