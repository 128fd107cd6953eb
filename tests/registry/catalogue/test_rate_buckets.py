"""Buckets of rates as rows: made when they are asked for, and changed by one at a time."""

from __future__ import annotations

from contextlib import suppress

from registry.catalogue import Database
from tests.registry.catalogue_rows import statements

NAMES = [("Key 'a'", "tokens"), ("Key 'a'", "requests"), ("Namespace 'b'", "tokens")]


def test_a_new_bucket_is_empty_and_holds_what_is_put_into_it(database: Database) -> None:
    with database.write_unlocked() as catalogue:
        held = catalogue.rate_buckets.lock(NAMES)
        assert {name: one.used for name, one in held.items()} == dict.fromkeys(NAMES, 0.0)
        catalogue.rate_buckets.put({NAMES[0]: 2.5, NAMES[2]: 7.0}, held)
    with database.write_unlocked() as catalogue:
        again = catalogue.rate_buckets.lock(NAMES[:2])
        assert [again[name].used for name in NAMES[:2]] == [2.5, 0.0]
        assert 0 <= again[NAMES[0]].seconds < 600
        assert again[NAMES[0]].moment >= held[NAMES[0]].moment
        assert again[NAMES[1]].seconds > 1e9, "since 1970"


def test_what_is_rolled_back_was_never_used(database: Database) -> None:
    with suppress(ZeroDivisionError), database.write_unlocked() as catalogue:
        catalogue.rate_buckets.put(dict.fromkeys(NAMES, 5.0), catalogue.rate_buckets.lock(NAMES))
        raise ZeroDivisionError
    with database.write_unlocked() as catalogue:
        assert {one.used for one in catalogue.rate_buckets.lock(NAMES).values()} == {0.0}


def test_a_clock_that_was_ahead_takes_nothing_back(database: Database) -> None:
    """The moment of a row in the future (whoever waited for the row read the clock before): nothing has worn off."""
    with database.write_unlocked() as catalogue:
        held = catalogue.rate_buckets.lock(NAMES[:1])
        catalogue.rate_buckets.put({NAMES[0]: 3.0}, held)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE rate_buckets SET at = at + 1000000000000")
    with database.write_unlocked() as catalogue:
        ahead = catalogue.rate_buckets.lock(NAMES[:1])[NAMES[0]]
        assert (ahead.used, ahead.seconds) == (3.0, 0.0)
        assert ahead.moment == held[NAMES[0]].moment + 10**12


def test_new_buckets_are_made_before_any_is_held(database: Database) -> None:
    """One that holds a bucket while it makes another could wait for one that made that and waits for this."""
    with database.write_unlocked() as catalogue:
        catalogue.rate_buckets.lock(NAMES[:1])
    with statements(database) as texts, database.write_unlocked() as catalogue:
        assert catalogue.rate_buckets.lock(NAMES).keys() == set(NAMES)
    assert [text.split()[0] for text in texts[-3:]] == ["SELECT", "INSERT", "SELECT"]


def test_buckets_of_which_nobody_takes_for_a_day_go(database: Database) -> None:
    with database.write_unlocked() as catalogue:
        catalogue.rate_buckets.put(dict.fromkeys(NAMES, 1.0), catalogue.rate_buckets.lock(NAMES))
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE rate_buckets SET at = at - 86400000000 WHERE measure = 'tokens'")
    with database.write() as catalogue:
        assert catalogue.pruning.rate_buckets(1) == 1
        assert catalogue.pruning.rate_buckets(10) == 1
        assert catalogue.pruning.rate_buckets(10) == 0
    with database.write_unlocked() as catalogue:
        held = catalogue.rate_buckets.lock(NAMES)
        assert [held[name].used for name in NAMES] == [0.0, 1.0, 0.0]
