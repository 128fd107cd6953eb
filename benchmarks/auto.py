"""`model: "auto"` on prompts of many domains: the loss of the continuation under the model that the prompt chooses.

Prompts are the first 16, 64 or 256 tokens of test passages of every domain; the next 64 tokens are scored. The mixture
of `auto` is compared with the base model, with the one adapter that `/v1/route` names, with the domain's own adapter if
there is one, else with the soup of effort `instant` from 60 passages of the domain. Each domain and length is a file
below `--home`, so that an interrupted run resumes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Result
from benchmarks.soups.setting import NAMESPACE, Lengths, Setting, bank_options, opened
from demo.results import Figure
from demo.scores import computed_once
from registry.names import digest_of
from registry.spec import CookRequest, PosteriorSpec

LENGTHS, FOLLOWING, PROMPTS, SAMPLE = (16, 64, 256), 64, 8, 60
"""Tokens of a prompt and of what follows it, prompts of a domain, and passages that a soup is made of."""
MAIN = 64
"""The length that goals are for."""
GOALS = {"novel": 7, "train": 18}
Losses = Mapping[str, list[float]]
"""Nats per token by way, one for each prompt."""


@dataclass(frozen=True)
class Measurement:
    """A server with a bank, whose selector is fitted, and the folder of what was measured.

    `scored` are the nats per token of a model after a prompt: several ways often come to one model.
    """

    setting: Setting
    folder: Path
    scored: dict[tuple[str, str], float] = field(default_factory=dict)

    def losses(self, kind: str, domain: str, length: int) -> Losses:
        """The losses of a domain's prompts of a length, measured once."""
        path = self.folder / f"{domain}-{length}.json"
        return dict(computed_once(path, lambda: dict(self._measured(kind, domain, length))))

    def _measured(self, kind: str, domain: str, length: int) -> Iterator[tuple[str, list[float]]]:
        passages = self._prompts(kind, domain, length)
        yield "base", self._score(self.setting.base, passages)
        if kind == "train":
            yield "own", self._score(f"{NAMESPACE}/{domain}", passages)
        else:
            yield "instant", self._score(self._soup(domain), passages)
        routes = [self._post("/v1/route", texts=[passage["prompt"]]) for passage in passages]
        for way, name in (("auto", "mixture"), ("nearest", "model")):
            pairs = zip(routes, passages, strict=True)
            yield way, [loss for route, passage in pairs for loss in self._score(route[name], [passage])]

    def _prompts(self, kind: str, domain: str, length: int) -> list[dict[str, str]]:
        """Prompts with what follows them, of the same passages for every length; the longest where few are long."""
        texts = self.setting.job.texts(kind, domain, "test")
        random.Random(0).shuffle(texts)
        tokens = [
            list(self._post("/tokenize", model=self.setting.base, prompt=text, add_special_tokens=False)["tokens"])
            for text in texts
        ]
        long = [ids for ids in tokens if len(ids) > LENGTHS[-1] + FOLLOWING]
        chosen = (long if len(long) >= PROMPTS else sorted(tokens, key=len, reverse=True))[:PROMPTS]
        return [
            {"prompt": self._text(ids[:length]), "answer": self._text(ids[length : length + FOLLOWING])}
            for ids in chosen
        ]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._post("/detokenize", model=self.setting.base, tokens=list(ids))["prompt"])

    def _soup(self, domain: str) -> str:
        """The soup of a novel domain, cooked once, and stored also where its verification would abstain."""

        def cook() -> str:
            texts = random.Random(1).sample(self.setting.job.texts("novel", domain, "valid"), SAMPLE)
            request = CookRequest.model_validate({"sample": {"texts": texts}, "effort": "instant", "verify": False})
            return str(self.setting.client.cook(request)["model"])

        return str(computed_once(self.folder / f"{domain}-soup.json", cook))

    def _score(self, model: str, passages: Sequence[Mapping[str, str]]) -> list[float]:
        """Nats per token of the answers of passages."""
        unscored = [passage for passage in passages if (model, passage["prompt"]) not in self.scored]
        if unscored:
            answer = self._post("/v1/perplexity", model=model, texts=unscored)
            for passage, text in zip(unscored, answer["texts"], strict=True):
                self.scored[model, passage["prompt"]] = text["nll"] / text["tokens"]
        return [self.scored[model, passage["prompt"]] for passage in passages]

    def _post(self, path: str, **body: Any) -> dict[str, Any]:
        return dict(self.setting.client.json("POST", path, json=body))


def difference(losses: Losses, way: str) -> tuple[float, float]:
    """The mean of a way's losses minus the base model's, and its paired standard error."""
    differences = np.array(losses[way]) - np.array(losses["base"])
    return float(differences.mean()), float(differences.std(ddof=1) / np.sqrt(len(differences)))


def add_figures(result: Result, rows: Sequence[Mapping[str, Any]]) -> None:
    """Counts of domains in which a way is better or worse than the base model, and mean differences."""
    for kind, label in (("novel", "novel"), ("train", "known")):
        main = [row for row in rows if (row["kind"], row["prompt_tokens"]) == (kind, MAIN)]
        for way in ("auto", "nearest"):
            better = sum(row["difference"] < -2 * row["standard_error"] for row in main if row["way"] == way)
            goal = GOALS[kind] if way == "auto" else None
            note = f"of {sum(row['way'] == way for row in main)}, by more than two standard errors, {MAIN} tokens"
            result.figures[f"{way}_better_{label}"] = Figure(better, "domains", goal, (), note)
        for way in dict.fromkeys(row["way"] for row in rows):
            for length in LENGTHS:
                means = [
                    row["difference"]
                    for row in rows
                    if (row["kind"], row["way"], row["prompt_tokens"]) == (kind, way, length)
                ]
                if means:
                    result.figures[f"{way}_{label}_{length}"] = Figure(
                        float(np.mean(means)), "nats a token", None, (), "mean over domains, minus the base model"
                    )
    for way in ("auto", "nearest"):
        worse = sum(row["difference"] > row["standard_error"] for row in rows if row["way"] == way)
        note = f"of {sum(row['way'] == way for row in rows)} domains and lengths, by more than one standard error"
        result.figures[f"{way}_worse"] = Figure(worse, "domains", 0 if way == "auto" else None, (), note)


def main() -> None:
    """The command line."""
    parser = bank_options(__doc__, home=Path(".reproduce/auto"))
    parser.add_argument("--lengths", type=int, nargs="+", choices=LENGTHS, default=LENGTHS, help="tokens of a prompt")
    arguments = parser.parse_args()
    result = Result()
    lengths = Lengths()
    with opened(arguments.data, arguments.base, arguments.adapters, arguments.home, lengths) as setting:
        setting.client.fit(PosteriorSpec())
        digests = sorted(str(adapter["digest"]) for adapter in setting.client.adapters(kind="adapter"))
        folder = arguments.home / f"auto-{digest_of(digests)[7:19]}"
        folder.mkdir(exist_ok=True)
        measurement = Measurement(setting, folder)
        domains = {"novel": setting.job.novel, "train": setting.job.training}
        tests = ((k, d, n) for n in arguments.lengths for k, names in domains.items() for d in names)
        for kind, domain, length in tests:
            losses = measurement.losses(kind, domain, length)
            for way in losses:
                mean, error = difference(losses, way)
                row = {"kind": kind, "domain": domain, "prompt_tokens": length, "way": way, "prompts": len(losses[way])}
                result.rows.append({**row, "difference": mean, "standard_error": error})
    result.rows = [row for row in result.rows if row["way"] != "base"]
    add_figures(result, result.rows)
    result.finish(arguments.out)


if __name__ == "__main__":
    main()
