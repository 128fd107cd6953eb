"""Training, choosing and reporting use disjoint text, in the demo and in both experiments.

Every passage here says which part of which domain it is of; what each step is given is looked at where it arrives.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.lm import plan, runner, work
from benchmarks.lm.plan import Given, Size
from benchmarks.lm.runner import Place
from benchmarks.single import making, setting
from benchmarks.single.setting import Sizes
from demo import run as demo_run
from demo.job import NOVEL_SAMPLE, Job
from demo.scores import Scores
from demo.strategies import EVERY
from demo.talk import Talk
from registry.base_model import load_base
from registry.spec import BaseEntry
from tests.texts_file import write_texts
from training.data import Data, read_texts

PASSAGES = 210
"""Of each part: more than any step draws, but for the two that take all of what is trained on."""


def passages(domain: str, part: str) -> list[str]:
    return [f"{domain} {part} {number}: the court held that contract {number} was void" for number in range(PASSAGES)]


def parts(texts: Any) -> set[str]:
    """`law valid` for each domain and part that some passages are of."""
    return {" ".join(text.split()[:2]) for text in texts}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train/law` and `train/cooking`, `novel/ships` and `novel/cats`, `mixed/control`: all parts of each."""
    folder = tmp_path_factory.mktemp("data")
    for kind, domains in {"train": ("law", "cooking"), "novel": ("ships", "cats"), "mixed": ("control",)}.items():
        for domain in domains:
            for part in ("train", "valid", "test"):
                write_texts(folder / kind / domain / f"{part}.jsonl.gz", passages(domain, part))
    return folder


# --- the demo ---------------------------------------------------------------------------------------


class Server:
    """What the demo asks of a server, answered at once: it remembers what was cooked from and what was scored."""

    def __init__(self) -> None:
        self.cooked: list[list[str]] = []
        self.scored: list[list[str]] = []

    def sample(self, texts: list[str]) -> dict[str, Any]:
        self.cooked.append(texts)
        return {"texts": texts}

    def cook(self, _request: Any) -> dict[str, Any]:
        return {"model": "demo/soup", "abstained": False, "digest": "sha256:" + "5" * 64}

    def perplexity(self, _model: str, texts: list[str]) -> dict[str, Any]:
        self.scored.append(texts)
        return {"texts": [{"nll": 1.0, "tokens": 10, "bytes": 40} for _ in texts]}


def job(data: Path, home: Path) -> Job:
    base = BaseEntry(id="tiny", source=str(home))
    return Job(home, data, base, ("law", "cooking"), ("ships", "cats"), "control", home / "adapters")


def test_a_soup_of_the_demo_is_cooked_from_one_part_of_a_novel_domain_and_scored_on_another(data, tmp_path):
    server = Server()
    pushed = {name: {"ref": f"demo/{name}@1", "digest": "sha256:" + "0" * 64} for name in ("law", "cooking", "control")}
    kitchen = demo_run.Kitchen(job(data, tmp_path), server, Scores(tmp_path / "scores"), "sha256:1", pushed)
    answers, _ = demo_run._cook(kitchen, Talk(2))
    demo_run._score(kitchen, answers, Talk(2))
    assert {len(sample) for sample in server.cooked} == {NOVEL_SAMPLE}
    assert [parts(sample) for sample in server.cooked] == [
        {f"{domain} valid"} for domain in ("ships", "cats") for _ in EVERY
    ]
    assert {part for texts in server.scored for part in parts(texts)} == {"ships test", "cats test"}
    assert parts(kitchen.job.training_sample("law")) == {"law train"}


# --- the papers on language models ------------------------------------------------------------------

SIZE = Size(
    domains=("law",), others=("cooking",), seeds=(1,), steps=1, batch=2, block=16, texts=200, valid_texts=6,
    test_texts=4, span_texts=2, draws=1, evaluations=1, curve=1, sizes=(64,), scales=(),
)  # fmt: skip


@pytest.mark.parametrize("variant", ["houlsby_64", "full", "norms", "adamix", "pfeiffer_16_tenth", "snip_40"])
def test_a_cell_is_trained_chosen_and_scored_on_its_own_parts(variant, data, tiny_base_dir, tmp_path, monkeypatch):
    seen: list[set[str]] = []

    def watch(name: str) -> None:
        called = getattr(work, name)

        def watched(*arguments: Any, **named: Any) -> Any:
            for one in arguments:
                data = getattr(one, "data", one)
                texts = (data.train, data.valid) if isinstance(data, Data) else (data,)
                seen.extend(parts(some) for some in texts if isinstance(some, list))
            return called(*arguments, **named)

        monkeypatch.setattr(work, name, watched)

    for name in ("train_adapter", "fine_tune", "measured"):
        watch(name)
    place = Place(tiny_base_dir, data / "train", tmp_path, SIZE)
    base = load_base(runner.entry(place))
    given = Given(SIZE, base.shape, runner.all_data(place), "float32")
    cells = plan.variant_cells(given, dict.fromkeys(plan.RATES, 1e-3))
    cell = next(one for one in cells if one.variant == variant)
    work.run_cell(cell, base, work.texts_of(place.corpora, "law", SIZE, tenth=cell.data.tenth), tmp_path)
    assert seen == [{"law train"}, {"law valid"}, {"law test"}]


# --- the single-domain soups ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(data, tiny_base_dir, tmp_path_factory) -> setting.Setting:
    sizes = Sizes(held_out=("ships", "cats"), domain="law")
    home = tmp_path_factory.mktemp("home") / "single"
    return setting.setting(sizes, base=tiny_base_dir, data=data, home=home, dtype="float32")


def test_every_text_of_the_experiment_is_of_the_part_it_is_called_after(found):
    inside, outside = "law {}".format, "{} {}".format
    assert parts(found.train.passages) == {inside("train")}
    for texts in (found.stopping, found.choosing.in_some, found.choosing.in_all):
        assert parts(texts.passages) == {inside("valid")}
    for texts in (*found.choosing.out_some, *found.choosing.out_all):
        assert parts(texts.passages) == {outside(texts.domain, "valid")}
    for texts in (found.testing.inside, found.testing.curve):
        assert parts(texts.passages) == {inside("test")}
    for texts in found.testing.outside:
        assert parts(texts.passages) == {outside(texts.domain, "test")}


@pytest.mark.slow
def test_a_sweep_finds_in_each_file_the_part_it_is_called_after(found, monkeypatch):
    folders: list[Path] = []
    called = SimpleNamespace(run=lambda command, **_: folders.append(Path(command[5])), DEVNULL=None)
    monkeypatch.setattr(making, "subprocess", called)
    making.train_grids(found, processes=1, say=lambda _: None)
    assert len(set(folders)) == 1
    for part in ("train", "valid"):
        assert parts(read_texts(folders[0] / f"{part}.jsonl")) == {f"law {part}"}
    assert {path.name for path in folders[0].iterdir()} == {"train.jsonl", "valid.jsonl"}


def test_grids_are_trained_in_processes_or_on_a_cluster(found):
    here = making.sweep_arguments(found, making.MAIN, Path("law"), processes=2)
    there = making.sweep_arguments(found, making.MAIN, Path("law"), processes=2, on="ray=10.0.0.5:6379")
    assert here[-2:] == ["--parallel", "2"]
    assert there == [*here[:-2], "--on", "ray=10.0.0.5:6379"]
