"""Which selector, and with which parameters, by the losses of its soups: one training domain is left out at a time.

For each training domain in turn: selectors are fitted on the others, its `valid` text is the novel sample, and the
averaged soup of what they choose is scored on its `test` text, beside the base model. Nothing of a novel domain is
looked at, so that these are free to measure what was decided here. Repeated with other draws of the sample and of what
each domain's units are learnt from.

- `perplexity_<strategy>`: over the base's, geometric mean over domains, with the paired standard error of its log.
- `<strategy>_against_tied`: difference of mean NLL to the soups of tied covariance, nats a token; below 0 is better.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from benchmarks.claims import Scored, contrast
from benchmarks.mean_pooling import encoder_of
from benchmarks.report import Result, options
from benchmarks.single.scoring import Ingredient, Model, ingredient, scored
from demo.cells import Cell, Cells
from demo.convert import convert
from demo.passages import shorten
from demo.results import Figure, Row
from demo.strategies import PAPERS_THRESHOLD
from registry.base_model import LoadedBase, load_base
from registry.encoders import Encoder, SentenceBertEncoder
from registry.names import digest_of
from registry.selectors import SELECTORS
from registry.selectors.contract import Domain
from registry.spec import BaseEntry, CosineSpec, GmmSpec, PosteriorSpec, Selection, SelectorSpec
from training.data import draw, read_texts

POOL_PASSAGES, SAMPLE_PASSAGES, TEST_PASSAGES = 120, 60, 40
LONGEST = 600
"""Characters of a passage, so that all of it takes a quarter of an hour on one core."""
TIED = "gmm_tied"
STRATEGIES: Mapping[str, Any] = {
    "gmm_paper": GmmSpec(mode="paper"),
    TIED: GmmSpec(covariance="tied", dimensions=32, component_zero="auto"),
    "gmm_diag": GmmSpec(covariance="diag", dimensions=32, component_zero="auto"),
    "posterior_t0.05": PosteriorSpec(temperature=0.05),
    "posterior_t0.1": PosteriorSpec(temperature=0.1),
    "posterior_t0.2": PosteriorSpec(temperature=0.2),
    "cosine_sbert": CosineSpec(encoder="sbert"),
    "cosine_sbert_0.15": CosineSpec(encoder="sbert", threshold=PAPERS_THRESHOLD),
    "cosine_base": CosineSpec(encoder="base"),
}


class Texts(Protocol):
    """The text of a domain; the sample is drawn with a seed."""

    def pool(self, domain: str) -> Sequence[str]:
        """Passages that the domain brings into a pool."""

    def sample(self, domain: str, seed: int) -> Sequence[str]:
        """Passages that stand for it as a novel domain."""

    def test(self, domain: str) -> Sequence[str]:
        """Passages that soups are scored on; none of them is in the others."""


@dataclass(frozen=True)
class Corpora:
    """Texts as `train/<domain>/{train,valid,test}.jsonl.gz` in a folder."""

    folder: Path

    def pool(self, domain: str) -> Sequence[str]:
        """Of the training text, as a push brings it."""
        return self._drawn(domain, "train", POOL_PASSAGES, seed=0)

    def sample(self, domain: str, seed: int) -> Sequence[str]:
        """Of the validation text."""
        return self._drawn(domain, "valid", SAMPLE_PASSAGES, seed=seed)

    def test(self, domain: str) -> Sequence[str]:
        """Of the test text, the same for every seed."""
        return self._drawn(domain, "test", TEST_PASSAGES, seed=0)

    def _drawn(self, domain: str, split: str, most: int, *, seed: int) -> list[str]:
        texts = read_texts(self.folder / "train" / domain / f"{split}.jsonl.gz")
        return [shorten(text, LONGEST) for text in draw(texts, most, seed=seed)]


@dataclass
class Embeddings:
    """Vectors of texts, each computed once; `folder` keeps them between runs."""

    encoders: Mapping[str, Encoder]
    folder: Path
    _seen: dict[str, np.ndarray] = field(default_factory=dict)

    def of(self, name: str, texts: Sequence[str]) -> np.ndarray:
        """The vectors (units, dimensions) of one encoder."""
        encoder = self.encoders[name]
        key = digest_of([encoder.digest, list(texts)]).removeprefix("sha256:")
        path = self.folder / f"{key}.npy"
        if key not in self._seen:
            with suppress(FileNotFoundError):
                self._seen[key] = np.load(path)
        if key not in self._seen:
            self._seen[key] = encoder.encode(texts).vectors
            np.save(path, self._seen[key])
        return self._seen[key]


Score = Callable[[Selection, Sequence[str]], Cell]
"""The soup of a selection (the base where it abstains) on passages."""


def measure(
    result: Result, domains: Mapping[str, str], texts: Texts, embeddings: Embeddings, score: Score,
    *, strategies: Mapping[str, SelectorSpec] = STRATEGIES, seeds: Sequence[int] = (0, 1),
    told: Callable[[str], object] = lambda _said: None,
) -> None:  # fmt: skip
    """Every strategy on every domain left out; `domains` has the digests of their adapters."""
    nll: dict[str, dict[str, list[Any]]] = {novel: {name: [] for name in strategies} for novel in domains}
    base = {novel: score(_abstention(), texts.test(novel)) for novel in domains}
    chosen: dict[str, list[int]] = {name: [] for name in strategies}
    for seed in seeds:
        for novel in domains:
            for name, spec in strategies.items():
                selection = _select(spec.model_copy(update={"seed": seed}), novel, domains, texts, embeddings, seed)
                chosen[name].append(len(selection.selected))
                nll[novel][name].append(score(selection, texts.test(novel)).nll)
            told(f"{novel} left out, draw {seed}")
    by_domain = {
        novel: Scored(
            np.array(base[novel].tokens),
            {**{name: np.array(found) for name, found in nll[novel].items()}, "base": np.array([base[novel].nll])},
        )
        for novel in domains
    }
    for name in strategies:
        _report(result, name, by_domain, chosen[name])


def _select(
    spec: Any, novel: str, domains: Mapping[str, str], texts: Texts, embeddings: Embeddings, seed: int
) -> Selection:
    """What a selector fitted without `novel` answers for its sample."""
    encoder = spec.encoder_name
    pool = [
        Domain(ref=f"team/{one}@1", digest=digest, domain=one, vectors=embeddings.of(encoder, texts.pool(one)))
        for one, digest in domains.items()
        if one != novel
    ]
    selector = SELECTORS[spec.kind](spec.resolved()).fit(pool)
    return selector.rank(embeddings.of(encoder, texts.sample(novel, seed))).selection()


def _abstention() -> Selection:
    return Selection(selected=(), left_out=(), abstained=True, reason="the base", units=0)


def _report(result: Result, name: str, by_domain: Mapping[str, Scored], chosen: Sequence[int]) -> None:
    against = contrast(by_domain, {name: 1.0, "base": -1.0})
    note = f"standard error of its log {against.standard_error:.4f}"
    result.figures[f"perplexity_{name}"] = Figure(math.exp(against.value), "over the base's", note=note)
    row: Row = {
        "strategy": name,
        "perplexity_over_base": math.exp(against.value),
        "difference": against.value,
        "standard_error": against.standard_error,
        "domains_worse": sum(value > 0 for value in against.by_domain.values()),
        "domains": len(by_domain),
        "mean_ingredients": float(np.mean(chosen)),
        "abstentions": sum(count == 0 for count in chosen),
        "answers": len(chosen),
        "to_tied": 0.0,
        "to_tied_standard_error": 0.0,
    }
    if name != TIED:
        tied = contrast(by_domain, {name: 1.0, TIED: -1.0})
        row |= {"to_tied": tied.value, "to_tied_standard_error": tied.standard_error}
        note = f"standard error {tied.standard_error:.4f}"
        result.figures[f"{name}_against_tied"] = Figure(tied.value, "nats a token", note=note)
    result.rows.append(row)


# --- on real text -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Soups:
    """Averages of stored adapters, scored by a base model in this process; scores are kept in `cells`."""

    base: LoadedBase
    adapters: Mapping[str, Ingredient]
    """By digest."""
    cells: Cells

    def score(self, selection: Selection, passages: Sequence[str]) -> Cell:
        """The soup of a selection, the base where it abstains."""
        some = [self.adapters[one.digest] for one in selection.selected]
        model = Model(tuple(some), tuple(float(one.weight) for one in selection.selected))
        context = self.base.shape.context
        key = model.identity(f"{self.base.shape.fingerprint} {context}")
        return self.cells.get(key, passages, lambda: scored(self.base, model, passages, block=context))


def run(
    base: LoadedBase, adapters: Path, corpora: Path, work: Path, *, seeds: int, told: Callable[[str], object]
) -> Result:
    """The whole experiment; `adapters` are neutral ones (`demo.convert`), `work` keeps what was computed."""
    result = Result("selector_choice")
    work.mkdir(parents=True, exist_ok=True)
    names = sorted(path.name for path in (corpora / "train").iterdir())
    fingerprint = base.shape.fingerprint
    found: dict[str, Ingredient] = {}
    for name in names:
        convert(adapters, name, work / name, base_model="base", base_fingerprint=fingerprint, texts=None)
        found[name] = ingredient(name, work / name)
    embeddings = Embeddings({"base": encoder_of(base), "sbert": SentenceBertEncoder()}, work)
    soups = Soups(base, {one.digest: one for one in found.values()}, Cells(work / "cells.jsonl"))
    digests = {name: one.digest for name, one in found.items()}
    measure(result, digests, Corpora(corpora), embeddings, soups.score, seeds=range(seeds), told=told)
    return result


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--base", type=Path, required=True, help="folder of the base model")
    parser.add_argument("--adapters", type=Path, required=True, help="folder of neutral adapters, one a domain")
    parser.add_argument("--corpora", type=Path, required=True, help="folder with train/<domain>")
    parser.add_argument("--seeds", type=int, default=2, help="draws of the sample and of what is learnt from")
    parser.add_argument("--work", type=Path, help="folder that keeps vectors and scores between runs")
    given = parser.parse_args()
    base = load_base(BaseEntry(id="base", source=str(given.base.resolve())))
    with tempfile.TemporaryDirectory() as folder:
        work = given.work or Path(folder)
        run(
            base, given.adapters, given.corpora, work, seeds=given.seeds, told=lambda said: print(said, flush=True)
        ).finish(given.out)


if __name__ == "__main__":
    main()
