"""Collections: which unnamed soups, selectors and blobs are due, what keeps them, and how long files stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from registry.catalogue import Catalogue
from registry.catalogue.pruning import Pruning
from registry.catalogue.removals import Removals
from registry.catalogue.rows import AdapterRow, SelectorRow
from registry.catalogue.selectors import Selectors
from registry.catalogue.usage import UsageFilter, UsageKey, UsageSum
from registry.context import Refits, Retention
from registry.lifecycle import changes
from registry.lifecycle import collect as module
from registry.lifecycle.collect import FILE_DELAY, Collected, collect, would_collect
from registry.lifecycle.purge import purge
from registry.names import temporary_name
from registry.select.fitted import latest_selector
from registry.select.requested import RequestedSelector
from registry.spec import CosineSpec, PoolSpec
from registry.spec.passage import encode_lines
from registry.uploads.files import renew_blob
from tests.registry.toy_registry import SHAPE, ToyRegistry, passages, sample

ON_DATABASES = ("sqlite",)  # their statements are the same on each kind
NOW = datetime.now(UTC)
GRACE = timedelta(days=7)
POOL = PoolSpec(base_fingerprint=SHAPE.fingerprint)


def after(days: float) -> datetime:
    return NOW + timedelta(days=days)


def collected(
    verbs: ToyRegistry, days: float, *, keep: int = 0, used: Callable[[Catalogue], set[str]] = lambda _: set()
) -> Collected:
    """A collection so many days from now; unnamed soups are kept for `keep` days."""
    return collect(replace(verbs.registry, retention=Retention(GRACE, keep)), after(days), used=used)


UPLOADED = b"nothing is made of this"
RECIPE = {"ingredients": [{"ref": "acme/law", "weight": 0.5}, {"ref": "acme/tax", "weight": 0.5}]}


def soup(verbs: ToyRegistry, **request: Any) -> AdapterRow:
    verbs.push_all("acme/law", "acme/tax")
    return verbs.row(verbs.cook(recipe=RECIPE, **request).soup_id)


def retire(verbs: ToyRegistry, *rows: AdapterRow, at: datetime | None = None) -> None:
    with verbs.database.write() as catalogue:
        for row in rows:
            catalogue.adapters.retire(row.id, at=at)


def fitted(verbs: ToyRegistry) -> SelectorRow:
    return verbs.fit(POOL, CosineSpec(), verbs.sentences.digest)


def purged(verbs: ToyRegistry, row: AdapterRow) -> None:
    purge(verbs.registry, verbs.caller(), row.id)


# --- blobs ----------------------------------------------------------------------------------------


def test_an_upload_that_nothing_is_made_of_goes_after_the_grace_period_and_its_file_a_day_later(
    verbs: ToyRegistry,
) -> None:
    digest = verbs.upload(UPLOADED)
    assert collected(verbs, 6.9) == Collected()
    done = collected(verbs, 7.1)
    assert (done.blobs, done.bytes, done.files) == (1, 23, 0)
    with verbs.database.read() as catalogue:
        assert not catalogue.blobs.is_visible(("acme",), digest)
        assert catalogue.limits.stored_bytes("key", "key-1") == 0
    (entry,) = verbs.audit("blob.collect")
    assert entry.detail == {"by": "collection", "digests": [digest]}
    assert verbs.blobs.has(digest)
    assert [collected(verbs, days).files for days in (7.2, 7.2 + FILE_DELAY.days)] == [0, 1]
    assert not verbs.blobs.has(digest)


def test_an_uploaded_sample_goes_while_the_soup_that_was_cooked_for_it_stays(verbs: ToyRegistry) -> None:
    verbs.ready_all("acme/law", "acme/tax")
    digest = verbs.upload(encode_lines(sample("law", "tax")["texts"]))
    cooked = verbs.row(verbs.cook(sample={"blob": digest}, name="acme/mixed").soup_id)
    assert cooked.sample.digest == digest
    assert collected(verbs, 7.1).blobs == 1
    assert collected(verbs, 7.2 + FILE_DELAY.days).files == 1
    assert not verbs.blobs.has(digest)
    assert verbs.row(cooked.id).retired_at is None


def test_nothing_is_removed_that_anything_is_made_of(verbs: ToyRegistry) -> None:
    """Live and retired adapters, samples, embeddings, the selector that serves, named soups and ingredients."""
    verbs.ready("acme/law")
    old = verbs.ready("acme/old", seed=2)
    soup(verbs, name="acme/mixed")
    soup(verbs, name="acme/soup-0123456789ab")
    fitted(verbs)
    retire(verbs, old)
    with verbs.database.read() as catalogue:
        digests = catalogue.blobs.digests()
    assert collected(verbs, 1000, keep=1) == Collected()
    assert all(map(verbs.blobs.is_whole, digests))


def test_what_a_job_reads_stays(verbs: ToyRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many others go in several transactions."""
    monkeypatch.setattr(module, "BATCH", 2)
    read = verbs.upload(UPLOADED)
    for number in range(5):
        verbs.upload(b"%d" % number)
    assert collected(verbs, 8, used=lambda _: {read}).blobs == 5
    assert collected(verbs, 8).blobs == 1


def test_a_client_that_asks_for_it_keeps_it(verbs: ToyRegistry) -> None:
    """It will not send what it hears is there; asking is a write only where nobody asked for long."""
    digest = verbs.upload(UPLOADED)

    def seen_at(grace: timedelta | None) -> datetime:
        renew_blob(replace(verbs.registry, retention=Retention(grace)), digest, 9)
        with verbs.database.read() as catalogue:
            return catalogue.blobs.seen_at(digest)

    first = seen_at(GRACE)
    assert seen_at(GRACE) == seen_at(None) == first
    assert seen_at(timedelta(microseconds=2)) > first


# --- unnamed soups --------------------------------------------------------------------------------


def test_one_that_nobody_uses_is_retired_then_removed_and_can_be_cooked_again(verbs: ToyRegistry) -> None:
    row = soup(verbs)
    assert row.name == "soup-" + row.digest[7:19]
    assert collected(verbs, 29, keep=30) == Collected()
    assert collected(verbs, 31, keep=30).retired == 1
    assert verbs.row(row.id).retired_at is not None
    assert collected(verbs, 37, keep=30) == Collected()
    done = collected(verbs, 39, keep=30)
    assert (done.soups, done.blobs) == (1, 1)
    with verbs.database.read() as catalogue:
        assert catalogue.adapters.get_or_none(row.id) is None
        assert catalogue.soups.recipe(row.recipe_digest) is None
    assert [entry.action for entry in verbs.audit()[-3:]] == ["adapter.expire", "adapter.collect", "blob.collect"]
    recooked = soup(verbs)
    assert (recooked.digest, recooked.version) == (row.digest, 2)


def test_one_that_was_only_compared_goes_as_they_do(verbs: ToyRegistry) -> None:
    """Its name is nobody's choice, and what only begins like it is somebody's."""
    row = soup(verbs, name=f"acme/{temporary_name()}")
    chosen = soup(verbs, name="acme/compare-mine")
    retire(verbs, row, chosen, at=after(0))
    assert collected(verbs, 9).soups == 1
    with verbs.database.read() as catalogue:
        assert catalogue.adapters.get_or_none(row.id) is None
        assert catalogue.adapters.get_or_none(chosen.id) is not None


def test_one_that_was_used_since_stays(verbs: ToyRegistry) -> None:
    used = UsageKey(after(25).date().isoformat(), "key-1", "acme", soup(verbs).ref)
    with verbs.database.write() as catalogue:
        catalogue.usage.add({used: UsageSum(requests=1)})
    assert [collected(verbs, days, keep=30).retired for days in (31, 60)] == [0, 1]


def test_one_that_was_restored_stays_as_one_that_was_used(verbs: ToyRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    row = soup(verbs)
    assert collected(verbs, 31, keep=30).retired == 1
    monkeypatch.setattr(changes, "now", lambda: after(32))
    changes.restore(verbs.registry, verbs.caller(), row.id, if_match=None)
    assert [collected(verbs, days, keep=30).retired for days in (61, 63)] == [0, 1]
    with verbs.database.read() as catalogue:
        assert catalogue.usage.list(UsageFilter("key-1", None), limit=100).rows == ()


def test_one_that_was_asked_for_again_stays(verbs: ToyRegistry) -> None:
    row = soup(verbs)
    verbs.cook(recipe=RECIPE)
    with verbs.database.read() as catalogue:
        cooked = [datetime.fromisoformat(record["created_at"]) for record in catalogue.soups.evidence(row.id)]
        assert len(cooked) == 2
        assert catalogue.removals.unused_soups("acme", max(cooked), limit=9) == []
        assert catalogue.removals.unused_soups("acme", after(1), limit=9) == [row.id]


def test_one_that_an_alias_points_at_stays(verbs: ToyRegistry) -> None:
    row = soup(verbs)
    with verbs.database.write() as catalogue:
        catalogue.aliases.put(row.namespace, row.name, "prod", row.version)
    assert collected(verbs, 1000, keep=1).retired == 0


def test_a_retired_one_that_another_soup_is_made_of_stays(verbs: ToyRegistry) -> None:
    row = soup(verbs)
    recipe = {"ingredients": [{"ref": row.ref, "weight": 0.5}, {"ref": "acme/tax", "weight": 0.5}]}
    verbs.cook(recipe=recipe, name="acme/of-a-soup")
    retire(verbs, row)
    assert collected(verbs, 1000).soups == 0


@pytest.mark.parametrize(("namespace_days", "retired"), [(None, 1), (0, 0), (5, 1), (2000, 0)])
def test_a_namespace_may_say_how_long(verbs: ToyRegistry, namespace_days: int | None, retired: int) -> None:
    soup(verbs)
    with verbs.database.write() as catalogue:
        catalogue.namespaces.set("acme", {"unnamed_soup_days": namespace_days})
    assert collected(verbs, 1000, keep=30).retired == retired


# --- selectors ------------------------------------------------------------------------------------


def test_one_that_no_longer_serves_goes(verbs: ToyRegistry) -> None:
    verbs.ready("acme/law")
    fitted(verbs)
    verbs.ready("acme/tax", seed=1)
    new = fitted(verbs)
    done = collected(verbs, 8)
    assert (done.selectors, done.blobs) == (1, 1)
    with verbs.database.read() as catalogue:
        assert [row.id for row in catalogue.selectors.list(None, limit=9).rows] == [new.id]


def test_one_that_a_soup_was_chosen_by_stays(verbs: ToyRegistry) -> None:
    verbs.ready_all("acme/law", "acme/tax")
    sample = {"texts": passages("law", seed=1)}
    assert verbs.cook(sample=sample, selector={"kind": "uniform"}, name="acme/mixed").evidence.selector is not None
    verbs.ready("acme/more", seed=2)
    verbs.cook(sample=sample, selector={"kind": "uniform"}, name="acme/other")
    assert collected(verbs, 1000).selectors == 0


def test_one_that_nobody_asks_for_goes_once_its_pool_is_another(verbs: ToyRegistry) -> None:
    """It would be fitted anew before it answered, and may hold what was computed from a purged sample."""
    verbs.ready("acme/law")
    tax = verbs.ready("acme/tax", seed=1)
    row = fitted(verbs)
    idle = replace(verbs.registry, retention=Retention(GRACE), refits=Refits(idle_after=timedelta(days=30)))
    assert collect(idle, after(31), used=lambda _: set()).selectors == 0  # its pool is what it was fitted over
    purged(verbs, tax)
    assert [collect(idle, after(days), used=lambda _: set()).selectors for days in (29, 31)] == [0, 1]
    assert latest_selector(verbs.database, RequestedSelector(verbs.tiny, POOL, CosineSpec())) is None
    refitted = fitted(verbs)
    assert [member.ref for member in refitted.members] == ["acme/law@1"]
    assert refitted.state_blob != row.state_blob


def test_one_whose_pool_is_empty_goes_unless_it_is_asked_for_at_that_moment(
    verbs: ToyRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    law = verbs.ready("acme/law")
    row = fitted(verbs)
    purged(verbs, law)
    stale_selectors = module._Collection.stale_selectors

    def then_asked(*args: Any) -> list[SelectorRow]:
        stale = stale_selectors(*args)
        with verbs.database.write() as catalogue:
            catalogue.selectors.record_request(row.pool_id, row.spec_digest, after(8))
        return stale

    assert collected(verbs, 6).selectors == 0
    with monkeypatch.context() as patch:
        patch.setattr(module._Collection, "stale_selectors", then_asked)
        assert collected(verbs, 8).selectors == 0
    assert collected(verbs, 16).selectors == 1


def test_a_trial_says_what_would_go_and_takes_nothing(verbs: ToyRegistry) -> None:
    row = soup(verbs)
    digest = verbs.upload(UPLOADED)
    registry = replace(verbs.registry, retention=Retention(GRACE, 1))
    moment = after(8)
    for _ in range(2):
        trial = would_collect(registry, moment, used=lambda _: set())
        assert (trial.retired, trial.expired, trial.blobs, trial.bytes) == (1, (row.ref,), 1, 23)
        assert verbs.row(row.id).retired_at is None
        with verbs.database.read() as catalogue:
            assert catalogue.blobs.is_visible(("acme",), digest)
        assert verbs.audit("adapter.expire") == []
    assert collect(registry, moment, used=lambda _: set(), caller=verbs.caller()) == trial
    (entry,) = verbs.audit("blob.collect")
    assert (entry.key_id, "by" in entry.detail) == ("key-1", False)  # the audit says who asked
    assert would_collect(registry, after(10), used=lambda _: set()) == Collected(files=1)
    assert verbs.blobs.has(digest)


@pytest.mark.parametrize(
    ("table", "method"), [(Removals, "unused_soups"), (Pruning, "count"), (Selectors, "unrequested_since")]
)
def test_others_write_while_a_trial_counts(
    verbs: ToyRegistry, monkeypatch: pytest.MonkeyPatch, table: type, method: str
) -> None:
    soup(verbs)
    written: list[str] = []
    real = getattr(table, method)

    def write_first(*args: Any, **named: Any) -> Any:
        written.append(verbs.upload(b"%d" % len(written)))
        return real(*args, **named)

    monkeypatch.setattr(table, method, write_first)
    registry = replace(verbs.registry, retention=Retention(GRACE, 1, audit_days=30))
    assert would_collect(registry, after(40), used=lambda _: set()).audit > 0
    assert written


# --- old rows -------------------------------------------------------------------------------------


# Ended jobs, usage and the audit, which nothing but a setting takes away.


def rows(verbs: ToyRegistry) -> dict[str, int]:
    with verbs.database.read() as catalogue:
        return {
            "jobs": len(catalogue.jobs.list(None, limit=100).rows),
            "usage": len(catalogue.usage.list(UsageFilter("key-1", None), limit=100).rows),
            "audit": len(verbs.audit()),
        }


@pytest.fixture
def prunable(verbs: ToyRegistry, monkeypatch: pytest.MonkeyPatch) -> ToyRegistry:
    """Five ended jobs, one of which two asked for, and one queued; five days of usage, five audit entries."""
    monkeypatch.setattr(module, "PRUNE_BATCH", 2)
    with verbs.database.write() as catalogue:
        jobs = [
            catalogue.jobs.enqueue("embed", {}, namespace="acme", created_by="key-1", dedupe_key=str(number))
            for number in range(6)
        ]
        catalogue.jobs.add_requester(jobs[0].id, "key-2", request_id=None)
        for job in jobs[:5]:
            catalogue.jobs.cancel(job.id)
        for number in range(5):
            day = after(-number).date().isoformat()
            used = UsageKey(day=day, key_id="key-1", namespace="acme", model="acme/law@1")
            catalogue.usage.add({used: UsageSum(1, 2, 3)})
            catalogue.audit.record("push", f"acme/a{number}", key_id="key-1", request_id=None, detail={})
    return verbs


def prune(verbs: ToyRegistry, days: float, **settings: int) -> Collected:
    registry = replace(verbs.registry, retention=Retention(None, **settings))
    trial = would_collect(registry, after(days), used=lambda _: set())
    outcome = collect(registry, after(days), used=lambda _: set())
    assert trial == outcome
    return outcome


def test_nothing_goes_that_no_setting_takes_away(prunable: ToyRegistry) -> None:
    prunable.upload(UPLOADED)
    row_counts = rows(prunable)
    assert prune(prunable, 100_000) == Collected()
    assert rows(prunable) == row_counts


def test_ended_jobs_go_after_their_days_and_others_stay(prunable: ToyRegistry) -> None:
    row_counts = rows(prunable)
    assert [prune(prunable, days, job_days=30) for days in (29, 31)] == [Collected(), Collected(jobs=5)]
    with prunable.database.read() as catalogue:
        assert [job.state for job in catalogue.jobs.list(None, limit=9).rows] == ["queued"]
    entries = prunable.audit("job.prune")
    assert [entry.subject for entry in entries] == ["2 rows", "2 rows", "1 rows"]
    assert entries[0].detail == {"by": "collection", "days": 30, "before": after(1).isoformat()}
    assert rows(prunable) == {**row_counts, "jobs": 1, "audit": row_counts["audit"] + 3}


def test_usage_goes_by_its_day(prunable: ToyRegistry) -> None:
    assert prune(prunable, 0, usage_days=2) == Collected(usage=2)
    with prunable.database.read() as catalogue:
        days = [row.day for row in catalogue.usage.list(UsageFilter("key-1", None), limit=9).rows]
    assert days == [after(-number).date().isoformat() for number in range(3)]


@pytest.mark.parametrize("namespace_days", [None, 4])
def test_usage_that_says_whether_a_soup_is_in_use_stays(prunable: ToyRegistry, namespace_days: int | None) -> None:
    """Usage stays as long as the server, or the namespace of a soup, keeps soups without use."""
    soup(prunable)
    with prunable.database.write() as catalogue:
        catalogue.namespaces.set("acme", {"unnamed_soup_days": namespace_days})
    assert prune(prunable, 0, usage_days=1, unnamed_soup_days=0 if namespace_days else 4) == Collected()
    assert prune(prunable, 1, usage_days=1, unnamed_soup_days=0 if namespace_days else 4) == Collected(usage=1)


def test_the_audit_goes_where_a_setting_says_so_and_says_that_it_did(prunable: ToyRegistry) -> None:
    with prunable.database.write() as catalogue, pytest.MonkeyPatch.context() as monkey:
        for days in range(28, 33):
            monkey.setattr("registry.catalogue.audit.now", lambda days=days: after(-days))
            catalogue.audit.record("old", f"{days}", key_id=None, request_id=None, detail={})
    audit_rows = rows(prunable)["audit"]
    assert prune(prunable, 0.1, audit_days=30) == Collected(audit=3)
    assert [entry.subject for entry in prunable.audit("old")] == ["28", "29"]
    assert [entry.subject for entry in prunable.audit("audit.prune")] == ["2 rows", "1 rows"]
    assert rows(prunable)["audit"] == audit_rows - 3 + 2
