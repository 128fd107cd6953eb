"""The laws of ranking: agreement, few moves, balance, and a second replica for what the first has too much of."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from service.router.ranking import Load, by_key, by_load, ranked

IDS = st.lists(st.text("abcdef0123456789", min_size=1, max_size=8), min_size=1, max_size=8, unique=True)
KEYS = st.text(max_size=40)
LOADS = st.builds(Load, st.integers(0, 100), st.integers(0, 32))


@given(IDS, KEYS, st.randoms(use_true_random=False))
def test_the_order_in_which_replicas_are_known_does_not_matter(ids, key, random):
    shuffled = random.sample(ids, len(ids))
    assert ranked(key, ids) == ranked(key, shuffled)
    assert sorted(ranked(key, ids)) == sorted(ids)


@given(IDS, KEYS, st.data())
def test_when_a_replica_goes_the_others_keep_their_order(ids, key, data):
    """So only what it was first for moves, and that to its second."""
    gone = data.draw(st.sampled_from(ids))
    left = [one for one in ranked(key, ids) if one != gone]
    assert ranked(key, [one for one in ids if one != gone]) == left


@given(IDS, st.text("ghij", min_size=1, max_size=8), KEYS)
def test_a_replica_that_comes_takes_keys_and_moves_none_between_others(ids, new, key):
    first = ranked(key, [*ids, new])[0]
    assert first in (new, ranked(key, ids)[0])


def test_keys_are_spread_evenly_and_so_are_their_seconds() -> None:
    ids = [f"replica-{number:012x}" for number in range(5)]
    orders = [ranked(f"tiny\nsha256:{number:064x}", ids) for number in range(5000)]
    for place in (0, 1):
        counts = Counter(order[place] for order in orders)
        assert all(850 < counts[one] < 1150 for one in ids), counts  # five standard deviations are 141
    seconds = Counter(order[1] for order in orders if order[0] == ids[0])
    assert all(seconds[one] > 150 for one in ids[1:]), "who goes leaves its keys to all others"


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=4), LOADS, min_size=1, max_size=6), KEYS)
def test_the_second_is_first_only_where_the_first_has_all_its_places_more_to_do(loads, key):
    order, found = ranked(key, loads), by_key(key, loads)
    assert found[2:] == order[2:]
    assert sorted(found) == sorted(loads)
    if found != order:
        first, second = loads[order[0]], loads[order[1]]
        assert first.requests >= max(1, first.places)
        assert first.share - second.share >= 1
    elif len(order) > 1:
        assert loads[order[0]].share - loads[order[1]].share < 1


def test_one_adapter_that_everybody_wants_is_spread_over_two_and_no_more() -> None:
    """Requests that come one after the other and do not end."""
    sent: Counter[str] = Counter()
    for _ in range(200):
        loads = {one: Load(sent[one], 16) for one in "abcde"}
        sent[by_key("hot", loads)[0]] += 1
    assert len(sent) == 2
    assert max(sent.values()) - min(sent.values()) == 16


def test_an_adapter_that_few_want_stays_where_it_is_loaded() -> None:
    """Whatever else its replica has to do, while that has a place."""
    first, second = ranked("cold", "ab")
    for busy in range(16):
        assert by_key("cold", {first: Load(busy, 16), second: Load(0, 16)})[0] == first


def test_where_both_are_full_a_request_less_moves_nothing() -> None:
    """Else every adapter would be loaded by both."""
    first, second = ranked("cold", "ab")
    assert by_key("cold", {first: Load(31, 16), second: Load(16, 16)})[0] == first
    assert by_key("cold", {first: Load(32, 16), second: Load(16, 16)})[0] == second


@given(st.dictionaries(st.text("abcdef", min_size=1, max_size=4), LOADS, min_size=1, max_size=6), st.integers(0, 99))
def test_what_no_adapter_ties_goes_to_the_one_with_the_least_to_do(loads, turn):
    shares = [loads[one].share for one in by_load(turn, loads)]
    assert shares == sorted(shares)


def test_idle_replicas_take_turns() -> None:
    loads = {one: Load(0, 16) for one in "abc"}
    firsts = Counter(by_load(turn, loads)[0] for turn in range(300))
    assert min(firsts.values()) > 50
