"""The cache of ended sequences: equal tokens of one scope are found and no others, in room that nobody needs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine import prefix_cache
from service.engine.kv_budget import MIN_ROW_POSITIONS, KVBudget
from service.engine.prefix_cache import BLOCK_SIZE, MAX_CANDIDATES, PrefixCache, common_length
from service.engine.request import GenerateRequest, LoadableAdapter, Request, SamplingParams, ScoreRequest
from service.engine.steps import CachedPrefix, Sequence, SequenceGroup, Ticket
from tests.service.engine.simulation import CONFIG

Ids = tuple[int, ...]


def sequence(
    ids: Ids,
    *,
    namespace: str | None = "a",
    adapter: str | None = None,
    base: str = "b",
    index: int = 0,
    done: int | None = None,
    request: Request | None = None,
) -> Sequence:
    """A sequence that has computed all its tokens but the newest, or `done` of them."""
    handle = None if adapter is None else LoadableAdapter(adapter, CONFIG, dict)
    group_request = request or GenerateRequest(base, ids, handle, SamplingParams(n=index + 1), namespace=namespace)
    group = SequenceGroup(group_request, Ticket(1))
    return Sequence(0, group, index, list(ids), 0, len(ids), computed=len(ids) - 1 if done is None else done)


def cache_of(*sequences: Sequence, limit: int | None = 100 * MIN_ROW_POSITIONS) -> PrefixCache:
    """A cache to which these were added."""
    cache = PrefixCache(KVBudget(limit, lambda _base_id: 1), "namespace")
    for ended_sequence in sequences:
        cache.add(ended_sequence)
    return cache


def long(length: int, start: int = 0) -> Ids:
    return tuple(range(start, start + length))


# --- finding --------------------------------------------------------------------------------------


def test_what_begins_alike_is_found_to_the_token() -> None:
    cache = cache_of(sequence(long(50)))
    [text], _ = cache.take_changes()
    assert text.ids == long(49)
    for ids, shared in (
        (long(100), 49),
        (long(49), 48),
        ((*long(37), 999, *long(9)), 37),
        (long(BLOCK_SIZE + 1), BLOCK_SIZE),
    ):
        assert cache.find(sequence(ids)) == (text, shared)
    for ids in (long(BLOCK_SIZE), (999, *long(60)), (*long(BLOCK_SIZE - 1), 999, *long(30))):
        assert cache.find(sequence(ids)) == (None, 0)


def test_the_text_that_has_most_is_taken() -> None:
    cache = cache_of(*(sequence((*long(end), 900 + end, *long(9))) for end in (20, 30, 25)))
    text, shared = cache.find(sequence(long(60)))
    assert (shared, text and text.ids[30]) == (30, 930)


def test_other_scopes_and_requests_that_share_nothing_find_nothing() -> None:
    cache = cache_of(sequence(long(50), adapter="d"))
    assert cache.find(sequence(long(50), adapter="d"))[1] == 49
    scored = GenerateRequest("b", long(50), params=SamplingParams(prompt_logprobs=True), namespace="a")
    for stranger in (
        sequence(long(50)),
        sequence(long(50), adapter="e"),
        sequence(long(50), adapter="d", namespace="b"),
        sequence(long(50), adapter="d", namespace=None),
        sequence(long(50), adapter="d", base="c"),
        sequence(long(50), request=scored),
        sequence(long(50), request=ScoreRequest("b", (long(50),))),
    ):
        assert cache.find(stranger) == (None, 0)


def test_tokens_whose_hashes_are_equal_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def equal(_scope: object, ids: Ids) -> Iterator[int]:
        return iter(range(len(ids) // BLOCK_SIZE))

    monkeypatch.setattr(prefix_cache, "block_hashes", equal)
    cache = cache_of(sequence(long(50)), sequence(long(50), namespace="b"), sequence(long(50, start=100)))
    text, shared = cache.find(sequence(long(40)))
    assert (text.ids, text.scope, shared) == (long(49), ("b", None, "a"), 39)
    assert cache.find(sequence(long(50, start=7))) == (None, 0)
    assert cache.find(sequence(long(50), namespace="c")) == (None, 0)


def test_a_look_compares_few_texts_however_many_begin_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    alike = (sequence((*long(BLOCK_SIZE), *[1000 + number] * BLOCK_SIZE)) for number in range(100))
    cache = cache_of(*alike, limit=1000 * MIN_ROW_POSITIONS)
    compared: list[Ids] = []
    monkeypatch.setattr(
        prefix_cache, "common_length", lambda first, second: compared.append(first) or common_length(first, second)
    )
    assert cache.find(sequence((*long(BLOCK_SIZE), *[7] * BLOCK_SIZE)))[1] == BLOCK_SIZE
    assert len(compared) == MAX_CANDIDATES


# --- keeping --------------------------------------------------------------------------------------


def test_the_longer_of_two_that_begin_alike_stays() -> None:
    cache = cache_of(sequence(long(30)), sequence(long(60)), sequence(long(40)))
    assert (len(cache), cache.bytes) == (1, 59)


def test_what_is_too_short_or_of_a_further_choice_is_not_kept() -> None:
    cache = cache_of(
        sequence(long(50), done=BLOCK_SIZE - 1),
        sequence(long(50), index=1),
        sequence(long(50), request=ScoreRequest("b", (long(50),))),
    )
    assert (len(cache), cache.take_changes()) == (0, ([], []))


def test_where_there_is_no_limit_nothing_is_kept() -> None:
    assert len(cache_of(sequence(long(50)), limit=None)) == 0


def test_the_least_recently_used_makes_room_and_what_a_step_takes_over_stays() -> None:
    cache = cache_of(*(sequence(long(41, start=100 * number)) for number in range(3)))
    first, second, third = cache.take_changes()[0]
    assert cache.find(sequence(long(41)))[0] is first
    assert cache.evict_bytes(1)
    assert cache.take_changes() == ([], [second])
    cache.pin(first)
    assert not cache.evict_bytes(41), "of what is pinned nothing can be had"
    assert len(cache) == 2
    assert cache.evict_bytes(40)
    assert cache.take_changes() == ([], [third])
    cache.unpin_except(())
    assert cache.evict_bytes(40)
    assert (len(cache), cache.bytes, cache._prefixes_by_block) == (0, 0, {})


def test_a_base_model_that_is_dropped_takes_its_texts_along() -> None:
    cache = cache_of(*(sequence(long(50), base=base) for base in "bc"))
    cache.take_changes()
    cache.evict_base("b")
    assert [text.scope[0] for text in cache.take_changes()[1]] == ["b"]
    assert cache.find(sequence(long(50), base="b")) == (None, 0)
    assert cache.find(sequence(long(50), base="c"))[1] == 49


def test_what_goes_before_it_was_copied_is_never_told_of() -> None:
    cache = cache_of(sequence(long(50)))
    cache.evict_bytes(1)
    assert cache.take_changes() == ([], [])


words = st.lists(st.integers(0, 1), min_size=1, max_size=4).map(
    lambda blocks: tuple(token for block in blocks for token in (block,) * BLOCK_SIZE)
)
texts = st.tuples(words, st.lists(st.integers(0, 2), max_size=BLOCK_SIZE).map(tuple)).map(
    lambda runs: (*runs[0], *runs[1])
)
steps = st.lists(
    st.tuples(
        st.sampled_from(["keep", "keep", "find", "room"]), texts, st.sampled_from("ab"), st.sampled_from([None, "d"])
    ),
    max_size=60,
)


@given(steps, st.integers(0, 400))
def test_what_is_found_is_what_was_kept_and_did_not_go(
    script: list[tuple[str, Ids, str, str | None]], limit: int
) -> None:
    space = KVBudget(limit, lambda _base_id: 1)
    cache = PrefixCache(space, "namespace")
    there: dict[CachedPrefix, None] = {}
    for action, ids, namespace, adapter in script:
        drawn_sequence = sequence(ids, namespace=namespace, adapter=adapter)
        if action == "keep":
            cache.add(drawn_sequence)
        elif action == "room":
            cache.evict_bytes(len(ids))
        else:
            text, shared = cache.find(drawn_sequence)
            candidates = [prefix for prefix in there if prefix.scope == ("b", adapter, namespace)]
            most = max((common_length(prefix.ids, ids[:-1]) for prefix in candidates), default=0)
            if text is None:
                assert most < BLOCK_SIZE
            else:
                assert text in candidates
                assert shared == common_length(text.ids, ids[:-1])
                assert shared // BLOCK_SIZE == most // BLOCK_SIZE
                assert shared < len(ids)
        fresh, gone = cache.take_changes()
        there.update(dict.fromkeys(fresh))
        for text in gone:
            del there[text]
        assert cache.bytes == space.bytes == sum(text.positions for text in there) <= limit
        assert len(cache) == len(there)
