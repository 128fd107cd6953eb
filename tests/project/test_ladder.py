"""The ladder of benchmarks.adaptersoup on a tiny base: what uses of a sample score, and what trainings leave behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from adaptersoup.client.client import SoupClient
from benchmarks.soups import untrained
from benchmarks.soups.cells import Cell, even_average
from benchmarks.soups.greedy import bank_of, greedy, mixed, searched
from benchmarks.soups.ladder import Climbed, Ladder, Rates
from benchmarks.soups.setting import NAMESPACE, Setting, Texts
from benchmarks.soups.trained import Passages, Rung, Trainable, full, lora, nll_of, rungs
from benchmarks.soups.untrained import SEPARATOR, nearest_neighbours, prompted
from demo.job import Job
from demo.scores import Scores
from registry import cores
from registry.base_model import LoadedBase, shape_of
from registry.base_model.likelihood import score_windows, windows
from registry.errors import Conflict
from registry.tasks.process_pool import ProcessPool
from tests.project.bank import BANK, DOMAINS, OTHER, alone, bank, by_server
from tests.texts_file import write_texts
from tests.tiny_models import TINY_SENTENCES
from tests.training.conftest import state_hash

ON_BASES = ("gpt2", "llama")
SENTENCES = [f"{text} Number {number}." for number in range(3) for text in TINY_SENTENCES]
PASSAGES = Passages(tuple(TINY_SENTENCES[:3]), tuple(TINY_SENTENCES[3:5]), tuple(TINY_SENTENCES[4:]))


def test_a_text_is_scored_after_as_much_of_the_sample_as_fits(base: LoadedBase) -> None:
    """Against one pass over prompt and text together; 1e-3 nats of sums over tens of tokens, in fp32."""
    [rung] = prompted(base, PASSAGES)
    prompt = base.tokenize(SEPARATOR.join(PASSAGES.sample) + SEPARATOR, bos=False)
    for text, nll in zip(PASSAGES.test, rung.nll, strict=True):
        ids = base.tokenize(text, bos=False)
        room = base.shape.context - 1 - len(ids)
        assert 0 < room < len(prompt)
        together = windows([*prompt[:room], *ids], context=base.shape.context, bos_id=base.bos_id, prompt=room)
        assert nll == pytest.approx(sum(score_windows(base.model, together, max_tokens=64, pad_id=0)), abs=1e-3)


def test_a_text_without_room_for_a_prompt_is_scored_alone(base: LoadedBase) -> None:
    long = " ".join(TINY_SENTENCES)
    [rung] = prompted(base, replace(PASSAGES, test=(long,)))
    assert rung.nll == pytest.approx(nll_of(base, [long]))


def test_neighbours_help_with_a_text_of_the_sample_and_never_harm_what_they_are_chosen_on(base: LoadedBase) -> None:
    [rung] = nearest_neighbours(base, replace(PASSAGES, held_out=PASSAGES.sample, test=PASSAGES.sample))
    assert sum(rung.nll) < 0.7 * sum(nll_of(base, PASSAGES.sample))
    [second_rung] = nearest_neighbours(base, PASSAGES)
    held_out = nll_of(base, PASSAGES.held_out)
    tokens = sum(len(base.tokenize(text, bos=False)) for text in PASSAGES.held_out)
    assert second_rung.held_out <= sum(held_out) / tokens + 1e-6


def test_without_a_share_the_base_is_left(base: LoadedBase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrained, "SHARES", (0.0,))
    [rung] = nearest_neighbours(base, PASSAGES)
    assert rung.nll == pytest.approx(nll_of(base, PASSAGES.test), rel=1e-5)


@pytest.mark.parametrize("trainable", [lora, full])
def test_a_training_helps_and_leaves_the_base(base: LoadedBase, trainable: Trainable) -> None:
    state_before, names = state_hash(base.model), [name for name, _ in base.model.named_parameters()]
    passages = replace(PASSAGES, held_out=PASSAGES.sample)
    results = rungs(trainable, base, passages, (1e-3, 1e-2, 1e4))
    assert (state_hash(base.model), [name for name, _ in base.model.named_parameters()]) == (state_before, names)
    assert [rung.passes for rung in results] == [0, 1, 2, 3]
    assert results[0] == Rung(nll_of(base, passages.test), 0.0, results[0].held_out)
    assert {rung.rate for rung in results[1:]} <= {1e-3, 1e-2}, "one that diverges is not chosen"
    losses, seconds = ([getattr(rung, name) for rung in results] for name in ("held_out", "seconds"))
    assert losses == sorted(losses, reverse=True)
    assert seconds == sorted(seconds)
    with trainable(base) as trained, torch.no_grad():
        assert nll_of(trained, passages.test) == pytest.approx(results[0].nll, rel=1e-5), "begins at the base"


def test_a_training_that_does_not_help_is_not_in_the_result(base: LoadedBase) -> None:
    assert [rung.passes for rung in rungs(lora, base, PASSAGES, (0.0,))] == [0]


@pytest.mark.long
@pytest.mark.slow
def test_a_result_is_computed_in_a_process_once(base: LoadedBase, tmp_path: Path) -> None:
    for split in ("valid", "test"):
        write_texts(tmp_path / "data" / "novel" / "tales" / f"{split}.jsonl", [f"{text} {split}" for text in SENTENCES])
    job = Job(tmp_path, tmp_path / "data", base.entry, (), ("tales",), "", tmp_path)
    scores, client = Scores(tmp_path / "scores"), cast(SoupClient, None)
    setting = Setting.on(Texts(job, test_passages=4, largest=8), client, scores, base.shape.fingerprint)
    cell = Cell("prompt", "tales", 0, 5)
    with ProcessPool(1) as pool:
        result = Ladder(tmp_path / "ladder", pool, Rates()).get(setting, cell)
    passages = Passages(tuple(setting.sample("tales", size=5, seed=0)), (), tuple(setting.test("tales")))
    assert result.rungs[0].nll == pytest.approx(prompted(base, passages)[0].nll, rel=1e-5)
    assert Ladder(tmp_path / "ladder", pool, Rates()).get(setting, cell) == result


def test_the_best_within_a_time_is_chosen_on_held_out_passages() -> None:
    climbed = Climbed(2.0, tuple(Rung((), seconds, loss) for seconds, loss in [(0, 3.0), (10, 2.0), (20, 1.0)]))
    best = (climbed.best(), climbed.best(within=9), climbed.best(within=1))
    assert [rung.seconds for rung in best] == [20, 10, 0]


# --- greedy searches ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory, tiny_base_dir: Path) -> Iterator[Setting]:
    with bank(tmp_path_factory.mktemp("bank"), tiny_base_dir) as setting:
        yield setting


@pytest.mark.slow
def test_the_best_joins_while_it_helps() -> None:
    """Of a table: b and c together are better than b, which is the best alone; all three are worse."""
    table = {"abc": 2.0, "ab": 2.5, "bc": 1.0, "a": 4.0, "b": 2.2, "c": 2.4}
    averages: list[str] = []

    def averaged(names: object) -> np.ndarray:
        averages.append("".join(sorted(names)))  # type: ignore[call-overload]
        return np.array([table[averages[-1]]])

    best = greedy({name: np.array([table[name]]) for name in "abc"}, averaged)
    assert (best.chosen, best.nll.tolist(), averages) == (("b", "c"), [1.0], ["ab", "bc", "abc"])


@pytest.mark.slow
@pytest.mark.long
def test_a_search_in_a_process_has_the_servers_figures_and_is_kept(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit; what was found is there for a run that has no bank at hand."""
    monkeypatch.setattr(cores, "ALL", 1)  # as many threads as the server has
    own_setting = replace(setting, scores=Scores(tmp_path / "scores"))
    with ProcessPool(1) as place:
        nlls = searched(place, own_setting, alone(setting))
        expected = {domain: by_server(setting, domain) for domain in DOMAINS}
        assert {domain: nll.tolist() for domain, nll in nlls.items()} == {
            domain: average.nll.tolist() for domain, average in expected.items()
        }
        assert [average.chosen for average in expected.values()] == [("ale", "dough", "cider"), ("ale",)]
        later = replace(
            own_setting, scores=Scores(tmp_path / "scores"), job=replace(own_setting.job, adapters=tmp_path / "gone")
        )
        later_nlls = searched(place, later, alone(setting))
    assert {domain: nll.tolist() for domain, nll in later_nlls.items()} == {
        domain: nll.tolist() for domain, nll in nlls.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("names", [("ale", "dough"), ("ale", OTHER), BANK])
def test_a_soup_that_a_task_mixes_is_the_servers(setting: Setting, names: tuple[str, ...]) -> None:
    """By average, and with one of another start in it by concatenation."""
    refs = [f"{NAMESPACE}/{name}" for name in names]
    shape = shape_of(setting.job.base, setting.job.home / "cache")
    digests = {name: setting.client.adapter(ref)["digest"] for name, ref in zip(names, refs, strict=True)}
    members = bank_of(setting.job.adapters, digests, shape)
    cooked = setting.client.cook(even_average(refs))
    assert mixed(list(members.values()), shape).digest == cooked["digest"]
    assert cooked["recipe"]["mixing"]["method"] == ("concat" if OTHER in names else "average")


@pytest.mark.slow
def test_a_bank_that_is_another_than_the_servers_is_refused(setting: Setting, tmp_path: Path) -> None:
    shutil.copytree(setting.job.adapters / BANK[0], tmp_path / BANK[1])
    digest = setting.client.adapter(f"{NAMESPACE}/{BANK[1]}")["digest"]
    shape = shape_of(setting.job.base, setting.job.home / "cache")
    with pytest.raises(Conflict, match=f"is another adapter than bank/{BANK[1]} on the server"):
        bank_of(tmp_path, {BANK[1]: digest}, shape)
