"""Uses of the sample that train nothing: passages before each text in the prompt, and kNN-LM (Khandelwal et al., 2020).

Called by `ladder` in a process of its own.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.soups.trained import Passages, Rung, nll_of, windows_of
from registry.base_model import LoadedBase
from registry.base_model.likelihood import log_probs_of, scored_log_probs

SEPARATOR = "\n\n"
PROMPT_TOKENS = 8192
"""The most tokens of a prompt with its text, also where the base model's context is longer."""
NEIGHBOURS = 1024
SHARES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""Weights of the neighbours' distribution to choose from."""
TEMPERATURES = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Temperatures to choose from, over the mean squared distance to the nearest neighbour."""


def prompted(base: LoadedBase, passages: Passages) -> list[Rung]:
    """The base with as much of the sample as fits in front of each text, whose keys and values are computed once."""
    limit = min(base.shape.context, PROMPT_TOKENS)
    longest = max(len(base.tokenize(text)) for text in passages.test)
    # a long context leaves room for every text, as nothing can be cut from the cache of a sliding window
    most = limit - longest if longest < limit / 2 else limit
    began = time.perf_counter()
    prompt = _Prompt.of(base, SEPARATOR.join(passages.sample) + SEPARATOR, most)
    seconds = time.perf_counter() - began
    return [Rung(tuple(prompt.nll(base, text, limit) for text in passages.test), seconds)]


@dataclass(frozen=True)
class _Prompt:
    """Tokens that the base has read: their keys and values, and last hidden states (tokens, hidden)."""

    cache: Any
    states: Tensor

    @classmethod
    @torch.inference_mode()
    def of(cls, base: LoadedBase, text: str, most: int) -> _Prompt:
        """The first `most` tokens of a text, read."""
        ids = torch.tensor([base.tokenize(text)[:most]], device=base.model.device)
        out = base.model.base_model(input_ids=ids, use_cache=True)
        return cls(out.past_key_values, out.last_hidden_state[0])

    @torch.inference_mode()
    def nll(self, base: LoadedBase, text: str, limit: int) -> float:
        """NLL of a text after as many of these tokens, from the first, as leave room for it; alone if none do."""
        ids = torch.tensor([base.tokenize(text, bos=False)], device=base.model.device)
        room = min(limit - ids.shape[1], len(self.states))
        if room < 1:
            return nll_of(base, [text])[0]
        cache = copy.deepcopy(self.cache)
        if room < len(self.states):
            cache.crop(room - len(self.states))
        out = base.model.base_model(input_ids=ids, past_key_values=cache, use_cache=True)
        states = torch.cat([self.states[room - 1 : room], out.last_hidden_state[0, :-1]])
        first = 0 if base.entry.bos and base.bos_id is not None else 1  # the base alone does not score it
        return -float(log_probs_of(base.model, states[first:], ids[0, first:]).double().sum())


@dataclass(frozen=True)
class _Tokens:
    """Tokens of texts: what the base knew before each, the token, its log-probability, and the number of its text.

    `keys` (tokens, hidden) are the inputs of the last layer's feed-forward module, the paper's choice.
    """

    keys: Tensor
    targets: Tensor
    log_probs: Tensor
    text: np.ndarray


def nearest_neighbours(base: LoadedBase, passages: Passages) -> list[Rung]:
    """The base mixed with the tokens that followed similar contexts in the sample (kNN-LM).

    Share and temperature are chosen on held-out passages.
    """
    began = time.perf_counter()
    store = _tokens_of(base, passages.sample)
    held_out = _tokens_of(base, passages.held_out)
    distances, hits = _neighbours(store, held_out)
    scale = float(distances[:, 0].mean())
    settings = [(share, scale * temperature) for share in SHARES for temperature in TEMPERATURES]
    losses = [-float(_mixed(held_out, distances, hits, *setting).mean()) for setting in settings]
    chosen = int(np.argmin(losses))
    seconds = time.perf_counter() - began
    test = _tokens_of(base, passages.test)
    log_probs = _mixed(test, *_neighbours(store, test), *settings[chosen]).double().numpy()
    nll = np.bincount(test.text, weights=-log_probs, minlength=len(passages.test))
    return [Rung(tuple(nll.tolist()), seconds, losses[chosen])]


def _tokens_of(base: LoadedBase, texts: Sequence[str]) -> _Tokens:
    feed_forward = [module for name, module in base.model.named_modules() if name.endswith("mlp")][-1]
    inputs: list[Tensor] = []
    hook = feed_forward.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    rows = list(_rows(base, texts, inputs))
    hook.remove()
    keys, targets, log_probs, numbers = zip(*rows, strict=True)
    text = np.repeat(numbers, [len(row) for row in targets])
    return _Tokens(torch.cat(keys), torch.cat(targets), torch.cat(log_probs), text)


@torch.inference_mode()
def _rows(base: LoadedBase, texts: Sequence[str], inputs: list[Tensor]) -> Iterator[tuple[Tensor, Tensor, Tensor, int]]:
    """Keys, tokens and log-probabilities of each window of the texts, and the number of its text."""
    for number, cut in enumerate(windows_of(base, texts)):
        for window in cut:
            inputs.clear()
            positions = slice(window.start - 1, len(window.ids) - 1)
            log_probs = scored_log_probs(cast(nn.Module, base.model), [window], pad_id=0)[0]
            yield (
                inputs[0][0, positions].float(),
                torch.tensor(window.ids[window.start :]),
                log_probs[positions],
                number,
            )


@torch.inference_mode()
def _neighbours(store: _Tokens, queries: _Tokens) -> tuple[Tensor, Tensor]:
    """Squared distances of the nearest stored keys to each query, the nearest first, and if their token is its own."""
    count = min(NEIGHBOURS, len(store.targets))
    distances, hits = [], []
    for keys, targets in zip(torch.split(queries.keys, 256), torch.split(queries.targets, 256), strict=True):
        nearest = torch.cdist(keys, store.keys).square().topk(count, largest=False)
        distances.append(nearest.values)
        hits.append(store.targets[nearest.indices] == targets[:, None])
    return torch.cat(distances), torch.cat(hits)


def _mixed(tokens: _Tokens, distances: Tensor, hits: Tensor, share: float, temperature: float) -> Tensor:
    """Log-probabilities of tokens under the base with `share` of the distribution of their neighbours."""
    by_neighbours = (torch.softmax(-distances / temperature, dim=1) * hits).sum(dim=1)
    return torch.log((1 - share) * tokens.log_probs.exp() + share * by_neighbours)
