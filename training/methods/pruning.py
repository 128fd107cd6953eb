"""Pruning an adapter before it is trained: SparseAdapter (He et al., Findings of EMNLP 2022, section 2).

Called by the trainer between the adapter's start and its first step. Exactly k = round(s N) of the N entries of the
projections are set to zero, and held there: their gradients are cleared before anything sees them, so that clipping,
AdamW's moments and its weight decay leave them at 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor, nn

from registry.adapters import AdapterModule
from registry.adapters.masks import add_masks, keep_highest, mask_name, pack, projections, unpack
from registry.errors import InvalidParameter
from registry.spec import AdapterConfig, Pruned
from training.hyperparameters import PruningOptions
from training.methods.pruning_scores import NEEDS_GRADIENTS, Loss, Scores, scores_of

Masks = dict[str, Tensor]
"""bool by the name of a weight, of its shape; False where it is pruned."""


def prune(
    adapter: AdapterModule, loss: Loss, rows: np.ndarray, options: PruningOptions, *, batch: int, data_digest: str
) -> AdapterModule:
    """The same module with some entries at zero for good, and what is pruned in its configuration.

    `loss` is that of rows (batch, width) with the adapter attached; scores that need gradients take them on
    `options.batches` batches of `batch` of the int64 `rows`, drawn by `options.seed`. Of a union, every member with
    projections is pruned to the same share. Raises InvalidParameter for an adapter that has no projections or is
    pruned already, a share that is none or all of them, and scores that say nothing (`pruning_scores.scores_of`).
    """
    parts = _parts(adapter)
    parameters = dict(adapter.named_parameters())
    weights = {name: parameters[name] for names in parts.values() for name in names}
    drawn = _batches(rows, options, batch=batch) if options.score in NEEDS_GRADIENTS else []
    scores = scores_of(options.score, weights, loss, drawn, seed=options.seed)
    pruned: dict[str, Pruned] = {}
    masks: Masks = {}
    for prefix, names in parts.items():
        own = chosen({name: scores[name] for name in names}, options)
        masks |= own
        pruned[prefix] = Pruned(
            **options.model_dump(include={"score", "sparsity", "scope", "seed"}),
            masked=sum(int((~keep).sum()) for keep in own.values()),
            data=data_digest if options.score in NEEDS_GRADIENTS else None,
        )
    _put_on(adapter, adapter.config.with_pruned(pruned), masks)
    return adapter


def _parts(adapter: AdapterModule) -> dict[str, list[str]]:
    """Names of the weights that can be pruned, by the prefix of the part they are of."""
    if adapter.config.prunings():
        raise InvalidParameter("The adapter is pruned already: it is done once, at its start.", param="pruning")
    trained = [name for name, parameter in adapter.named_parameters() if parameter.requires_grad]
    parts = projections(adapter.config, trained)
    if not any(parts.values()):
        raise InvalidParameter(
            f"This {adapter.config.method} adapter has no projections to prune: bottlenecks, LoRAs, fusions and unions "
            "of them have.",
            param="pruning",
        )
    return parts


def _batches(rows: np.ndarray, options: PruningOptions, *, batch: int) -> list[Tensor]:
    """Rows drawn without replacement, int64 (at most `batch`, width) each; fewer where there are not so many."""
    rng = np.random.Generator(np.random.PCG64(options.seed))
    taken = rows[np.sort(rng.permutation(len(rows))[: options.batches * batch])]
    return [torch.from_numpy(taken[start : start + batch]) for start in range(0, len(taken), batch)]


# --- how many, and which --------------------------------------------------------------------------


def chosen(scores: Scores, options: PruningOptions) -> Masks:
    """Masks that leave out the lowest scores: over all, within each projection, or as Erdos-Renyi deals them."""
    sizes = {name: score.numel() for name, score in scores.items()}
    total = sum(sizes.values())
    masked = round(options.sparsity * total)
    if not 0 < masked < total:
        raise InvalidParameter(
            f"Sparsity {options.sparsity:g} of {total} entries is {masked}: it prunes "
            f"{'none' if masked == 0 else 'all'} of them.",
            param="sparsity",
        )
    if options.score == "erdos_renyi":
        counts = _erdos_renyi(scores, masked, options)
    elif options.scope == "layer":
        counts = {name: round(options.sparsity * size) for name, size in sizes.items()}
    else:
        return keep_highest(scores, masked)
    return {name: keep_highest({name: score}, counts[name])[name] for name, score in scores.items()}


def _erdos_renyi(scores: Scores, masked: int, options: PruningOptions) -> dict[str, int]:
    """Entries to prune of each projection: kept ones in proportion to inputs + outputs, and no more than there are.

    A layer's density is proportional to (n_in + n_out) / (n_in n_out) (Mocanu et al., 2018; Evci et al., ICML 2020).
    Whole entries are dealt by largest remainder, ties to the earlier, so that `masked` is met exactly.
    """
    if options.scope == "layer":
        raise InvalidParameter(
            "Score 'erdos_renyi' says itself how dense each layer is: leave 'scope' at 'global', or choose 'random'.",
            param="scope",
        )
    sizes = {name: score.numel() for name, score in scores.items()}
    spans = {name: sum(score.shape) for name, score in scores.items()}
    full: set[str] = set()
    while True:
        free = [name for name in scores if name not in full]
        left = sum(sizes.values()) - masked - sum(sizes[name] for name in full)
        rate = Fraction(left, sum(spans[name] for name in free))
        over = {name for name in free if rate * spans[name] > sizes[name]}
        if not over:
            break
        full |= over
    shares = {name: Fraction(sizes[name]) if name in full else rate * spans[name] for name in scores}
    kept = {name: int(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: kept[name] - shares[name])  # stable: ties to the earlier
    for name in by_remainder[: sum(sizes.values()) - masked - sum(kept.values())]:
        kept[name] += 1
    return {name: sizes[name] - kept[name] for name in scores}


# --- zero for good --------------------------------------------------------------------------------


@torch.no_grad()
def _put_on(adapter: AdapterModule, config: AdapterConfig, masks: Mapping[str, Tensor]) -> None:
    """Zero what is pruned, give the module its masks and its configuration, and clear gradients from now on."""
    _configure(adapter, config)
    add_masks(adapter)
    for name, keep in masks.items():
        linear = adapter.get_submodule(name.rpartition(".")[0])
        assert isinstance(linear, nn.Linear)
        linear.weight.masked_fill_(~keep.to(linear.weight.device), 0.0)
        adapter.get_buffer(mask_name(name)).copy_(pack(keep))
        linear.weight.register_post_accumulate_grad_hook(_Cleared(linear))  # type: ignore[no-untyped-call]


def _configure(adapter: AdapterModule, config: AdapterConfig) -> None:
    """The configuration of a module, and of the members of a union."""
    adapter.config = config
    for prefix, one in config.prunable().items():
        if prefix:
            member = adapter.get_submodule(prefix.removesuffix("."))
            assert isinstance(member, AdapterModule)
            member.config = one


class _Cleared:
    """Clears the gradient of what a projection's mask leaves out, whenever one has been accumulated.

    The mask is unpacked where it is another than before: a checkpoint that is gone on from brings its own.
    """

    def __init__(self, linear: nn.Linear) -> None:
        self._linear = linear
        self._of: tuple[Tensor, int] | None = None
        self._out = torch.empty(0, dtype=torch.bool)

    def __call__(self, weight: Tensor) -> None:
        assert weight.grad is not None  # it has just been accumulated
        weight.grad.masked_fill_(self._left_out(weight), 0.0)

    def _left_out(self, weight: Tensor) -> Tensor:
        mask = self._linear.get_buffer("mask")
        if self._of is None or self._of[0] is not mask or self._of[1] != mask._version:
            self._of = mask, mask._version
            self._out = ~unpack(mask, weight.shape).to(weight.device)
        return self._out
