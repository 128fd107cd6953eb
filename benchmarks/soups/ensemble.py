"""The ensemble of logits, which `benchmarks.adaptersoup` compares with the soup of the same adapters.

AdapterSoup, table 3. Each adapter reads every text, so it costs as many passes as there are adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from benchmarks.soups.cells import Cell, clustering_members, names_by_digest, scored, scores_of
from benchmarks.soups.greedy import bank_of
from benchmarks.soups.setting import Setting
from benchmarks.soups.trained import windows_of
from registry.adapters import AdapterModule, attached, from_tensors
from registry.adapters.weights import load_tensors
from registry.base_model import LoadedBase, load_base
from registry.base_model.likelihood import Window, chosen_log_probs, hidden_states, lm_logits
from registry.names import digest_of
from registry.spec import BaseEntry


def clustering_ensemble(setting: Setting, cell: Cell) -> np.ndarray:
    """NLL in nats of a domain's test passages under the mean logits of the clustering soup's adapters, (passages,).

    The base's NLL if the selector abstains. Results are stored with the scores.
    """
    texts, digests = setting.test(cell.domain), clustering_members(setting, cell)
    if not digests:
        return scored(setting, cell.domain, setting.base, None)[0]

    def score() -> dict[str, Any]:
        members = _members(setting, digests)
        return scores_of(setting, cell.domain, ensemble_nll(_base(setting.job.base), members, texts))

    return np.array(setting.scores.get(digest_of(["ensemble of logits", sorted(digests)]), texts, score).nll)


@torch.inference_mode()
def ensemble_nll(base: LoadedBase, members: Sequence[AdapterModule], texts: Sequence[str]) -> list[float]:
    """NLL in nats of each text under the mean of the members' logits."""
    return [sum(_nll(base, members, window) for window in windows) for windows in windows_of(base, texts)]


def _nll(base: LoadedBase, members: Sequence[AdapterModule], window: Window) -> float:
    ids = torch.tensor([window.ids], device=base.model.device)
    logits = []
    for member in members:
        with attached(base.model, member):
            states = hidden_states(base.model, ids, torch.ones_like(ids))
            logits.append(lm_logits(base.model, states[0, window.start - 1 : -1]).float())
    mean = torch.stack(logits).mean(dim=0)
    return -float(chosen_log_probs(mean, ids[0, window.start :]).double().sum())


@lru_cache(maxsize=1)
def _base(entry: BaseEntry) -> LoadedBase:
    return load_base(entry)


def _members(setting: Setting, digests: Sequence[str]) -> list[AdapterModule]:
    """The adapters of the bank with these digests."""
    names, shape = names_by_digest(setting), _base(setting.job.base).shape
    bank = bank_of(setting.job.adapters, {names[digest]: digest for digest in digests}, shape)
    return [from_tensors(member.config, shape, load_tensors(member.weights)) for member in bank.values()]
