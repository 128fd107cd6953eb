"""Rules over losses on the paper's Table 7 (AdapterSoup, table 7): adapters on novel domains, perplexities."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidParameter
from registry.selectors.rules import beating_base, best_single, best_with_base, oracle_single

NOVEL = ["reuters", "techcr", "fastco", "nme", "fool", "inquis", "mash", "tripadv", "ncbi", "yelp"]
BASE = [21.5, 27.7, 27.9, 28.2, 23.8, 22.4, 27.1, 40.4, 20.7, 36.2]
ORACLE = [17.6, 22.0, 21.5, 21.1, 22.9, 17.8, 22.2, 37.0, 18.2, 35.9]
TABLE_7 = {
    "dailymail": [17.6, 23.6, 24.0, 21.1, 23.3, 18.4, 23.6, 39.6, 20.5, 44.3],
    "wired": [18.0, 22.0, 21.5, 22.0, 22.9, 18.2, 22.2, 40.0, 19.9, 41.3],
    "express": [19.5, 25.8, 26.0, 22.6, 25.8, 20.1, 26.3, 42.9, 23.3, 48.9],
    "npr": [20.1, 25.5, 25.0, 27.7, 23.3, 20.5, 23.6, 42.1, 21.1, 42.9],
    "librarything": [19.5, 24.5, 24.0, 24.8, 23.6, 19.7, 24.8, 38.9, 21.1, 39.3],
    "instructables": [20.5, 25.5, 25.5, 25.5, 24.5, 20.5, 25.5, 40.0, 21.1, 41.7],
    "entrepreneur": [18.2, 22.4, 22.0, 22.6, 22.9, 18.4, 23.1, 40.9, 21.1, 43.4],
    "springer": [19.7, 25.0, 24.5, 24.5, 25.3, 19.9, 26.8, 42.9, 18.4, 43.8],
    "insiderpages": [23.1, 28.8, 29.1, 32.1, 25.5, 23.1, 27.9, 37.7, 23.3, 35.9],
    "journals": [21.3, 26.8, 26.0, 27.4, 26.0, 21.5, 28.2, 46.1, 18.2, 46.5],
    "medium": [17.8, 22.2, 21.8, 21.3, 25.0, 17.8, 25.3, 39.3, 19.9, 43.4],
    "ign": [18.9, 23.8, 23.6, 22.6, 23.3, 18.7, 23.6, 40.9, 21.1, 39.6],
    "eventbrite": [19.1, 24.3, 23.8, 23.1, 24.3, 19.3, 25.0, 39.6, 20.9, 41.7],
    "macrumors": [20.3, 26.0, 26.3, 26.3, 24.5, 20.9, 25.5, 41.3, 22.4, 43.4],
    "androidheadlines": [20.7, 24.8, 25.8, 26.0, 24.5, 20.1, 25.3, 44.7, 22.6, 42.9],
    "glassdoor": [20.7, 26.0, 25.8, 27.7, 24.8, 21.1, 26.8, 42.5, 22.0, 42.5],
    "pcworld": [18.7, 22.6, 22.9, 23.6, 23.1, 18.7, 23.1, 42.1, 21.5, 42.9],
    "csmonitor": [18.9, 24.0, 23.8, 24.0, 23.6, 18.9, 23.8, 41.3, 21.5, 43.4],
    "lonelyplanet": [20.7, 26.0, 25.8, 25.0, 25.3, 20.7, 26.6, 40.4, 22.6, 42.9],
    "booking": [27.4, 33.4, 33.1, 35.9, 31.5, 27.4, 35.5, 37.0, 30.6, 49.4],
    "frontiersin": [21.1, 26.8, 25.5, 27.7, 26.0, 27.7, 26.0, 45.6, 19.3, 46.5],
}
ADAPTERS = list(TABLE_7)
YELP = NOVEL.index("yelp")


def losses(without: str | None = None) -> npt.NDArray[np.float64]:
    """Log perplexities (novel domains, adapters)."""
    return np.log([row for name, row in TABLE_7.items() if name != without]).T


def test_the_fixture_is_whole() -> None:
    assert losses().shape == (10, 21)


def test_the_oracle_over_singles_is_the_papers_row() -> None:
    chosen = oracle_single(losses())
    assert [round(math.exp(choice.loss), 1) for choice in chosen] == ORACLE
    assert round(float(np.mean([math.exp(choice.loss) for choice in chosen])), 2) == 23.62
    assert round(math.exp(float(np.mean([choice.loss for choice in chosen]))), 2) == 22.83
    names = [ADAPTERS[choice.adapter] for choice in chosen if choice.adapter is not None]
    assert names == [
        "dailymail", "wired", "wired", "dailymail", "wired", "medium", "wired", "booking", "journals", "insiderpages",
    ]  # fmt: skip


def test_with_the_base_as_candidate_the_row_is_the_same_while_insiderpages_is_there() -> None:
    assert oracle_single(losses(), np.log(BASE)) == oracle_single(losses())


def test_only_one_adapter_beats_doing_nothing_on_yelp() -> None:
    assert beating_base(losses(), np.log(BASE))[YELP] == 1
    assert beating_base(losses("insiderpages"), np.log(BASE))[YELP] == 0


def test_without_insiderpages_the_base_wins_yelp_and_the_rule_abstains() -> None:
    table = losses("insiderpages")
    chosen = oracle_single(table, np.log(BASE))
    assert [choice.abstains for choice in chosen] == [name == "yelp" for name in NOVEL]
    assert round(math.exp(chosen[YELP].loss), 1) == 36.2
    assert not oracle_single(table)[YELP].abstains  # without the base as a candidate something worse would be served
    choice = best_with_base(table[YELP], math.log(36.2))
    assert (choice.adapter, choice.abstains) == (None, True)


def test_a_margin_asks_for_more_than_a_little() -> None:
    row, base = losses()[YELP], math.log(36.2)
    gain = base - math.log(35.9)
    assert best_with_base(row, base, margin=gain * 0.99).adapter == ADAPTERS.index("insiderpages")
    assert best_with_base(row, base, margin=gain * 1.01).abstains


def test_a_tie_is_the_bases_and_then_the_earlier_adapters() -> None:
    assert best_with_base([2.0, 1.0], 1.0).abstains
    assert best_single([2.0, 1.0, 1.0]).adapter == 1


@given(st.lists(st.floats(0, 20), min_size=1, max_size=8), st.floats(0, 20), st.floats(0, 2))
def test_no_rule_with_the_base_loses_to_it(row: list[float], base: float, margin: float) -> None:
    choice = best_with_base(row, base, margin=margin)
    assert choice.loss <= base
    assert choice.loss == (base if choice.adapter is None else row[choice.adapter])
    assert best_single(row).loss == min(row)


@pytest.mark.parametrize("bad", [[], [[]], [[1.0, float("nan")]], [1.0], [[[1.0]]]])
def test_losses_that_are_none_are_refused(bad: list[float]) -> None:
    with pytest.raises(InvalidParameter):
        oracle_single(bad)


def test_base_and_adapters_are_of_the_same_domains() -> None:
    with pytest.raises(InvalidParameter, match="10 domains"):
        oracle_single(losses(), [1.0])
    with pytest.raises(InvalidParameter, match="10 domains"):
        beating_base(losses(), [1.0])
