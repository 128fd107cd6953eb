"""The forward passes: tensors in, log-likelihoods, vectors or logits out. Knows no queues and no requests.

Used by the engine thread only, which is what makes hooks on the shared base model safe. Rows that generate together
form a group with one key-value cache, padded on the left; positions and mask are explicit, so that a row computes
what it computes alone. Rows join a group by padding the shorter cache, and leave by selection. An adapter may put
states of its own before all others (a prefix): the cache then has more columns than the mask, in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache

from registry.adapters import AdapterModule, attached
from registry.base_model import LoadedBase
from registry.errors import Internal
from registry.likelihood import hidden_states, lm_logits, log_probs_of, log_probs_of_next, mean_pool, padded
from service.engine.packing import Packing, Piece, first_position, packed_states
from service.engine.request import PromptScores, TopTokens
from service.engine.sampler import chosen_log_probs, log_probs, top_tokens
from service.engine.scheduler import Key

PAD = 0
"""The id of padding: any will do, the mask hides it."""

LOGIT_CELLS = 2**24
"""Logits of a prompt computed at a time: 64 MiB of fp32."""


@dataclass
class Group:
    """Rows that generate together: `mask` (rows, time) marks their tokens in the cache."""

    rows: list[int]
    cache: DynamicCache
    mask: Tensor

    @property
    def before(self) -> int:
        """Columns of the cache before those of the mask: states that an adapter put there, and every row sees."""
        return self.cache.get_seq_length() - self.mask.shape[1]


class Runner:
    """Runs base models with at most one adapter attached, and keeps the caches of rows that generate."""

    def __init__(self) -> None:
        self._groups: dict[Key, Group] = {}

    # --- one pass -------------------------------------------------------------------------------

    @torch.inference_mode()
    def score(
        self, base: LoadedBase, adapter: AdapterModule | None, windows: Sequence[Sequence[int]], *, bos: Sequence[bool]
    ) -> tuple[list[float] | None, np.ndarray]:
        """NLL in nats of each window (summed in fp64), and float32 (windows, hidden) means of the last hidden states.

        `bos` says of each window whether its first position is a BOS, which the mean leaves out. An encoder has no
        NLL: None.
        """
        if adapter is not None and adapter.config.prefix_length:
            return self._score_padded(base, adapter, windows, bos=bos)
        device = base.model.device
        lengths = torch.tensor([len(window) for window in windows], device=device)
        ids = torch.tensor([token for window in windows for token in window], device=device)
        starts = lengths.cumsum(0) - lengths
        window_of = torch.repeat_interleave(lengths)  # of each token
        places = torch.arange(len(ids), device=device) - starts[window_of]
        pieces = [Piece(start, len(window)) for start, window in zip(starts.tolist(), windows, strict=True)]
        causal = base.shape.kind == "causal"
        with _with(base, adapter):
            positions = places + first_position(base.model)
            hidden = packed_states(base.model, ids, positions, Packing(pieces, causal=causal))
            nll = _nll(base, hidden, ids, window_of, len(windows)) if causal else None
        pooled = (places > 0) | ~torch.tensor(bos, device=device)[window_of]
        return nll, _means(hidden, pooled, window_of, len(windows)).cpu().numpy()

    def _score_padded(
        self, base: LoadedBase, adapter: AdapterModule, windows: Sequence[Sequence[int]], *, bos: Sequence[bool]
    ) -> tuple[list[float], np.ndarray]:
        """The same for an adapter that puts states of its own before each window: one window a row."""
        ids, mask = padded(windows, pad_id=PAD, device=base.model.device)
        with attached(base.model, adapter):
            hidden = hidden_states(base.model, ids, mask)
            nll: list[float] = (-log_probs_of_next(base.model, hidden, ids, mask).double().sum(dim=1)).tolist()
        pooled = mask.clone()
        pooled[:, 0] *= torch.tensor([not flag for flag in bos], device=mask.device)
        return nll, mean_pool(hidden, pooled).cpu().numpy()

    # --- generation -----------------------------------------------------------------------------

    @torch.inference_mode()
    def prefill(
        self,
        key: Key,
        base: LoadedBase,
        adapter: AdapterModule | None,
        prompts: Mapping[int, Sequence[int]],
        *,
        scored: Mapping[int, int],
    ) -> tuple[Tensor, dict[int, PromptScores]]:
        """Take prompts, by row id, into the group of `key`; gives the logits (rows, vocabulary) of their next tokens.

        `scored` names rows whose prompt's log-probabilities are wanted, with the number of alternatives.
        """
        ids, mask = left_padded(list(prompts.values()), device=base.model.device)
        cache = DynamicCache()
        with _with(base, adapter):
            hidden = _forward(base, ids, mask, cache)
            logits = lm_logits(base.model, hidden[:, -1]).float()
            scores = {
                row: _prompt_scores(base, hidden[number, -len(prompt) :], prompt, scored[row])
                for number, (row, prompt) in enumerate(prompts.items())
                if row in scored
            }
        group = Group(list(prompts), cache, mask)
        known = self._groups.get(key)
        self._groups[key] = group if known is None else _merged(known, group)
        return logits, scores

    @torch.inference_mode()
    def decode(self, key: Key, base: LoadedBase, adapter: AdapterModule | None, tokens: Mapping[int, int]) -> Tensor:
        """Feed each row of a group its newest token, in the order in which they joined; logits (rows, vocabulary)."""
        group = self._groups[key]
        if group.rows != list(tokens):
            raise Internal("the rows of a decode step are not those of its group")
        ids = torch.tensor([[token] for token in tokens.values()], device=base.model.device)
        group.mask = F.pad(group.mask, (0, 1), value=1)
        with _with(base, adapter):
            hidden = _forward(base, ids, group.mask, group.cache)
            return lm_logits(base.model, hidden[:, -1]).float()

    @torch.inference_mode()
    def retain(self, alive: Mapping[Key, Sequence[int]]) -> None:
        """Forget the caches of all rows but these."""
        for key, group in list(self._groups.items()):
            wanted = set(alive.get(key, ()))
            kept = [number for number, row in enumerate(group.rows) if row in wanted]
            if not kept:
                del self._groups[key]
            elif len(kept) < len(group.rows):
                self._groups[key] = _selected(group, kept)


def _nll(base: LoadedBase, hidden: Tensor, ids: Tensor, window_of: Tensor, count: int) -> list[float]:
    """NLL in nats of each of `count` windows, summed in fp64, from hidden states (tokens, hidden) of all of them."""
    scored = window_of[1:] == window_of[:-1]  # a token is predicted by the one before it in its window
    found = log_probs_of(base.model, hidden[:-1][scored], ids[1:][scored]).double()
    sums = torch.zeros(count, dtype=torch.float64, device=found.device)
    nll: list[float] = (-sums.index_add_(0, window_of[1:][scored], found)).tolist()
    return nll


def _means(hidden: Tensor, pooled: Tensor, window_of: Tensor, count: int) -> Tensor:
    """fp32 (count, hidden): each window's mean over its `pooled` tokens; zeros where there is none."""
    weight = pooled.to(torch.float32)
    sums = torch.zeros((count, hidden.shape[-1]), device=hidden.device)
    sums.index_add_(0, window_of, hidden.float() * weight[:, None])
    counts = torch.zeros(count, device=hidden.device).index_add_(0, window_of, weight)
    return sums / counts.clamp(min=1.0)[:, None]


def _with(base: LoadedBase, adapter: AdapterModule | None) -> AbstractContextManager[None]:
    return nullcontext() if adapter is None else attached(base.model, adapter)


def _forward(base: LoadedBase, ids: Tensor, mask: Tensor, cache: DynamicCache) -> Tensor:
    """Last hidden states (rows, new, hidden) of the newest `ids` (rows, new); `mask` covers the cache and these."""
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -ids.shape[1] :]
    out = base.model.base_model(
        input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
    )
    hidden: Tensor = out.last_hidden_state
    return hidden


def left_padded(rows: Sequence[Sequence[int]], *, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Ids and mask (rows, longest), int64, padded on the left."""
    longest = max(map(len, rows))
    ids = torch.tensor([[*[PAD] * (longest - len(row)), *row] for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


def _prompt_scores(base: LoadedBase, hidden: Tensor, prompt: Sequence[int], count: int) -> PromptScores:
    """Scores of a prompt from its hidden states (tokens, hidden), some positions at a time."""
    chosen: list[float | None] = [None]
    tops: list[TopTokens | None] = [None]
    size = max(1, LOGIT_CELLS // base.shape.vocab_size)
    for start in range(0, len(prompt) - 1, size):
        following = prompt[start + 1 : start + 1 + size]
        scores = log_probs(lm_logits(base.model, hidden[start : start + len(following)]))
        chosen += chosen_log_probs(scores, following)
        tops += top_tokens(scores, count)
    return PromptScores(tuple(chosen), tuple(tops))


def _merged(one: Group, two: Group) -> Group:
    """Both groups as one: the shorter cache is padded on the left."""
    longest = max(one.mask.shape[1], two.mask.shape[1])
    masks, caches = [], []
    for group in (one, two):
        missing = longest - group.mask.shape[1]
        masks.append(F.pad(group.mask, (missing, 0)))
        caches.append([
            (_padded_after(keys, group.before, missing), _padded_after(values, group.before, missing))
            for keys, values in _layers(group.cache)
        ])  # fmt: skip
    pairs = zip(caches[0], caches[1], strict=True)
    cache = _cache([(torch.cat([k1, k2]), torch.cat([v1, v2])) for (k1, v1), (k2, v2) in pairs])
    return Group([*one.rows, *two.rows], cache, torch.cat(masks))


def _padded_after(states: Tensor, before: int, count: int) -> Tensor:
    """Keys or values (rows, heads, time, size) with `count` empty positions after the first `before`."""
    if before == 0 or count == 0:
        return F.pad(states, (0, 0, count, 0))
    return torch.cat([F.pad(states[:, :, :before], (0, 0, 0, count)), states[:, :, before:]], dim=2)


def _chosen(states: Tensor, rows: Sequence[int], before: int, first: int) -> Tensor:
    """Some rows of keys or values, without `first` columns after the first `before`."""
    states = states[list(rows)]
    kept = states[:, :, before + first :]
    return kept if before == 0 else torch.cat([states[:, :, :before], kept], dim=2)


def _selected(group: Group, kept: Sequence[int]) -> Group:
    """Some rows of a group, by number; columns that are padding in all of them go."""
    rows = list(kept)
    mask = group.mask[rows]
    first = int(mask.any(dim=0).int().argmax())
    before = group.before
    cache = _cache([
        (_chosen(k, rows, before, first), _chosen(v, rows, before, first)) for k, v in _layers(group.cache)
    ])  # fmt: skip
    return Group([group.rows[number] for number in rows], cache, mask[:, first:])


def _layers(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values of every layer, each (rows, heads, time, size)."""
    layers: Any = cache.layers
    return [(layer.keys, layer.values) for layer in layers]


def _cache(layers: Sequence[tuple[Tensor, Tensor]]) -> DynamicCache:
    """A cache of these keys and values."""
    cache = DynamicCache()
    for number, (keys, values) in enumerate(layers):
        cache.update(keys, values, number)
    return cache
