"""Answers to questions about text of an unseen domain (SQuADShifts): soups beside single adapters and a fresh LoRA.

PEFT trains two LoRAs on questions about Wikipedia, which are pushed with a control. Soups are cooked from questions
about product reviews, with the loss on the answers alone, as in the trainings. Every model then answers other questions
about reviews, by greedy decoding. F1 and exact match are those of SQuAD (Rajpurkar et al., 2016, section 6.1).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch

from adaptersoup.client.additions import Additions
from adaptersoup.client.client import SoupClient
from benchmarks.report import Result, options
from benchmarks.soups.trained import PASSES, train_by_passes
from demo.base_models import base_entry
from demo.results import Figure
from demo.server import running, write_bases
from demo.talk import Talk
from registry.base_model import LoadedBase, load_base
from registry.base_model.likelihood import score_windows
from registry.names import digest_of
from registry.spec import BaseEntry, CookRequest, PromptAnswer
from training.data import read_lines
from training.passages import rows_of
from training.tasks.overlap import exact_match, token_f1

TRAINED, UNSEEN = ("squadshifts/new_wiki", "squad"), "squadshifts/amazon"
SAMPLE, HELD_OUT, TEST = 80, 20, 200
"""Questions to cook from, those that a LoRA's rate and passes are chosen by, and those to answer."""
CONTEXT = 1200
"""Characters of a context, around its answer."""
QUESTIONS = 300
"""Questions that an adapter is trained on, in one pass."""
RATES = (3e-4, 1e-3, 3e-3)
"""Learning rates that the fresh LoRA is chosen from."""
LORA = peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
PROMPTS = 16
"""Questions of a request."""
EFFORTS = ("instant", "quick", "tune")
BASE, CONTROL, FRESH, SENTENCE = "base", "control", "fresh LoRA", "nearest sentence"
Item = Mapping[str, Any]
_WORD = re.compile(r"\w+")


def prompt_of(item: Item) -> str:
    """The context and the question of an item as a prompt, the context cut to characters around the first answer."""
    context, place = item["context"], item["answers"][0]["answer_start"]
    start = max(0, min(place - CONTEXT // 2, len(context) - CONTEXT))
    return f"{context[start : start + CONTEXT]}\nQuestion: {item['question']}\nAnswer:"


def passage_of(item: Item) -> PromptAnswer:
    """An item as a passage whose loss is on its answer alone."""
    return PromptAnswer(prompt=prompt_of(item), answer=f" {item['answers'][0]['text']}\n")


def scores(answers: Sequence[str], items: Sequence[Item]) -> np.ndarray:
    """F1 and exact match of each answer against the best of its references: (2, answers)."""
    return np.array(
        [
            [
                max(metric(answer, reference["text"]) for reference in item["answers"])
                for answer, item in zip(answers, items, strict=True)
            ]
            for metric in (token_f1, exact_match)
        ]
    )


def nearest_sentence(item: Item) -> str:
    """The sentence of the context that shares most words with the question: what needs no model."""
    question_words = set(_WORD.findall(item["question"].lower()))
    sentences = re.split(r"(?<=[.!?])\s+", item["context"])
    return max(sentences, key=lambda sentence: len(question_words & set(_WORD.findall(sentence.lower()))))


def train(
    base: LoadedBase,
    items: Sequence[Item],
    held_out: Sequence[Item],
    folder: Path,
    *,
    rates: Sequence[float],
    passes: int,
) -> None:
    """Save PEFT's LoRA that is best on held-out questions over passes and rates, unless `folder` exists."""
    held_out_rows = rows_of(base, [passage_of(item) for item in held_out], max_tokens=base.shape.context)
    best = float("inf")
    for rate in () if folder.exists() else rates:
        torch.manual_seed(0)
        wrapped = peft.get_peft_model(base.model, LORA)
        training = train_by_passes(base, [passage_of(item) for item in items], rate, passes=passes)
        for number, _ in enumerate(training, start=1):
            nll = sum(score_windows(base.model, held_out_rows, max_tokens=base.shape.context, pad_id=0))
            print(f"{folder.name}: rate {rate:g}, pass {number}, held-out loss {nll:.1f}", flush=True)
            if nll < best:
                best = nll
                wrapped.save_pretrained(str(folder))
        wrapped.unload()


@dataclass(frozen=True)
class Texts:
    """The folder of corpora, and the questions drawn from it."""

    data: Path

    def items(self, domain: str, split: str, count: int) -> list[Item]:
        """Questions of a split, in a fixed random order."""
        items = [item for _, item in read_lines(self.data / domain / f"{split}.jsonl.gz")]
        return [items[number] for number in np.random.default_rng(0).permutation(len(items))[:count]]

    @cached_property
    def sample(self) -> list[Item]:
        """Questions about the unseen domain; the fresh LoRA is trained on the first, and chosen by the last of them."""
        return self.items(UNSEEN, "train", SAMPLE)

    @cached_property
    def test(self) -> list[Item]:
        """Questions about the unseen domain that every model answers."""
        return self.items(UNSEEN, "dev", TEST)


@dataclass
class Measurement:
    """The client of a server, and the folder with the adapters and the answers so far."""

    texts: Texts
    client: SoupClient
    base: BaseEntry
    home: Path
    answers: dict[str, np.ndarray] = field(default_factory=dict)

    def push(self, folder: Path, name: str, items: Sequence[Item] = ()) -> str:
        """Push an adapter, with questions as its sample; return its ref."""
        texts = [passage_of(item) for item in items]
        more = Additions(domain=name, base=self.base.id, texts=texts or None)
        pushed = self.client.push_directory(folder, name=f"bank/{name}", more=more)
        self.client.wait_embedded(pushed)
        return str(pushed["ref"])

    def measure(self, way: str, model: str) -> None:
        """Have a model answer the test questions; answers that are stored are not generated again."""
        prompts = [prompt_of(item) for item in self.texts.test]
        digest = str(self.client.json("GET", f"/v1/models/{model}").get("digest") or self.base.id)
        path = self.home / f"answers-{digest_of([digest, prompts])[7:19]}.json"
        if not path.is_file():
            answers = [
                str(choice["text"])
                for start in range(0, len(prompts), PROMPTS)
                for choice in self.client.json(
                    "POST",
                    "/v1/completions",
                    json={
                        "model": model,
                        "prompt": prompts[start : start + PROMPTS],
                        "max_tokens": 16,
                        "temperature": 0,
                        "stop": ["\n"],
                    },
                )["choices"]
            ]
            path.write_text(json.dumps(answers), encoding="utf-8")
        self.answers[way] = scores(json.loads(path.read_text(encoding="utf-8")), self.texts.test)
        print(f"{way}: {model}, F1 {self.answers[way][0].mean():.3f}", flush=True)

    def cook(self, effort: str) -> str:
        """The model that an effort answers with."""
        sample = {"texts": [passage_of(item).model_dump() for item in self.texts.sample]}
        return str(self.client.cook(CookRequest.model_validate({"sample": sample, "effort": effort}))["model"])


def run(at: Measurement, control: Path) -> None:
    """Push, cook and answer."""
    at.measure(BASE, f"base/{at.base.id}")
    at.measure(CONTROL, at.push(control, "control"))
    for domain in TRAINED:
        name = name_of(domain)
        sample = at.texts.items(domain, "train", QUESTIONS)[:SAMPLE]
        at.measure(f"adapter {name}", at.push(at.home / "adapters" / name, name, sample))
    for effort in EFFORTS:
        at.measure(effort, at.cook(effort))
    at.measure(FRESH, at.push(at.home / "adapters" / "fresh", "fresh"))
    at.answers[SENTENCE] = scores([nearest_sentence(item) for item in at.texts.test], at.texts.test)


def name_of(domain: str) -> str:
    """The name of the adapter of a folder of questions."""
    return domain.rpartition("/")[2].replace("_", "-")


def train_all(texts: Texts, entry: BaseEntry, home: Path) -> None:
    """Train the adapters of the bank and the fresh LoRA that do not exist yet."""
    base = load_base(entry)
    for domain in TRAINED:
        items, held_out = texts.items(domain, "train", QUESTIONS), texts.items(domain, "dev", HELD_OUT)
        train(base, items, held_out, home / "adapters" / name_of(domain), rates=RATES[1:2], passes=1)
    sample, held_out = texts.sample[:-HELD_OUT], texts.sample[-HELD_OUT:]
    train(base, sample, held_out, home / "adapters" / "fresh", rates=RATES, passes=PASSES)


def figures(result: Result, answers: Mapping[str, np.ndarray]) -> None:
    """F1 of every way, and the two differences that have a goal, with paired standard errors."""
    f1 = {way: both[0] for way, both in answers.items()}
    best = max((way for way in f1 if way.startswith("adapter ")), key=lambda way: float(f1[way].mean()))
    for way, (overlap, exact) in answers.items():
        result.figures[way.replace(" ", "_")] = Figure(
            float(overlap.mean()), "F1", note=f"± {standard_error(overlap):.3f}; exact match {exact.mean():.3f}"
        )
    for name, way, reference in (("quick_over_single", "quick", best), ("tune_over_control", "tune", CONTROL)):
        difference = f1[way] - f1[reference]
        error = standard_error(difference)
        result.figures[name] = Figure(
            float(difference.mean()),
            "F1",
            error,
            note=f"over {reference}, ± {error:.3f}; the goal is one standard error",
        )


def standard_error(values: np.ndarray) -> float:
    """The standard error of a mean."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="corpora with squad/ and squadshifts/")
    parser.add_argument("--base", required=True, help="folder of the base model")
    parser.add_argument("--control", type=Path, required=True, help="directory of an adapter of no domain")
    parser.add_argument("--home", type=Path, default=Path(".reproduce/questions"), help="what is kept between runs")
    arguments = parser.parse_args()
    texts, entry, home = Texts(arguments.data), base_entry(arguments.base, Talk(1)), arguments.home
    home.mkdir(parents=True, exist_ok=True)
    train_all(texts, entry, home)
    bases = write_bases(home / "bases.toml", entry)
    result = Result()
    with running(bases, home / "server") as server, server.client() as client:
        measurement = Measurement(texts, client, entry, home)
        run(measurement, arguments.control)
    figures(result, measurement.answers)
    result.finish(arguments.out)


if __name__ == "__main__":
    main()
