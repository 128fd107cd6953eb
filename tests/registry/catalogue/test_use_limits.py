"""Limits, what is in use of them, and sums of usage, on every kind of database."""

from __future__ import annotations

from contextlib import suppress
from datetime import date

import pytest

from registry.catalogue import Database
from registry.catalogue.rate_buckets import SECOND
from registry.catalogue.usage import UsageFilter, UsageKey, UsageSum
from registry.errors import InvalidParameter, QuotaExceeded, RateLimitExceeded
from registry.names import sha256_digest
from registry.quotas import check_jobs, check_stored
from registry.spec import DefaultLimits, UseLimits
from tests.registry.catalogue.test_paging import all_rows
from tests.registry.catalogue_rows import add, sample_of, statements
from tests.registry.together import together

NONE = DefaultLimits()


def limit(database: Database, kind: str, subject: str, **numbers: int) -> None:
    with database.write() as catalogue:
        catalogue.limits.set(kind, subject, UseLimits(**numbers))  # type: ignore[arg-type]


def test_what_is_set_is_read_and_the_rest_is_the_servers(database: Database) -> None:
    limit(database, "key", "key-1", adapters=10**15, jobs=0)
    with database.read() as catalogue:
        limits = catalogue.limits.get("key", "key-1")
        assert limits == UseLimits(adapters=10**15, jobs=0)
        assert catalogue.limits.get("namespace", "key-1") == UseLimits()
        both = catalogue.limits.of_subjects([("namespace", "key-1"), ("key", "key-1")])
        assert both == {("key", "key-1"): UseLimits(adapters=10**15, jobs=0)}
    assert limits.over(UseLimits(jobs=5, stored_bytes=7)) == UseLimits(adapters=10**15, jobs=0, stored_bytes=7)
    limit(database, "key", "key-1", jobs=3)
    with database.read() as catalogue:
        assert catalogue.limits.get("key", "key-1") == UseLimits(jobs=3)


def test_each_byte_counts_once(database: Database) -> None:
    with database.write() as catalogue:
        row = add(catalogue, "acme/law")
        catalogue.blobs.grant("acme", row.weights_blob)
        blob = sha256_digest(b"other")
        catalogue.blobs.record(blob, 5)
        catalogue.blobs.record_upload("key-2", blob)
        catalogue.blobs.record_upload("key-2", blob)
        of_key = catalogue.limits.stored_bytes("key", row.created_by)
        assert of_key == catalogue.limits.stored_bytes("namespace", "acme") > 0
        assert catalogue.limits.stored_bytes("key", "key-2") == 5
        assert catalogue.limits.stored_bytes("namespace", "other") == 0
        catalogue.adapters.retire(row.id)
        assert catalogue.limits.adapters("namespace", "acme") == 0
        assert catalogue.limits.stored_bytes("namespace", "acme") == of_key


def test_text_that_a_soup_has_only_the_digest_of_is_charged_to_those_who_keep_it(database: Database) -> None:
    with database.write() as catalogue:
        sample = sample_of("law")
        add(catalogue, "acme/law", digest="law", sample=sample, sample_state="ready", created_by="key-1")
        catalogue.blobs.record(sample.digest, 1000)
        without = sample_of("law", has_text=False)
        add(catalogue, "beta/soup", digest="soup", sample=without, sample_state="ready", created_by="key-2")
        for kind, keeper, outsider in (("key", "key-1", "key-2"), ("namespace", "acme", "beta")):
            assert catalogue.limits.stored_bytes(kind, keeper) >= 1000
            assert catalogue.limits.stored_bytes(kind, outsider) < 1000


@pytest.mark.parametrize(("kind", "subject"), [("key", "key-1"), ("namespace", "acme")])
def test_of_two_at_the_same_time_one_passes(database: Database, kind: str, subject: str) -> None:
    limit(database, kind, subject, adapters=1)

    def push(number: int) -> bool:
        try:
            with database.write() as catalogue:
                row = add(catalogue, f"acme/{number}")
                check_stored(catalogue, NONE, "adapters", key_id="key-1", namespaces=[row.namespace])
        except QuotaExceeded:
            return False
        return True

    assert sorted(together(2, push)) == [False, True]
    with database.read() as catalogue:
        assert catalogue.limits.adapters("namespace", "acme") == 1


def test_jobs_that_were_asked_for_count(database: Database) -> None:
    limit(database, "namespace", "acme", jobs=1)

    def enqueue(kind: str, **arguments: bool) -> None:
        with database.write() as catalogue:
            catalogue.jobs.enqueue(kind, arguments, namespace="acme", created_by="k")
            check_jobs(catalogue, NONE, kind, key_id="k", namespace="acme")

    enqueue("embed")
    enqueue("fit", asked=False)
    enqueue("fit", asked=True)
    with pytest.raises(RateLimitExceeded, match="Namespace 'acme' has 1 jobs that wait or run, and its limit is 1"):
        enqueue("cook")
    with database.read() as catalogue:
        assert catalogue.jobs.count_active("cook") == 0


ROWS = {
    UsageKey(f"2026-01-0{day}", key, namespace, f"{namespace}/m@1"): UsageSum(1, 10 * day, day)
    for day in (1, 2, 3)
    for key in ("key-a", "key-b")
    for namespace in ("one", "two")
}


def test_usage_is_summed_by_what_is_asked_and_seen_by_whom_it_concerns(database: Database) -> None:
    for _ in range(2):
        with database.write() as catalogue:
            catalogue.usage.add(ROWS)
    with database.read() as catalogue:
        usage = catalogue.usage
        for usage_filter, expected in (
            (UsageFilter("x", None), UsageSum(24, 480, 48)),
            (UsageFilter("key-a", ()), UsageSum(12, 240, 24)),
            (UsageFilter("key-a", ("two",)), UsageSum(18, 360, 36)),
            (UsageFilter("x", ("none",)), UsageSum()),
            (
                UsageFilter("x", None, values={"namespace": "one", "key_id": None, "model": "one/m@1"}),
                UsageSum(12, 240, 24),
            ),
        ):
            assert usage.total(usage_filter) == expected, usage_filter
        since, until = date(2026, 1, 2), date(2026, 1, 3)
        (day,) = usage.list(UsageFilter("x", None, since=since, until=until), by=("day",), limit=9).rows
        assert (day.day, day.key_id, day.model, day.requests, day.tokens_in) == ("2026-01-02", None, None, 8, 160)


def test_pages_of_usage_are_the_whole(database: Database) -> None:
    which = UsageFilter("x", None)
    with database.write() as catalogue:
        catalogue.usage.add(ROWS)
        whole = catalogue.usage.list(which, limit=99).rows
        assert [row.day for row in whole] == sorted((key.day for key in ROWS), reverse=True)
        assert tuple(all_rows(lambda **page: catalogue.usage.list(which, **page), 5)) == whole
        for wrong in ("x", "é", "WzFd", "WyJhIl0=", "WyJcdTAwMDAiLCIiLCIiLCIiXQ=="):
            with pytest.raises(InvalidParameter):
                catalogue.usage.list(which, limit=5, cursor=wrong)


# --- buckets of rates -----------------------------------------------------------------------------


NAMES = [("Key 'a'", "tokens"), ("Key 'a'", "requests"), ("Namespace 'b'", "tokens")]


def test_a_new_bucket_is_empty_and_holds_what_is_put_into_it(database: Database) -> None:
    with database.write_unlocked() as catalogue:
        buckets = catalogue.rate_buckets.lock(NAMES)
        assert {name: bucket.used for name, bucket in buckets.items()} == dict.fromkeys(NAMES, 0.0)
        catalogue.rate_buckets.put({NAMES[0]: 2.5, NAMES[2]: 7.0}, buckets)
    with database.write_unlocked() as catalogue:
        reread = catalogue.rate_buckets.lock(NAMES[:2])
        assert [reread[name].used for name in NAMES[:2]] == [2.5, 0.0]
        assert 0 <= reread[NAMES[0]].seconds < 600
        assert reread[NAMES[0]].moment >= buckets[NAMES[0]].moment
        assert reread[NAMES[1]].seconds > 1e9, "since 1970"


def test_what_is_rolled_back_was_never_used(database: Database) -> None:
    with suppress(ZeroDivisionError), database.write_unlocked() as catalogue:
        catalogue.rate_buckets.put(dict.fromkeys(NAMES, 5.0), catalogue.rate_buckets.lock(NAMES))
        raise ZeroDivisionError
    with database.write_unlocked() as catalogue:
        assert {bucket.used for bucket in catalogue.rate_buckets.lock(NAMES).values()} == {0.0}


@pytest.mark.parametrize(("seconds", "used"), [(50, 3.0), (70, 0.0)])
def test_a_bucket_in_the_future_has_not_drained_or_is_of_a_clock_that_was_set_back(
    database: Database, seconds: int, used: float
) -> None:
    """Whoever waited for a row read the clock before, but not a minute before."""
    with database.write_unlocked() as catalogue:
        buckets = catalogue.rate_buckets.lock(NAMES[:1])
        catalogue.rate_buckets.put({NAMES[0]: 3.0}, buckets)
    with database.engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE rate_buckets SET at = at + {seconds * SECOND}")
    with database.write_unlocked() as catalogue:
        ahead = catalogue.rate_buckets.lock(NAMES[:1])[NAMES[0]]
        assert (ahead.used, ahead.seconds) == (used, 0.0)
        assert (ahead.moment == buckets[NAMES[0]].moment + seconds * SECOND) == (used > 0)


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
        assert [catalogue.pruning.rate_buckets(most) for most in (1, 10, 10)] == [1, 1, 0]
    with database.write_unlocked() as catalogue:
        buckets = catalogue.rate_buckets.lock(NAMES)
        assert [buckets[name].used for name in NAMES] == [0.0, 1.0, 0.0]
