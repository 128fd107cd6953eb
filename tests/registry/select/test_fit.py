"""Pools and fits: who is a member, what a repeat is, what came and went since, and who is refitted."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from unittest.mock import Mock

import pytest

from registry.catalogue import Catalogue
from registry.catalogue.rows import SelectorRow
from registry.catalogue.selectors import Selectors
from registry.context import Refits
from registry.errors import Busy, DamagedBlob, Forbidden, InvalidParameter, Unavailable
from registry.samples.embeddings_file import save_embeddings
from registry.select import fit as fit_module
from registry.select.fitted import USE_RESOLUTION, current_selector, latest_selector, load_selector, record_use
from registry.select.pools import (
    enqueue_refits,
    gone_members,
    members_of,
    missing_members,
    pool_base,
    pool_spec,
)
from registry.select.requested import RequestedSelector
from registry.selectors import cosine, posterior, updating
from registry.spec import (
    BankConfig,
    Card,
    CosineSpec,
    GmmSpec,
    HeadConfig,
    PoolRequest,
    PoolSpec,
    PosteriorSpec,
    SelectorSpec,
    UniformSpec,
)
from registry.stored.files import remove_files
from tests.postgres import Databases
from tests.registry.catalogue_rows import statements
from tests.registry.toy_registry import (
    CONFIG,
    LORA,
    SHAPE,
    ToyRegistry,
    embed_texts,
    passages,
    purging,
    vectors_of,
)

ON_DATABASES = ("sqlite",)  # what they ask a catalogue, its own tests, `test_cook` and the last one here ask each kind
HEAD = HeadConfig(task="classification", labels=("no", "yes"))
POOL = PoolSpec(base_fingerprint=SHAPE.fingerprint)
SBERT = CosineSpec()
BOTH = ["acme/code@1", "acme/law@1"]


def members(verbs: ToyRegistry, pool: PoolSpec = POOL, encoder: str | None = None) -> list[str]:
    with verbs.database.read() as catalogue:
        return [row.ref for row in members_of(catalogue, pool, encoder).rows]


def missing(catalogue: Catalogue, row: SelectorRow) -> tuple[str, ...]:
    rows = members_of(catalogue, row.pool, row.encoder_digest).rows
    return missing_members([*rows, *catalogue.adapters.pending(row.pool)], row)


def fitted_refs(verbs: ToyRegistry, spec: SelectorSpec = GmmSpec()) -> list[str]:
    """The members of a fit of the pool."""
    return [member.ref for member in verbs.fit(POOL, spec, verbs.base.digest).members]


def embed_otherwise(verbs: ToyRegistry, name: str) -> None:
    """Embed an adapter's sample as another machine would, whose vectors differ."""
    otherwise = [replace(embedded, vector=-embedded.vector) for embedded in embed_texts(passages("law"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verbs.base, "_embed", lambda _texts, **_options: otherwise)
        verbs.embed(verbs.named(name))


def best_domain(verbs: ToyRegistry, row: SelectorRow, domain: str) -> str:
    """The domain that a selector finds nearest to passages of this one."""
    ranking = load_selector(verbs.registry, row).rank(verbs.base.encode(passages(domain, seed=5)).vectors)
    return ranking.ranked[0].member.domain


def damaged_vectors(verbs: ToyRegistry, name: str) -> str:
    """Damage the stored vectors of an adapter's sample; gives their blob."""
    with verbs.database.read() as catalogue:
        blob = catalogue.samples.embedding(verbs.named(name).sample.digest, verbs.base.digest).blob_digest
    data = verbs.blobs.read(blob)
    verbs.blobs.damage(blob, data[:-1] + bytes([data[-1] ^ 1]))
    return blob


# --- damage ---------------------------------------------------------------------------------------


@pytest.fixture
def fitted(verbs) -> SelectorRow:
    verbs.ready_all("acme/law", "acme/code")
    return verbs.fit(POOL, CosineSpec(encoder="base"), verbs.base.digest)


@pytest.mark.parametrize("lost", [False, True])
def test_a_selector_whose_state_is_damaged_is_not_used_and_the_next_fit_makes_it_again(verbs, fitted, lost):
    state = verbs.blobs.read(fitted.state_blob)
    if lost:
        verbs.blobs.delete(fitted.state_blob)
    else:
        verbs.blobs.damage(fitted.state_blob, state[:-1] + bytes([state[-1] ^ 1]))
    with pytest.raises(DamagedBlob, match=fitted.state_blob):
        load_selector(verbs.registry, fitted)
    assert current_selector(verbs.registry, RequestedSelector(verbs.tiny, POOL, CosineSpec(encoder="base"))) is None
    refitted = verbs.fit(POOL, CosineSpec(encoder="base"), verbs.base.digest)
    assert (refitted.id, verbs.blobs.read(refitted.state_blob)) == (fitted.id, state)


def test_vectors_that_are_damaged_are_made_again_from_the_text(verbs, fitted):
    blob = damaged_vectors(verbs, "acme/law")
    partly = verbs.fit(POOL, GmmSpec(), verbs.base.digest)
    assert [member.ref for member in partly.members] == ["acme/code@1"]
    row = verbs.named("acme/law")
    assert row.sample_state == "pending"
    with verbs.database.read() as catalogue:
        assert missing(catalogue, partly) == ("acme/law@1",)
        job = catalogue.jobs.find_active(f"embed:{row.id}")
        (entry,) = catalogue.audit.list(None, action="sample.embed_again", limit=9).rows
    assert (job.arguments, entry.subject, entry.detail["job"]) == ({"adapter_id": row.id}, "acme/law@1", job.id)
    verbs.embed(row)
    assert verbs.blobs.is_whole(blob)
    assert fitted_refs(verbs) == BOTH


def test_where_all_are_damaged_the_fit_is_tried_again_once_they_are_there(verbs, fitted):
    for name in ("acme/law", "acme/code"):
        damaged_vectors(verbs, name)
    for _ in range(2):
        with pytest.raises(Unavailable, match="2 wait for their sample to be embedded"):
            fitted_refs(verbs)
    for name in ("acme/law", "acme/code"):
        verbs.embed(verbs.named(name))
    assert len(fitted_refs(verbs)) == 2


def test_where_they_come_out_otherwise_the_new_ones_are_read(verbs, fitted):
    blob = damaged_vectors(verbs, "acme/law")
    fitted_refs(verbs)
    embed_otherwise(verbs, "acme/law")
    assert fitted_refs(verbs) == BOTH
    with verbs.database.read() as catalogue:
        embedding = catalogue.samples.embedding(verbs.named("acme/law").sample.digest, verbs.base.digest)
    assert embedding.blob_digest != blob


@pytest.mark.parametrize("text", ["none was sent", "damaged too"])
def test_without_a_text_the_fit_fails_and_names_whose_they_are(verbs, fitted, text):
    if text == "none was sent":
        verbs.push("acme/tax", seed=5, sample=vectors_of(verbs.base, passages("tax")))
    else:
        verbs.ready("acme/tax", seed=5)
        verbs.blobs.damage(verbs.named("acme/tax").sample.digest, b"other")
    blob = damaged_vectors(verbs, "acme/tax")
    damaged_vectors(verbs, "acme/law")
    for _ in range(2):
        with pytest.raises(DamagedBlob, match=f"of acme/tax@1 are damaged .blob {blob}.*push it again"):
            fitted_refs(verbs)
    assert verbs.named("acme/law").sample_state == "pending"  # what could be mended is being


def test_what_was_fitted_over_vectors_that_are_damaged_and_gone_is_fitted_as_a_whole(verbs, fitted):
    damaged_vectors(verbs, "acme/law")
    verbs.retire(verbs.named("acme/law").id)
    assert fitted_refs(verbs, CosineSpec(encoder="base")) == ["acme/code@1"]


# --- made again meanwhile -------------------------------------------------------------------------


# Damaged vectors that somebody else has made whole in the middle of a fit: it goes by these, and none fails.


@pytest.fixture
def blob(verbs) -> str:
    """The blob of vectors that are damaged, of one of two adapters."""
    verbs.ready_all("acme/law", "acme/code")
    return damaged_vectors(verbs, "acme/law")


def test_stored_elsewhere_after_they_were_looked_up(verbs, blob, monkeypatch):
    """They come out otherwise, as on another machine, and the fit still reads the blob that was damaged."""
    read = verbs.blobs.read

    def first(digest):
        if digest == blob:
            monkeypatch.undo()
            assert fitted_refs(verbs, CosineSpec(encoder="base")) == ["acme/code@1"]
            embed_otherwise(verbs, "acme/law")
        return read(digest)

    monkeypatch.setattr(verbs.blobs, "read", first)
    assert fitted_refs(verbs) == BOTH
    assert not verbs.blobs.is_whole(blob)


def test_whole_by_the_time_that_they_could_be_forgotten(verbs, blob, monkeypatch):
    copy, write = save_embeddings(verbs.base.encode(passages("law")).vectors), verbs.database.write

    def put_back():
        monkeypatch.undo()
        assert verbs.blobs.put_bytes(copy) == blob
        return write()

    monkeypatch.setattr(verbs.database, "write", put_back)
    assert fitted_refs(verbs) == BOTH
    assert verbs.named("acme/law").sample_state == "ready"
    with verbs.database.read() as catalogue:
        assert catalogue.audit.list(None, action="sample.embed_again", limit=9).rows == ()


def test_what_is_damaged_whenever_it_is_read_and_whole_whenever_it_is_looked_at_ends_the_fit(verbs, blob, monkeypatch):
    monkeypatch.setattr(verbs.blobs, "is_whole", lambda _: True)  # a disk that is about to fail
    with pytest.raises(DamagedBlob, match=blob):
        fitted_refs(verbs)


@pytest.fixture
def two(verbs) -> None:
    verbs.ready_all("acme/law", "acme/code")


@pytest.mark.parametrize(
    ("where", "function"),
    [
        (lambda _: fit_module._PoolFit, "fit"),
        (lambda verbs: verbs.blobs, "read"),
        (lambda _: fit_module, "dump_state"),
    ],
    ids=["before its vectors are looked up", "before they are read", "after they were read"],
)
def test_a_fit_is_repeated_without_what_is_purged_meanwhile(verbs, two, monkeypatch, where, function):
    digests = set(verbs.blobs.digests())
    purging(verbs, monkeypatch, where(verbs), function)
    row = verbs.fit(POOL, GmmSpec(), verbs.base.digest)
    assert [member.ref for member in row.members] == ["acme/code@1"]
    remove_files(verbs.registry, datetime.now(UTC))
    assert set(verbs.blobs.digests()) - digests == {row.state_blob}  # not what the first fit computed


def test_a_fit_that_another_one_overtakes_begins_again_with_the_members_of_now(verbs, two, monkeypatch):
    dump, digests = fit_module.dump_state, set()

    def overtaken(*state):
        monkeypatch.undo()
        verbs.ready("acme/zoo", seed=2)
        digests.update(verbs.blobs.digests())
        fitted_refs(verbs)
        return dump(*state)

    monkeypatch.setattr(fit_module, "dump_state", overtaken)
    assert fitted_refs(verbs) == [*BOTH, "acme/zoo@1"]
    row = latest_selector(verbs.database, RequestedSelector(verbs.tiny, POOL, GmmSpec()))
    assert len(row.members) == 3
    remove_files(verbs.registry, datetime.now(UTC))
    assert set(verbs.blobs.digests()) - digests == {row.state_blob}


def test_a_fit_that_the_database_refuses_leaves_nothing(verbs, two, monkeypatch):
    digests = set(verbs.blobs.digests())
    monkeypatch.setattr(Selectors, "add", Mock(side_effect=Busy("The database is busy.")))
    with pytest.raises(Busy):
        fitted_refs(verbs)
    assert set(verbs.blobs.digests()) == digests


def test_nobody_takes_the_place_of_another_namespaces_adapter(verbs):
    """Neither with the label of its domain nor with its own bytes: both would be chosen in its stead."""
    for name, domain, seed in (
        ("acme/law", "law", 0),
        ("acme/zoo", "zoo", 1),
        ("evil/law", "law", 2),
        ("evil/copy", "anything", 1),
        ("evil/other", "acme/law", 3),  # not the domain `law` of namespace `acme`
    ):
        verbs.ready(name, domain=domain, seed=seed)
    assert {member.ref: member.domain for member in verbs.fit(POOL, GmmSpec(), verbs.base.digest).members} == {
        "evil/other@1": "evil/acme/law",
        "acme/law@1": "acme/law",
        "evil/law@1": "evil/law",
        "acme/zoo@1": "zoo",
    }


def test_members_are_those_with_vectors_of_the_encoder(verbs):
    verbs.ready("acme/law")
    verbs.push("acme/private", sample=vectors_of(verbs.base, passages("private")), seed=1)
    assert members(verbs, encoder=verbs.base.digest) == ["acme/law@1", "acme/private@1"]
    assert members(verbs, encoder=verbs.sentences.digest) == ["acme/law@1"]


@pytest.mark.parametrize(
    ("requested", "scope", "namespaces"),
    [(None, None, None), (None, ("b", "a", "a"), ("a", "b")), (("a",), ("b", "a"), ("a",)), (("a",), None, ("a",))],
)
def test_open_namespaces_are_what_the_key_reads(requested, scope, namespaces):
    assert pool_spec(PoolRequest(namespaces=requested), SHAPE, scope).namespaces == namespaces


def test_a_foreign_namespace_is_forbidden():
    with pytest.raises(Forbidden, match="'theirs'"):
        pool_spec(PoolRequest(namespaces=("a", "theirs")), SHAPE, ("a",))


def test_the_base_of_a_pool():
    assert pool_base(PoolRequest(), {"tiny": SHAPE}) == "tiny"
    assert pool_base(PoolRequest(base_model="b"), {"a": SHAPE, "b": SHAPE}) == "b"
    for base_model, bases, sentence in (
        (None, {"a": SHAPE, "b": SHAPE}, "is not given; this server has: a, b"),
        ("c", {"a": SHAPE}, "'c' is not on the allowlist"),
        (None, {}, "this server has: none"),
    ):
        with pytest.raises(InvalidParameter, match=sentence):
            pool_base(PoolRequest(base_model=base_model), bases)


# --- fit ------------------------------------------------------------------------------------------


def test_a_fitted_selector_is_stored_and_answers_the_same_when_loaded(verbs):
    verbs.ready_all("acme/law", "acme/code", "acme/zoo")
    row = verbs.fit(POOL, GmmSpec(), verbs.base.digest)
    assert row.id.startswith("sel-")
    assert [member.domain for member in row.members] == ["code", "law", "zoo"]
    assert row.report["held_out_accuracy"] == 1.0
    assert best_domain(verbs, row, "law") == "law"
    assert load_selector(verbs.registry, row) is load_selector(verbs.registry, row)
    shared = load_selector(verbs.registry, verbs.fit(POOL, CosineSpec(encoder="base"), verbs.base.digest))
    with pytest.raises(ValueError, match="read-only"):
        shared.rows_.means[0] = 0.0


@pytest.mark.parametrize("spec", [GmmSpec(), UniformSpec()])
def test_the_same_members_give_the_selector_there_is(verbs, spec):
    verbs.ready_all("acme/law", "acme/code")
    encoder = None if spec.kind == "uniform" else verbs.base.digest
    first = verbs.fit(POOL, spec, encoder)
    verbs.progress_messages.clear()
    assert verbs.fit(POOL, spec, encoder) == first
    assert verbs.progress_messages == []


def test_retired_and_pushed_again_is_another_selector(verbs):
    """Its bytes are under a new row: the old selector would leave it out for ever."""
    first = verbs.ready("acme/law")
    verbs.ready("acme/code", seed=1)
    earlier = verbs.fit(POOL, GmmSpec(), verbs.base.digest)
    verbs.retire(first.id)
    verbs.ready("acme/law")
    after = verbs.fit(POOL, GmmSpec(), verbs.base.digest)
    assert after.id != earlier.id
    with verbs.database.read() as catalogue:
        assert gone_members(catalogue, after) == {}
        assert list(gone_members(catalogue, earlier)) == [first.digest]


def test_an_empty_pool_says_what_is_missing(verbs):
    with pytest.raises(InvalidParameter, match="push adapters with a sample first"):
        fitted_refs(verbs)
    for name, config in {"bank": BankConfig(expert=CONFIG), "task": HEAD}.items():  # which never belong to one
        verbs.push(f"acme/{name}", config=config, sample={"texts": passages(name)})
    with pytest.raises(InvalidParameter, match="push adapters with a sample first"):
        fitted_refs(verbs)
    verbs.push("acme/law", sample={"texts": passages("law")})
    with pytest.raises(Unavailable, match="1 wait for their sample"):
        fitted_refs(verbs)


def test_another_encoder_is_not_the_one_fitted(verbs):
    verbs.ready_all("acme/law", "acme/code")
    row = verbs.fit(POOL, SBERT, verbs.sentences.digest)
    requested = RequestedSelector(verbs.tiny, POOL, SBERT)
    assert latest_selector(verbs.database, requested) == row
    verbs.sentences.digest = "sha256:" + "0" * 64
    assert latest_selector(verbs.database, requested) is None


def test_what_came_and_what_went(verbs):
    law, code = verbs.ready("acme/law"), verbs.ready("acme/code", seed=1)
    row = verbs.fit(POOL, GmmSpec(), verbs.base.digest)
    verbs.ready("acme/zoo", seed=2)
    verbs.retire(law.id)
    with verbs.database.read() as catalogue:
        assert missing(catalogue, row) == ("acme/zoo@1",)
        assert list(gone_members(catalogue, row)) == [law.digest]
    newer = verbs.push("acme/code", seed=3, sample={"texts": passages("code")})
    with verbs.database.read() as catalogue:  # its successor is not embedded yet
        assert code.digest not in gone_members(catalogue, row)
    verbs.embed(newer.row)
    with verbs.database.read() as catalogue:  # embedded, but the selector that knows it is still to be fitted
        assert code.digest not in gone_members(catalogue, row)
        assert "acme/code@2" in missing(catalogue, row)


def test_pools_it_may_belong_to_are_refitted_once(verbs):
    law, code = verbs.ready("acme/law"), verbs.ready("other/code", seed=1)
    verbs.ready("acme/lora", config=LORA)
    narrowed = [
        {},
        {"namespaces": ("acme",)},
        {"method": "bottleneck"},
        {"include_soups": True},
        {"namespaces": ("other",)},
        {"method": "lora"},
    ]
    pools = [POOL.model_copy(update=fields) for fields in narrowed]
    for pool in pools:
        verbs.fit(pool, UniformSpec(), None)
    with verbs.database.write() as catalogue:
        jobs = enqueue_refits(catalogue, law, created_by="key-1", refits=Refits(delay=5))
        assert enqueue_refits(catalogue, law, created_by="key-1", refits=Refits(delay=5)) == jobs
        refitted = [PoolSpec.model_validate(catalogue.jobs.get(None, job).arguments["pool"]) for job in jobs]
        assert refitted == pools[:4]
        assert len(enqueue_refits(catalogue, code, created_by="key-1", refits=Refits(delay=5))) == 4


@pytest.mark.parametrize("tag", [None, "x"])
def test_what_a_selection_or_a_fit_asks_of_the_database_does_not_grow_with_the_pool(verbs, tag):
    pool, statement_counts = POOL.model_copy(update={"tag": tag}), {}
    for number in range(9):
        verbs.ready(f"acme/a{number}", seed=number, card=Card(tags=("x",)))
        if number in (1, 2, 8):  # the first one finds no selector to update
            row = verbs.fit(pool, GmmSpec(), verbs.base.digest)
            with statements(verbs.database) as selecting, verbs.database.read() as catalogue:
                assert (gone_members(catalogue, row), missing(catalogue, row)) == ({}, ())
            with statements(verbs.database) as fitting:
                assert verbs.fit(pool, CosineSpec(encoder="base"), verbs.base.digest).members == row.members
            statement_counts[number] = len(selecting), len(fitting)
    assert all(0 < nine <= three for three, nine in zip(statement_counts[2], statement_counts[8], strict=True))


# --- idle -----------------------------------------------------------------------------------------


# Nobody asked for a selector in so long that pushes leave it as it is.

IDLE_AFTER = timedelta(days=30)


@pytest.fixture
def row(verbs):
    """A fitted selector, in a registry where selectors become idle."""
    verbs.registry = replace(verbs.registry, refits=Refits(idle_after=IDLE_AFTER))
    verbs.ready("acme/law")
    return verbs.fit(POOL, UniformSpec(), None)


def record_asking(verbs: ToyRegistry, row: SelectorRow, ago: timedelta) -> None:
    with verbs.database.write() as catalogue:
        catalogue.selectors.record_request(row.pool_id, row.spec_digest, datetime.now(UTC) - ago)


def asked_ago(verbs: ToyRegistry, row: SelectorRow) -> timedelta:
    with verbs.database.read() as catalogue:
        return datetime.now(UTC) - catalogue.selectors.asked_at([row.id])[row.id]


def count_refits(verbs: ToyRegistry) -> int:
    """How many fits a push of a new adapter leads to."""
    pushed = verbs.ready("acme/code", seed=1)
    with verbs.database.write() as catalogue:
        return len(enqueue_refits(catalogue, pushed, created_by="key-1", refits=verbs.registry.refits))


def answers(verbs: ToyRegistry) -> SelectorRow | None:
    return current_selector(verbs.registry, RequestedSelector(verbs.tiny, POOL, UniformSpec()))


@pytest.mark.parametrize(
    ("period", "days", "refits"),
    [(IDLE_AFTER, 29, 1), (IDLE_AFTER, 31, 0), (None, 9999, 1)],
    ids=["asked", "idle", "never idle"],
)
def test_pushes_have_only_those_refitted_that_somebody_asks_for(verbs, row, period, days, refits):
    verbs.registry = replace(verbs.registry, refits=Refits(idle_after=period))
    record_asking(verbs, row, timedelta(days=days))
    assert count_refits(verbs) == refits
    assert answers(verbs) == (row if refits else None)


def test_an_idle_one_whose_pool_changed_is_fitted_first(verbs, row):
    record_asking(verbs, row, 2 * IDLE_AFTER)
    count_refits(verbs)
    assert answers(verbs) is None
    assert asked_ago(verbs, row) > IDLE_AFTER  # a fit that fails leaves it idle
    after = verbs.fit(POOL, UniformSpec(), None)
    assert [member.ref for member in after.members] == BOTH
    assert asked_ago(verbs, after) > IDLE_AFTER
    record_use(verbs.registry, after, "tiny", created_by="key-1")
    assert answers(verbs) == after
    assert asked_ago(verbs, after) < USE_RESOLUTION
    with verbs.database.read() as catalogue:
        assert catalogue.jobs.active("fit") == []


def test_what_is_pushed_while_an_idle_one_is_fitted_has_a_refit_when_it_is_there(verbs, row):
    record_asking(verbs, row, 2 * IDLE_AFTER)
    after = verbs.fit(POOL, UniformSpec(), None)
    assert count_refits(verbs) == 0  # it is idle still
    record_use(verbs.registry, after, "tiny", created_by="key-1")
    with verbs.database.read() as catalogue:
        (job,) = catalogue.jobs.active("fit")
    assert (job.arguments["base"], job.arguments["spec"], job.created_by) == ("tiny", {"kind": "uniform"}, "key-1")


def test_an_idle_one_whose_pool_is_empty_answers_as_it_is(verbs, row):
    verbs.retire(row.members[0].adapter_id)
    record_asking(verbs, row, 2 * IDLE_AFTER)
    assert answers(verbs) == row


def test_a_note_that_finds_no_turn_waits_for_the_next_request(verbs, row, monkeypatch):
    record_asking(verbs, row, IDLE_AFTER / 2)

    monkeypatch.setattr(verbs.database, "write", Mock(side_effect=Busy("The database is busy", retry_after=5)))
    assert answers(verbs) == row


def test_an_idle_one_whose_pool_is_as_it_was_answers_and_is_idle_no_more(verbs, row):
    record_asking(verbs, row, 2 * IDLE_AFTER)
    assert answers(verbs) == row
    assert count_refits(verbs) == 1


def test_one_that_is_asked_for_answers_whatever_came_since_and_a_refit_is_no_asking(verbs, row):
    record_asking(verbs, row, IDLE_AFTER / 2)
    count_refits(verbs)
    assert answers(verbs) == row
    assert asked_ago(verbs, row) < USE_RESOLUTION
    record_asking(verbs, row, IDLE_AFTER / 2)
    assert asked_ago(verbs, verbs.fit(POOL, UniformSpec(), None)) > IDLE_AFTER / 3


def test_asking_again_within_the_hour_writes_nothing(verbs, row, monkeypatch):
    record_asking(verbs, row, USE_RESOLUTION / 2)
    monkeypatch.setattr(verbs.database, "write", lambda: pytest.fail("written"))
    assert answers(verbs) == row


# --- updates --------------------------------------------------------------------------------------


# A large pool: what came and went is brought into the selector there is.


@pytest.fixture
def whole_fits(monkeypatch):
    """How often a selector was fitted from all vectors, where three domains are a large pool."""
    monkeypatch.setattr(updating, "LARGE", 3)
    monkeypatch.setattr(updating, "DRIFT", 1.0)
    fitted = []
    for kind in (cosine.CosineSelector, posterior.PosteriorSelector):
        fit = kind.fit
        monkeypatch.setattr(kind, "fit", lambda *args, fit=fit, **more: fitted.append(1) or fit(*args, **more))
    return fitted


@pytest.fixture
def rows(verbs):
    return verbs.ready_all("acme/law", "acme/code", "acme/zoo", "acme/tax", "acme/sea")


@pytest.mark.parametrize("spec", [CosineSpec(encoder="base"), PosteriorSpec(dimensions=3)])
def test_a_push_and_a_retirement_update_it(verbs, rows, spec, whole_fits):
    earlier = verbs.fit(POOL, spec, verbs.base.digest)
    came = verbs.ready("acme/art", seed=9)
    gone = max(rows, key=lambda row: row.digest)  # not one that it is proved on
    verbs.retire(gone.id)
    after = verbs.fit(POOL, spec, verbs.base.digest)
    assert whole_fits == [1]
    assert after.id != earlier.id
    names = sorted({row.domain for row in (*rows, came)} - {gone.domain})
    assert [member.domain for member in after.members] == names
    assert after.report["changes_since_whole_fit"] == 2
    assert best_domain(verbs, after, "art") == "art"


def test_a_renamed_domain_keeps_its_vectors(verbs, rows, whole_fits):
    verbs.fit(POOL, CosineSpec(encoder="base"), verbs.base.digest)
    last = max(rows, key=lambda row: row.digest)
    with verbs.database.write() as catalogue:
        catalogue.adapters.update_card(last.id, domain="renamed")
    after = verbs.fit(POOL, CosineSpec(encoder="base"), verbs.base.digest)
    assert whole_fits == [1]
    assert best_domain(verbs, after, last.domain) == "renamed"


def test_damaged_vectors_and_a_purge_meanwhile_on_postgresql(postgres, tmp_path, monkeypatch):
    with Databases("postgresql", postgres).new(tmp_path, pool_size=4) as database:
        verbs = ToyRegistry(database)
        verbs.ready_all("acme/law", "acme/code")
        damaged_vectors(verbs, "acme/law")
        assert fitted_refs(verbs) == ["acme/code@1"]
        assert verbs.embed(verbs.named("acme/law")).sample_state == "ready"
        purging(verbs, monkeypatch, verbs.blobs, "read")
        assert fitted_refs(verbs) == ["acme/code@1"]
