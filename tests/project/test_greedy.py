"""Greedy searches as tasks: the figures of a server that cooks and scores each average, and what is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.soups.cells import even_average
from benchmarks.soups.greedy import bank_of, greedy, mixed, searched
from benchmarks.soups.setting import NAMESPACE, Setting
from demo.scores import Scores
from registry import cores
from registry.base_model import shape_of
from registry.errors import Conflict
from registry.tasks.process_pool import ProcessPool
from tests.project.bank import BANK, DOMAINS, OTHER, alone, bank, by_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def setting(tmp_path_factory: pytest.TempPathFactory, tiny_base_dir: Path) -> Iterator[Setting]:
    with bank(tmp_path_factory.mktemp("bank"), tiny_base_dir) as setting:
        yield setting


def test_the_best_joins_while_it_helps() -> None:
    """Of a table: b and c together are better than b, which is the best alone; all three are worse."""
    table = {"abc": 2.0, "ab": 2.5, "bc": 1.0, "a": 4.0, "b": 2.2, "c": 2.4}
    asked: list[str] = []

    def averaged(names: object) -> np.ndarray:
        asked.append("".join(sorted(names)))  # type: ignore[call-overload]
        return np.array([table[asked[-1]]])

    found = greedy({name: np.array([table[name]]) for name in "abc"}, averaged)
    assert (found.chosen, found.nll.tolist(), asked) == (("b", "c"), [1.0], ["ab", "bc", "abc"])


@pytest.mark.long
def test_a_search_in_a_process_has_the_servers_figures_and_is_kept(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit; what was found is there for a run that has no bank at hand."""
    monkeypatch.setattr(cores, "ALL", 1)  # as many threads as the server has
    own = replace(setting, scores=Scores(tmp_path / "scores"))
    with ProcessPool(1) as place:
        found = searched(place, own, alone(setting))
        wanted = {domain: by_server(setting, domain) for domain in DOMAINS}
        assert {domain: nll.tolist() for domain, nll in found.items()} == {
            domain: one.nll.tolist() for domain, one in wanted.items()
        }
        assert [one.chosen for one in wanted.values()] == [("ale", "dough", "cider"), ("ale",)]
        later = replace(own, scores=Scores(tmp_path / "scores"), job=replace(own.job, adapters=tmp_path / "gone"))
        again = searched(place, later, alone(setting))
    assert {domain: nll.tolist() for domain, nll in again.items()} == {
        domain: nll.tolist() for domain, nll in found.items()
    }


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


def test_a_bank_that_is_another_than_the_servers_is_refused(setting: Setting, tmp_path: Path) -> None:
    shutil.copytree(setting.job.adapters / BANK[0], tmp_path / BANK[1])
    digest = setting.client.adapter(f"{NAMESPACE}/{BANK[1]}")["digest"]
    shape = shape_of(setting.job.base, setting.job.home / "cache")
    with pytest.raises(Conflict, match=f"is another adapter than bank/{BANK[1]} on the server"):
        bank_of(tmp_path, {BANK[1]: digest}, shape)
