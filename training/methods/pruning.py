"""Pruning an adapter before it is trained: SparseAdapter (He et al., Findings of EMNLP 2022, section 2).

Called by the trainer between the adapter's start and its first step. Exactly k = round(s N) of the N entries of the
projections are set to zero and stay there; with scope 'layer', of each projection. Their gradients are cleared before
clipping and AdamW read them.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from registry.adapters import AdapterModule
from registry.adapters.masks import add_masks, keep_highest, mask_name, pack, projections, unpack
from registry.errors import InvalidParameter
from registry.spec import SCORING_PASSES, AdapterConfig, Pruned
from training.hyperparameters import PruningOptions
from training.methods.pruning_scores import Loss, Scores, scores_of

Masks = dict[str, Tensor]
"""bool by the name of a weight, of its shape; False where it is pruned."""


def prune(
    adapter: AdapterModule, loss: Loss, rows: np.ndarray, options: PruningOptions, *, batch: int, data_digest: str
) -> AdapterModule:
    """Prune the module in place: entries at zero for good, masks and configuration to match. Returns the module.

    `loss` is that of rows (batch, width) with the adapter attached; scores that need gradients take them on
    `options.batches` batches of `batch` of the int64 `rows`, drawn by `options.seed`. In a union, every member with
    projections is pruned to the same share. Raises InvalidParameter for a share that rounds to none or all, and useless
    scores (`pruning_scores.scores_of`).
    """
    parameters = {name: value for name, value in adapter.named_parameters() if value.requires_grad}
    names_by_prefix = projections(adapter.config, parameters)
    weights = {name: parameters[name] for names in names_by_prefix.values() for name in names}
    batches = _batches(rows, options, batch=batch) if options.score in SCORING_PASSES else []
    scores = scores_of(options.score, weights, loss, batches, seed=options.seed)
    pruned: dict[str, Pruned] = {}
    masks: Masks = {}
    for prefix, names in names_by_prefix.items():
        prefix_masks = masks_of({name: scores[name] for name in names}, options)
        masks |= prefix_masks
        pruned[prefix] = Pruned(
            **options.model_dump(include={"score", "sparsity", "scope", "seed"}),
            masked=sum(int((~keep).sum()) for keep in prefix_masks.values()),
            data=data_digest if options.score in SCORING_PASSES else None,
        )
    _apply_masks(adapter, adapter.config.with_pruned(pruned), masks)
    return adapter


def _batches(rows: np.ndarray, options: PruningOptions, *, batch: int) -> list[Tensor]:
    """Draw batches of rows without replacement, int64 (at most `batch`, width) each; fewer if the rows run out."""
    rng = np.random.Generator(np.random.PCG64(options.seed))
    drawn = rows[np.sort(rng.permutation(len(rows))[: options.batches * batch])]
    return [torch.from_numpy(drawn[start : start + batch]) for start in range(0, len(drawn), batch)]


# --- choosing entries --------------------------------------------------------------------------


def masks_of(scores: Scores, options: PruningOptions) -> Masks:
    """Masks without the lowest scores: overall, within each projection, or with Erdos-Renyi densities."""
    by_layer = options.scope == "layer"
    if by_layer and options.score == "erdos_renyi":
        raise InvalidParameter(
            "Score 'erdos_renyi' sets the density of each layer itself: leave 'scope' at 'global', or choose 'random'.",
            param="scope",
        )
    total = sum(score.numel() for score in scores.values())
    counts = {name: round(options.sparsity * score.numel()) for name, score in scores.items()}
    masked = sum(counts.values()) if by_layer else round(options.sparsity * total)
    if not 0 < masked < total:
        raise InvalidParameter(
            f"Sparsity {options.sparsity:g} of {total} entries{', rounded in each projection,' if by_layer else ''} is "
            f"{masked} entries: it prunes {'none' if masked == 0 else 'all'} of them.",
            param="sparsity",
        )
    if options.score == "erdos_renyi":
        counts = _erdos_renyi(scores, masked)
    elif not by_layer:
        return keep_highest(scores, masked)
    return {name: keep_highest({name: score}, counts[name])[name] for name, score in scores.items()}


def _erdos_renyi(scores: Scores, masked: int) -> dict[str, int]:
    """Entries to prune of each projection: unpruned ones in proportion to inputs + outputs.

    A layer's density is proportional to (n_in + n_out) / (n_in n_out) (Mocanu et al., 2018; Evci et al., ICML 2020).
    Counts are rounded by largest remainder, ties to the earlier, so that they sum to `masked`.
    """
    sizes = {name: score.numel() for name, score in scores.items()}
    spans = {name: sum(score.shape) for name, score in scores.items()}
    full: set[str] = set()
    while True:
        free = [name for name in scores if name not in full]
        remaining = sum(sizes.values()) - masked - sum(sizes[name] for name in full)
        rate = Fraction(remaining, sum(spans[name] for name in free))
        overfull = {name for name in free if rate * spans[name] > sizes[name]}
        if not overfull:
            break
        full |= overfull
    shares = {name: Fraction(sizes[name]) if name in full else rate * spans[name] for name in scores}
    counts = {name: int(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: counts[name] - shares[name])  # stable: ties to the earlier
    for name in by_remainder[: sum(sizes.values()) - masked - sum(counts.values())]:
        counts[name] += 1
    return {name: sizes[name] - counts[name] for name in scores}


# --- applying masks --------------------------------------------------------------------------------


@torch.no_grad()
def _apply_masks(adapter: AdapterModule, config: AdapterConfig, masks: Mapping[str, Tensor]) -> None:
    """Zero pruned entries, set the module's masks and configuration, and clear gradients from now on."""
    _configure(adapter, config)
    add_masks(adapter)
    for name, keep in masks.items():
        linear = adapter.get_submodule(name.rpartition(".")[0])
        assert isinstance(linear, nn.Linear)
        linear.weight.masked_fill_(~keep.to(linear.weight.device), 0.0)
        adapter.get_buffer(mask_name(name)).copy_(pack(keep))
        linear.weight.register_post_accumulate_grad_hook(partial(_clear_pruned, linear))  # type: ignore[no-untyped-call]


def _configure(adapter: AdapterModule, config: AdapterConfig) -> None:
    """Set the configuration of a module, and of the members of a union."""
    adapter.config = config
    for prefix, member_config in config.prunable().items():
        if prefix:
            member = adapter.get_submodule(prefix.removesuffix("."))
            assert isinstance(member, AdapterModule)
            member.config = member_config


def _clear_pruned(linear: nn.Linear, weight: Tensor) -> None:
    """Clear the gradient of a projection's pruned entries, by its mask, which a restored checkpoint may have set."""
    assert weight.grad is not None  # it has just been accumulated
    keep = unpack(linear.get_buffer("mask"), weight.shape)
    weight.grad.masked_fill_(~keep.to(weight.device), 0.0)
