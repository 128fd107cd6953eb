"""What a fusion starts from: trained adapters of one structure, which stay as they are (Pfeiffer et al., EACL 2021).

Called by whoever trains a fusion, with the configurations and tensors of the adapters it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from registry.adapters.masks import is_mask
from registry.errors import Incompatible
from registry.spec import AdapterConfig, BottleneckConfig, FusionConfig


def fusion_config(members: Sequence[AdapterConfig]) -> FusionConfig:
    """The fusion of adapters of these configurations; raises Incompatible with every reason against it.

    A pruned member is kept with its zeros; that they were pruned is no longer said of it.
    """
    problems = []
    if len(members) < 2:
        problems.append(f"A fusion has at least 2 members, and {len(members)} came.")
    others = [f"number {i} is {one.method}" for i, one in enumerate(members, 1) if FusionConfig.member_of(one) is None]
    if others:
        problems.append(f"The members of a fusion are bottleneck adapters; {', '.join(others[:4])}.")
    kinds = [kind.dense() for one in members if (kind := FusionConfig.member_of(one)) is not None]
    if any(kind.structure == "houlsby" for kind in kinds):
        problems.append("Members of structure 'houlsby' act at two places of a layer, and a fusion at one.")
    problems += _differences(kinds)
    if problems:
        raise Incompatible(f"These adapters cannot be fused: {problems[0]}", param="members", problems=problems)
    return FusionConfig(member=kinds[0], members=len(members))


def _differences(kinds: Sequence[BottleneckConfig]) -> list[str]:
    """One sentence for every field of the configurations that is not the same in all."""
    found = []
    for name in BottleneckConfig.model_fields:
        values = list(dict.fromkeys(str(getattr(kind, name)) for kind in kinds))
        if len(values) > 1:
            found.append(f"The members of a fusion are of one structure, and their {name!r} is {' or '.join(values)}.")
    return found


def fusion_start(config: FusionConfig, members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The trained adapters as the fusion's tensors: member k's `layers.0.ffn...` is `layers.0.member<k>.ffn...`.

    To be given to the trainer as `start`. Raises Incompatible for another number of members than `config` has, or for
    members with other tensors than each other.
    """
    if len(members) != config.members:
        raise Incompatible(f"The fusion has {config.members} members, and {len(members)} came.", param="members")
    start: dict[str, Tensor] = {}
    for number, tensors in enumerate(members):
        own = {name: tensor for name, tensor in tensors.items() if not is_mask(name)}
        strange = sorted(name for name in own if not name.startswith("layers."))
        differing = sorted({*own} ^ {name for name in members[0] if not is_mask(name)})
        if strange or differing:
            raise Incompatible(
                f"Member {number + 1} is no bottleneck adapter like the first: its tensors differ by "
                f"{(strange or differing)[0]!r}.",
                param="members",
            )
        for name, tensor in own.items():
            _, layer, rest = name.split(".", 2)
            start[f"layers.{layer}.member{number}.{rest}"] = tensor
    return start
