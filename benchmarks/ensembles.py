"""What else a sample is good for: ensembles of all adapters, the sample before the text, its neighbours, a new adapter.

But for a new adapter none of these is one adapter's price, and none is offered by the service: they are what soups are
held against. The domains, samples and test passages are those of `benchmarks.adaptersoup`, whose `--home` is taken,
without its server.

- `even ensemble`: the mean of the probabilities that all adapters give a token, each in a pass of its own.
- `em ensemble`: the same with weights that make the sample most likely, the base among the adapters.
- `prefix`: as many passages of the sample as fit stand before each test passage.
- `neighbours`: kNN-LM (Khandelwal et al., ICLR 2020): the base's probability, and that of the tokens that came after
  the most similar states of the sample; share and temperature are chosen on the sample, passage against passage.
- `fresh`, `fresh with dropout`: an adapter near the identity, trained on the sample over two passes at the better of
  two rates. This is one adapter's price; without dropout it is `tune fresh` of `benchmarks.adaptersoup`.

Beside them there is the map of domains (`benchmarks.soups.domain_map`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.report import Result, options
from benchmarks.soups.domain_map import mapped
from benchmarks.soups.fresh import DROPPED, fresh
from benchmarks.soups.setting import LARGEST, TEST, Lengths, Texts, prepared
from demo.results import Figure, Row
from registry.adapters import AdapterModule, from_tensors
from registry.adapters.weights import load_tensors
from registry.base_model import LoadedBase, load_base
from registry.formats import read_directory
from registry.likelihood import hidden_states
from registry.uncertainty import paired_difference
from training.by_losses import expectation_maximisation, token_scores
from training.passages import Row as Tokens
from training.passages import Rows, rows_of

NEIGHBOURS = 32
SHARES, TEMPERATURES = (0.0, 0.1, 0.2, 0.3, 0.5), (0.01, 0.03, 0.1, 0.3)
"""Of neighbours in the mixture; and of their weights, in mean squared distances."""
TUNED_ON = 10
"""Passages of the sample that are scored by the others' neighbours, to choose those two."""


@dataclass
class Datastore:
    """States of passages (tokens, d) and the tokens that came after them (tokens,)."""

    states: Tensor
    after: Tensor

    @classmethod
    def of(cls, base: LoadedBase, rows: Rows) -> Datastore:
        """The states before every predicted token."""
        states = [states_of(base, row) for row in rows]
        return cls(torch.cat(states), torch.cat([torch.tensor(row[1:]) for row in rows]))

    def log_probs(self, states: Tensor, after: Tensor) -> dict[float, np.ndarray]:
        """By temperature: log p (tokens,) that the neighbours of states (tokens, d) give the tokens that came."""
        distances = torch.cdist(states.double(), self.states.double()).square()  # (tokens, stored)
        nearest = distances.topk(min(NEIGHBOURS, len(self.after)), largest=False)
        hit = self.after[nearest.indices] == after[:, None]
        found = {}
        for temperature in TEMPERATURES:
            weights = torch.softmax(-nearest.values / (temperature * distances.mean()), dim=1)
            found[temperature] = (weights * hit).sum(1).clamp_min(1e-12).log().numpy()
        return found


@torch.no_grad()
def states_of(base: LoadedBase, row: Tokens) -> Tensor:
    """The base's last hidden states before each predicted token of one row: (tokens, d)."""
    ids = torch.tensor([row], device=base.model.device)
    return hidden_states(base.model, ids, torch.ones_like(ids))[0, :-1].float().cpu()


def mixed(base: np.ndarray, neighbours: np.ndarray, share: float) -> np.ndarray:
    """log of (1 - share) p_base + share p_neighbours, token by token."""
    return base if share == 0 else np.logaddexp(base + math.log1p(-share), neighbours + math.log(share))


def neighbours(base: LoadedBase, sample: Rows, test: Rows) -> np.ndarray:
    """log p of every predicted token of the test rows by kNN-LM."""
    choosing, others = sample[:TUNED_ON], sample[TUNED_ON:]
    share, temperature = _chosen(base, others, choosing) if others else (0.0, TEMPERATURES[0])
    store = Datastore.of(base, sample)
    near = np.concatenate([_near(base, store, row)[temperature] for row in test])
    return mixed(token_scores(base, None, test), near, share)


def _chosen(base: LoadedBase, others: Rows, choosing: Rows) -> tuple[float, float]:
    """Share and temperature with which the others' neighbours make these rows most likely."""
    store, plain = Datastore.of(base, others), token_scores(base, None, choosing)
    rows = [_near(base, store, row) for row in choosing]
    found: dict[tuple[float, float], float] = {}
    for temperature in TEMPERATURES:
        near = np.concatenate([one[temperature] for one in rows])
        found |= {(share, temperature): float(mixed(plain, near, share).sum()) for share in SHARES}
    return max(found, key=lambda pair: found[pair])


def _near(base: LoadedBase, store: Datastore, row: Tokens) -> dict[float, np.ndarray]:
    return store.log_probs(states_of(base, row), torch.tensor(row[1:]))


@torch.no_grad()
def after_prefix(base: LoadedBase, sample: Rows, row: Tokens) -> np.ndarray:
    """log p of a row's predicted tokens with as many rows of the sample before it as the context holds, in order.

    Each begins with its own BOS, as texts are kept apart in training.
    """
    before: list[int] = []
    for one in sample:
        if len(before) + len(one) + len(row) > base.shape.context:
            break
        before += one
    return token_scores(base, None, [[*before, *row]])[len(before) :]


class Bank:
    """The base model and the adapters of a job, by name."""

    def __init__(self, texts: Texts) -> None:
        job = texts.job
        self.base = load_base(job.base, cache_dir=job.home / "cache")
        self._names, self._folder = job.training, job.adapters

    def adapters(self) -> Iterator[AdapterModule]:
        """One after the other."""
        for name in self._names:
            contents = read_directory(self._folder / name)
            yield from_tensors(contents.config, self.base.shape, load_tensors(contents.weights.read_bytes()))

    def rows(self, texts: Sequence[str]) -> Rows:
        """Tokens of texts, cut at the context; without those that have none to predict."""
        return [row for row in rows_of(self.base, texts, max_tokens=self.base.shape.context) if row]

    def ways(self, sample: Rows, test: Rows) -> dict[str, np.ndarray]:
        """log p of every predicted token of the test rows, by way."""
        base = token_scores(self.base, None, test)
        of_sample, of_test = [token_scores(self.base, None, sample)], [base]
        for adapter in self.adapters():
            of_sample.append(token_scores(self.base, adapter, sample))
            of_test.append(token_scores(self.base, adapter, test))
        weights, every = expectation_maximisation(np.array(of_sample)), np.array(of_test)
        return {
            "base": base,
            "even ensemble": np.logaddexp.reduce(every[1:], axis=0) - math.log(len(every) - 1),
            "em ensemble": np.logaddexp.reduce(every + np.log(np.maximum(weights, 1e-12))[:, None], axis=0),
            "prefix": np.concatenate([after_prefix(self.base, sample, row) for row in test]),
            "neighbours": neighbours(self.base, sample, test),
        }

    def trained(self, sample: Sequence[str], test: Rows) -> dict[str, np.ndarray]:
        """log p of every predicted token of the test rows under new adapters, which learn from the sample."""
        config = read_directory(self._folder / self._names[0]).config
        shares = {"fresh": 0.0, "fresh with dropout": DROPPED}
        adapters = {way: fresh(self.base, config, sample, dropped=share) for way, share in shares.items()}
        return {way: token_scores(self.base, adapter, test) for way, adapter in adapters.items()}


def run(
    texts: Texts, bank: Bank, *, name: str = "ensembles", told: Callable[[str], object] = lambda _said: None
) -> Result:
    """Every way on every domain, against the base, and the map."""
    result = Result(name)
    for domain in texts.job.novel:
        told(domain)
        result.rows += _rows(texts, bank, domain)
    for way in dict.fromkeys(row["way"] for row in result.rows if row["way"] != "base"):
        falls = [row["difference"] for row in result.rows if row["way"] == way]
        note = f"geometric over the base's, {len(falls)} domains, one draw of {texts.largest} passages"
        result.figures[f"{way.replace(' ', '_')}_ratio"] = Figure(math.exp(float(np.mean(falls))), "ratio", note=note)
    told("the map of domains")
    found = mapped(bank.base, texts)
    result.rows += found.rows
    note = "of the training domains' passages, in the first two principal components of the selector's space"
    result.figures["map_variance"] = Figure(found.variance, "share", note=note)
    return result


def _rows(texts: Texts, bank: Bank, domain: str) -> Iterator[Row]:
    """The difference from the base that a domain's test passages show, way by way."""
    passages = texts.sample(domain, size=texts.largest, seed=0)
    sample, test = bank.rows(passages), bank.rows(texts.test(domain))
    tokens = np.array([len(row) - 1 for row in test])
    first = np.concatenate([[0], tokens.cumsum()[:-1]])
    ways = bank.ways(sample, test) | bank.trained(passages, test)
    nll = {way: -np.add.reduceat(found, first) for way, found in ways.items()}
    for way, found in nll.items():
        against = paired_difference(found, nll["base"], tokens)
        yield {
            "domain": domain, "way": way, "passages": texts.largest, "difference": against.difference,
            "standard_error": against.standard_error,
        }  # fmt: skip


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="train/, novel/ and general/ of domains' text")
    parser.add_argument("--base", required=True, help="the base model's folder")
    parser.add_argument("--adapters", type=Path, required=True, help="the bank, in the neutral form")
    parser.add_argument("--passages", type=int, default=TEST, help="test passages of a domain")
    parser.add_argument("--largest", type=int, default=LARGEST, help="passages of the sample")
    parser.add_argument("--longest", type=int, help="characters that passages are cut to; by default as in the demo")
    parser.add_argument(
        "--home", type=Path, default=Path(".reproduce/adaptersoup"), help="that of benchmarks.adaptersoup"
    )
    given = parser.parse_args()
    lengths = Lengths(given.passages, given.largest, given.longest)
    texts = prepared(given.data, given.base, given.adapters, given.home, lengths)
    name = "ensembles" if given.out is None else given.out.stem
    run(texts, Bank(texts), name=name, told=lambda said: print(said, flush=True)).finish(given.out)


if __name__ == "__main__":
    main()
