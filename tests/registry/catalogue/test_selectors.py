"""Fitted selectors: immutable, visible with their whole pool, and which of them serves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from registry.catalogue.rows import SelectorRow
from registry.errors import NotFound
from registry.names import digest_of, sha256_digest
from registry.spec import CosineSpec, GmmSpec, PoolSpec, UniformSpec
from tests.registry.catalogue_rows import BASE, add, member_of, pool_of

ENCODER = sha256_digest(b"encoder")


def fitted(catalogue, id: str, *, pool: PoolSpec | None = None, spec=None, **fields) -> SelectorRow:
    """A selector with this id; its state has been stored."""
    pool, spec = pool or pool_of("acme"), spec or GmmSpec()
    state_blob = sha256_digest(id.encode())
    catalogue.blobs.record(state_blob, 1)
    values = {
        "pool_id": digest_of(pool),
        "pool": pool,
        "spec": spec,
        "spec_digest": digest_of(spec),
        "encoder_digest": ENCODER,
        "state_blob": state_blob,
        "members": (),
        "report": {"held_out_accuracy": 0.5},
    }
    return catalogue.selectors.add(SelectorRow(id=id, fitted_at=datetime.now(UTC), **{**values, **fields}))


def latest(catalogue, pool=None, spec=None) -> str | None:
    row = catalogue.selectors.latest(digest_of(pool or pool_of("acme")), digest_of(spec or GmmSpec()))
    return row and row.id


@pytest.mark.parametrize("spec", [GmmSpec(mode="paper", seed=3), CosineSpec(threshold=0.2), UniformSpec()])
@pytest.mark.parametrize("pool", [pool_of(), pool_of("acme", "b", method="m", tag="t", include_soups=True)])
def test_what_is_added_comes_back(catalogue, pool, spec):
    members = tuple(member_of(add(catalogue, f"acme/{name}")) for name in "ab")
    row = fitted(catalogue, "sel-1", pool=pool, spec=spec, members=members, encoder_digest=None)
    assert (row.pool, row.spec, row.members, row.encoder_digest) == (pool, spec, members, None)
    assert row.report == {"held_out_accuracy": 0.5}
    assert catalogue.selectors.get(None, "sel-1") == row


def test_each_pool_and_spec_is_served_by_what_was_fitted_last(catalogue):
    assert latest(catalogue) is None
    fitted(catalogue, "sel-1")
    fitted(catalogue, "sel-2", spec=GmmSpec(seed=1))
    fitted(catalogue, "sel-3", pool=pool_of("acme", "other"))
    assert (latest(catalogue), latest(catalogue, spec=GmmSpec(seed=1))) == ("sel-1", "sel-2")
    assert latest(catalogue, pool=pool_of("acme", "other")) == "sel-3"
    fitted(catalogue, "sel-4")
    assert latest(catalogue) == "sel-4"


def test_a_pool_that_returns_to_old_members_is_served_by_their_selector_again(catalogue):
    """Otherwise a selector with a member that is gone would serve for ever, and each refit change nothing."""
    before = fitted(catalogue, "sel-before")
    fitted(catalogue, "sel-with-one-more")
    assert fitted(catalogue, "sel-before") == before
    assert latest(catalogue) == "sel-before"


def test_what_serves_remembers_when_it_was_asked_for(catalogue):
    """A fit by itself is no asking; that of a pool never fitted is."""
    began = datetime.now(UTC)
    first = fitted(catalogue, "sel-1")
    assert catalogue.selectors.asked_at(["sel-1", "sel-?"])["sel-1"] >= began
    asked = began - timedelta(days=3)
    catalogue.selectors.record_request(first.pool_id, first.spec_digest, asked)
    fitted(catalogue, "sel-2", report={})
    assert catalogue.selectors.asked_at(["sel-1", "sel-2"]) == {"sel-2": asked}
    for since, count in ((asked, 1), (asked + timedelta(microseconds=1), 0), (None, 1)):
        assert len(catalogue.selectors.targets(BASE, requested_since=since)) == count
    assert catalogue.selectors.asked_at([]) == {}


@pytest.mark.parametrize(
    ("pool", "scope", "seen"),
    [
        (("acme",), None, True),
        (("acme",), ("acme",), True),
        (("acme",), ("acme", "other"), True),
        (("acme", "other"), ("acme",), False),
        (("acme", "other"), ("other", "acme", "more"), True),
        (("acme",), ("other",), False),
        (("acme",), (), False),
        ((), ("acme",), True),
        ((), (), True),
        (None, None, True),
        (None, ("acme",), False),
        (None, (), False),
        (None, ("*",), True),  # no key can have this namespace
    ],
)
def test_a_selector_is_visible_with_its_whole_pool(catalogue, pool, scope, seen):
    row = fitted(catalogue, "sel-1", pool=pool_of().model_copy(update={"namespaces": pool}))
    assert bool(catalogue.selectors.list(scope, limit=9).rows) is seen
    if seen:
        assert catalogue.selectors.get(scope, "sel-1") == row
    else:
        with pytest.raises(NotFound):
            catalogue.selectors.get(scope, "sel-1")


def test_unknown(catalogue):
    with pytest.raises(NotFound, match="no selector"):
        catalogue.selectors.get(None, "sel-?" + "x" * 5000)


def test_the_targets_of_a_base_are_each_pool_and_spec_once(catalogue):
    other = PoolSpec(base_fingerprint=sha256_digest(b"other base"))
    for id, pool, spec in (
        ("sel-1", pool_of("acme"), GmmSpec()),
        ("sel-2", pool_of("acme"), UniformSpec()),
        ("sel-3", pool_of(), GmmSpec()),
        ("sel-4", pool_of("acme"), GmmSpec()),
        ("sel-5", other, GmmSpec()),
    ):
        fitted(catalogue, id, pool=pool, spec=spec)
    assert catalogue.selectors.targets(BASE) == [
        (pool_of("acme"), UniformSpec()),
        (pool_of(), GmmSpec()),
        (pool_of("acme"), GmmSpec()),
    ]
    assert catalogue.selectors.targets(other.base_fingerprint) == [(other, GmmSpec())]
    assert catalogue.selectors.targets(other.base_fingerprint, requested_since=datetime.now(UTC)) == []
    assert catalogue.selectors.targets(sha256_digest(b"?")) == []


def test_those_that_serve_are_listed_by_kind_without_their_members(catalogue):
    other = pool_of("other")
    for id, pool, spec in (
        ("sel-1", pool_of("acme"), GmmSpec()),
        ("sel-2", pool_of("acme"), GmmSpec()),  # takes its place
        ("sel-3", other, GmmSpec()),
        ("sel-4", pool_of("acme"), UniformSpec()),
    ):
        fitted(catalogue, id, pool=pool, spec=spec, report={"domains": 7})
    fitted(catalogue, "sel-1", report={"domains": 7})  # serves again
    assert [(one.id, one.pool, one.domains) for one in catalogue.selectors.serving(None, "gmm")] == [
        ("sel-3", other, 7),
        ("sel-1", pool_of("acme"), 7),
    ]
    assert [one.id for one in catalogue.selectors.serving(("acme",), "gmm")] == ["sel-1"]
    assert [one.id for one in catalogue.selectors.serving(("acme",), "uniform")] == ["sel-4"]
    assert catalogue.selectors.serving((), "gmm") == []
