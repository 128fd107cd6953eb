"""Push: everything checked before anything is visible, one row for the same bytes, samples that arrive late."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save

from registry.adapters.weights import load_tensors
from registry.errors import (
    Cancelled,
    DamagedBlob,
    Incompatible,
    InvalidManifest,
    InvalidSample,
    InvalidWeights,
    NotFound,
    QuotaExceeded,
    TooLarge,
    Unavailable,
)
from registry.lifecycle.purge import purge
from registry.names import sha256_digest
from registry.push import find_base, push
from registry.samples.embeddings_file import save_embeddings
from registry.samples.sample import embed
from registry.spec import GmmSpec, PoolSpec, Provenance, UseLimits
from registry.spec.limits import SizeLimits
from registry.spec.passage import encode_lines
from tests.registry.toy_registry import (
    OTHER_INIT,
    SHAPE,
    WEIGHTS,
    fake_bases,
    inline,
    passages,
    vectors_of,
    weights,
)

ON_DATABASES = ("sqlite",)  # their statements are the same on each kind
POOL = PoolSpec(base_fingerprint=SHAPE.fingerprint)
OTHER_SHAPE = SHAPE.model_copy(update={"fingerprint": sha256_digest(b"other weights")})


def counts(verbs) -> dict[str, int]:
    with verbs.database.read() as catalogue:
        return {
            "adapters": len(catalogue.adapters.list(None, limit=100).rows),
            "jobs": len(catalogue.jobs.list(None, limit=100).rows),
            "audit": len(catalogue.audit.list(None, limit=100).rows),
            "blobs": len(list(verbs.blobs.digests())),
        }


def other_file(seed: int) -> bytes:
    """The weights of a seed in a file with other bytes."""
    return save(load_tensors(weights(seed)), metadata={"saved": "again"})


def without_row(verbs) -> set[str]:
    """Stored blobs that the catalogue does not know."""
    with verbs.database.read() as catalogue:
        return set(verbs.blobs.digests()) - catalogue.blobs.digests()


def test_a_push_repairs_what_is_damaged_and_the_audit_has_it(verbs):
    texts = {"texts": passages("law")}
    row = verbs.push(sample=texts).row
    for digest in (row.weights_blob, row.sample.digest):
        verbs.blobs.damage(digest, b"other bytes")
    repushed = verbs.push(sample=texts)
    assert (repushed.created, repushed.row.id) == (False, row.id)
    assert verbs.blobs.is_whole(row.weights_blob)
    assert verbs.blobs.is_whole(row.sample.digest)
    verbs.push(sample=texts)
    repairs = [(entry.subject, entry.key_id) for entry in verbs.audit("blob.repair")]
    assert sorted(repairs) == sorted((digest, "key-1") for digest in (row.weights_blob, row.sample.digest))


def test_an_uploaded_file_that_is_damaged_is_our_mistake_and_a_lost_one_too(verbs):
    digest = verbs.upload(weights(0))
    for harm, sentence in (
        (lambda: verbs.blobs.damage(digest, weights(1)), digest),
        (lambda: verbs.blobs.delete(digest), "missing"),
    ):
        harm()
        with pytest.raises(DamagedBlob, match=sentence):
            verbs.push(files={WEIGHTS: {"digest": digest}})
    assert counts(verbs)["adapters"] == 0


# --- what is stored -------------------------------------------------------------------------------


def test_the_row_its_job_and_its_audit_entry(verbs):
    pushed = verbs.push(sample={"texts": passages("law")}, card={"description": "d", "tags": ["a", "b"]})
    row = pushed.row
    assert pushed.created
    assert (row.ref, row.kind, row.domain, row.dtype, row.sample_state) == (
        "acme/law@1",
        "adapter",
        "law",
        "F32",
        "pending",
    )
    assert (row.base_fingerprint, row.weights_blob) == (SHAPE.fingerprint, sha256_digest(weights(0)))
    assert "about 100" in pushed.warnings[0]
    with verbs.database.read() as catalogue:
        job = catalogue.jobs.get(("acme",), pushed.job)
        assert (job.kind, job.arguments) == ("embed", {"adapter_id": row.id})
        assert catalogue.blobs.is_visible(("acme",), row.weights_blob)
        assert catalogue.blobs.is_visible(("acme",), row.sample.digest)
        assert not catalogue.blobs.is_visible(("other",), row.weights_blob)
    assert [(entry.action, entry.subject) for entry in verbs.audit()] == [("adapter.push", "acme/law@1")]


def test_half_precision_is_kept_and_the_base_may_be_named_by_its_fingerprint(verbs):
    files = {WEIGHTS: inline(weights(0, dtype=torch.float16))}
    row = verbs.push(files=files, base_model=None, base_fingerprint=SHAPE.fingerprint).row
    assert (row.base_model, row.dtype) == ("tiny", "F16")
    assert row.digest != verbs.push("acme/law32").row.digest


def test_files_and_samples_may_be_blobs(verbs):
    files = {WEIGHTS: {"digest": verbs.upload(weights(0))}}
    sample = {"blob": verbs.upload(encode_lines(passages("law", 120)))}
    row = verbs.push(scope=("acme",), files=files, sample=sample).row
    assert row.digest == verbs.push("acme/inline").row.digest
    assert (row.sample.kept, row.sample.notes) == (120, ())


# --- again ----------------------------------------------------------------------------------------


def test_the_same_bytes_are_known(verbs):
    first = verbs.push(sample={"texts": passages("law")})
    row_counts = counts(verbs)
    repushed = verbs.push(sample={"texts": passages("law")})
    assert (repushed.created, repushed.row.id, repushed.job, repushed.warnings) == (False, first.row.id, None, ())
    assert counts(verbs) == row_counts
    verbs.retire(first.row.id)
    after = verbs.push()
    assert (after.created, after.row.ref) == (True, "acme/law@2")


def test_what_is_said_otherwise_is_warned_about_and_what_is_not_said_is_not(verbs):
    verbs.push(card={"description": "first"}, sample={"texts": passages("law")})
    repushed = verbs.push(
        domain="other", card={"description": "second"}, provenance=OTHER_INIT, sample={"texts": passages("x")}
    )
    assert not repushed.created
    assert "its card, domain, provenance, sample stayed as stored" in repushed.warnings[0]
    assert repushed.row.card.description == "first"
    assert verbs.push().warnings == ()


def test_the_same_bytes_by_another_torch_are_no_other_provenance(verbs):
    original, otherwise, longer = (
        Provenance(training={"steps": steps, "made_with": [{"torch": torch, "threads": 1}]}).model_dump(mode="json")
        for torch, steps in (("2.1", 7), ("2.2", 7), ("2.2", 8))
    )
    verbs.push(provenance=original)
    assert verbs.push(provenance=otherwise).warnings == ()
    assert "its provenance stayed as stored" in verbs.push(provenance=longer).warnings[0]


def test_another_owner_is_that_of_the_name_and_the_audit_has_it(verbs):
    first, second = verbs.push(owner="legal"), verbs.push(seed=2)
    assert (first.row.owner, second.row.owner) == ("legal", "legal")
    repushed = verbs.push(owner="contracts")
    assert (repushed.created, repushed.row.owner, repushed.row.etag, repushed.warnings) == (
        False,
        "contracts",
        first.row.etag,
        (),
    )
    assert verbs.push(owner="contracts").row == verbs.push().row == repushed.row
    brought = verbs.push(owner="court", sample={"texts": passages("law")})
    assert (brought.row.owner, verbs.push(owner="tax", seed=3).created) == ("court", True)
    with verbs.database.read() as catalogue:
        assert {row.owner for row in catalogue.adapters.list(None, limit=9).rows} == {"tax"}
    assert [(entry.action, entry.subject, entry.detail.get("owner")) for entry in verbs.audit()] == [
        ("adapter.push", "acme/law@1", "legal"),
        ("adapter.push", "acme/law@2", None),
        ("adapter.change", "acme/law@1", "contracts"),
        ("adapter.push", "acme/law@1", "court"),
        ("adapter.push", "acme/law@3", "tax"),
    ]


def test_a_missing_sample_is_brought_by_a_later_push(verbs):
    first = verbs.push()
    row = first.row
    assert (first.job, row.sample_state, row.sample) == (None, "none", None)
    brought = verbs.push(sample={"texts": passages("law", 120)}, card={"description": "late"})
    assert (brought.created, brought.row.id, brought.row.sample_state) == (False, row.id, "pending")
    assert brought.job is not None
    assert brought.warnings == ("Known as acme/law@1: its card stayed as stored (PATCH changes card and domain).",)
    assert verbs.embed(brought.row).sample_state == "ready"


def test_a_sample_that_failed_is_tried_again(verbs):
    first = verbs.push(sample={"texts": passages("law")})
    with verbs.database.write() as catalogue:
        catalogue.jobs.cancel(first.job)
        catalogue.adapters.set_sample_state(first.row.id, "failed")
    repushed = verbs.push(sample={"texts": passages("law", 40)})
    assert (repushed.row.id, repushed.row.sample_state, repushed.row.sample.kept) == (first.row.id, "pending", 40)
    assert repushed.job not in (None, first.job)


@pytest.mark.parametrize("kind", ["texts", "vectors"])
def test_a_sample_that_is_not_taken_is_never_written(verbs, kind):
    verbs.ready("acme/law")
    digests = set(verbs.blobs.digests())
    texts = passages("secret")
    pushed = verbs.push(sample={"texts": texts} if kind == "texts" else vectors_of(verbs.base, texts))
    assert "its sample stayed as stored" in pushed.warnings[0]
    assert set(verbs.blobs.digests()) == digests


def test_the_text_of_a_sample_that_is_known_by_its_vectors_is_not_taken_and_that_is_said(verbs):
    verbs.ready_all("acme/law", "acme/code")
    texts = {"texts": passages("law") + passages("code")}
    soup = verbs.row(verbs.cook(sample=texts, effort="instant", name="acme/soup").soup_id)
    digests = set(verbs.blobs.digests())
    files = {WEIGHTS: inline(verbs.blobs.read(soup.weights_blob))}
    pushed = verbs.push("acme/soup", files=files, sample=texts, provenance=soup.provenance)
    assert (pushed.row.id, pushed.row.sample) == (soup.id, soup.sample)
    assert "its sample stayed as stored" in pushed.warnings[0]
    assert set(verbs.blobs.digests()) == digests


def test_known_weights_in_another_file_are_not_stored_twice(verbs):
    row = verbs.push().row
    repushed = verbs.push(files={WEIGHTS: inline(other_file(0))})
    assert (repushed.created, repushed.row) == (False, row)
    assert list(verbs.blobs.digests()) == [row.weights_blob]


def test_another_file_of_the_weights_takes_the_place_of_a_damaged_one(verbs):
    row = verbs.push().row
    verbs.blobs.damage(row.weights_blob, b"other bytes")
    data = other_file(0)
    repushed = verbs.push(files={WEIGHTS: inline(data)})
    assert (repushed.created, repushed.row.id, repushed.row.weights_blob) == (False, row.id, sha256_digest(data))
    assert verbs.blobs.is_whole(repushed.row.weights_blob)
    with verbs.database.read() as catalogue:
        assert catalogue.blobs.is_visible(("acme",), repushed.row.weights_blob)
    assert without_row(verbs) == set()
    (entry,) = verbs.audit("adapter.change")
    assert (entry.subject, entry.detail["weights_blob"]) == (row.ref, repushed.row.weights_blob)


def test_a_file_in_the_place_of_a_damaged_one_is_charged(verbs):
    row = verbs.push().row
    verbs.blobs.damage(row.weights_blob, b"other bytes")
    with verbs.database.write() as catalogue:
        stored = catalogue.limits.stored_bytes("namespace", "acme")
        catalogue.limits.set("namespace", "acme", UseLimits(stored_bytes=stored))
    with pytest.raises(QuotaExceeded):
        verbs.push(files={WEIGHTS: inline(other_file(0))})
    assert verbs.push(files={WEIGHTS: inline(weights(0))}).row == row, "a repair adds nothing"


def test_bytes_that_a_key_holds_in_another_namespace_are_not_counted_to_it_again(verbs):
    row = verbs.push("acme/law").row
    with verbs.database.write() as catalogue:
        stored = catalogue.limits.stored_bytes("key", row.created_by)
        catalogue.limits.set("key", row.created_by, UseLimits(stored_bytes=stored))
    assert verbs.push("globex/law").created
    with pytest.raises(QuotaExceeded, match="would hold"):
        verbs.push("globex/tax", seed=1)


def test_what_is_stored_already_may_be_pushed_again_beyond_a_quota(verbs):
    """Also by another key, to which the bytes are not counted: the adapter stays the first one's."""
    row = verbs.push("acme/law", sample={"texts": passages("law")}).row
    with verbs.database.write() as catalogue:
        for kind, subject in (("namespace", "acme"), ("key", row.created_by), ("key", "key-2")):
            catalogue.limits.set(kind, subject, UseLimits(stored_bytes=1))
    for key_id in (row.created_by, "key-2"):
        repushed = push(verbs.registry, replace(verbs.caller(), key_id=key_id), verbs.manifest("acme/law"))
        assert (repushed.created, repushed.row.id) == (False, row.id)


def test_what_a_quota_refuses_after_it_was_stored_is_deleted(verbs, monkeypatch):
    """Another push has used up the quota meanwhile."""
    verbs.push(sample={"texts": passages("law")})
    files = set(verbs.blobs.digests())
    with verbs.database.write() as catalogue:
        catalogue.limits.set("namespace", "acme", UseLimits(adapters=1))
    monkeypatch.setattr("registry.push.check_additions", lambda *_, **__: None)
    with pytest.raises(QuotaExceeded):
        verbs.push("acme/new", seed=3, sample={"texts": passages("law")})
    assert set(verbs.blobs.digests()) == files, "the known sample stays, the new weights do not"


def test_what_loses_a_race_has_a_row_so_that_it_is_collected(verbs, monkeypatch):
    """Another push of the same weights, in another file and with another sample, is first."""
    real = verbs.blobs.put_bytes

    def interrupted(data: bytes) -> str:
        monkeypatch.setattr(verbs.blobs, "put_bytes", real)
        verbs.ready("acme/law", files={WEIGHTS: inline(other_file(0))})
        return real(data)

    monkeypatch.setattr(verbs.blobs, "put_bytes", interrupted)
    late = verbs.push(sample={"texts": passages("late")})
    assert not late.created
    assert "its sample stayed as stored" in late.warnings[0]
    assert verbs.row(late.row.id).weights_blob == sha256_digest(other_file(0))
    assert without_row(verbs) == set()


def test_a_sample_is_stored_after_all_where_the_known_version_is_purged_meanwhile(verbs, monkeypatch):
    row = verbs.ready("acme/law")
    real = verbs.blobs.put_bytes

    def interrupted(data: bytes) -> str:
        digest = real(data)
        monkeypatch.setattr(verbs.blobs, "put_bytes", real)
        purge(verbs.registry, verbs.caller(), row.id)
        return digest

    monkeypatch.setattr(verbs.blobs, "put_bytes", interrupted)
    pushed = verbs.push(sample={"texts": passages("new")})
    assert (pushed.created, pushed.row.ref) == (True, "acme/law@2")
    assert verbs.embed(pushed.row).sample_state == "ready"
    assert verbs.blobs.is_whole(pushed.row.weights_blob)


class TestRefusals:
    @pytest.fixture(autouse=True)
    def nothing_is_left(self, verbs):
        row_counts = counts(verbs)
        yield
        assert counts(verbs) | {"blobs": 0} == row_counts | {"blobs": 0}

    @pytest.mark.parametrize(
        ("fields", "error", "sentence"),
        [
            ({"base_model": "huge"}, Incompatible, r"'huge' is not on this server's allowlist \(tiny\)"),
            ({"base_fingerprint": "sha256:" + "0" * 64}, Incompatible, "another model under the same name"),
            ({"base_model": None}, InvalidManifest, "No base model is named"),
            ({"base_model": None, "base_fingerprint": "sha256:" + "0" * 64}, Incompatible, "0 base models here"),
            ({"files": {}}, InvalidManifest, "it is missing"),
            ({"files": {"../../etc/passwd": {"base64": ""}}}, InvalidManifest, r"not '../../etc/passwd'"),
            ({"files": {WEIGHTS: {"base64": "@@@"}}}, InvalidManifest, "not valid base64"),
            ({"files": {WEIGHTS: {"base64": ""}}}, InvalidWeights, "too few"),
            ({"files": {WEIGHTS: {"digest": "sha256:" + "0" * 64}}}, NotFound, "upload it first"),
            ({"sample": {"texts": passages("law", 19)}}, InvalidSample, "at least 20"),
            ({"sample": {"blob": "sha256:" + "0" * 64}}, NotFound, "upload it first"),
            ({"sample": {"embeddings": []}}, InvalidSample, "one file for each encoder"),
            ({"limits": SizeLimits(inline_bytes=10)}, TooLarge, "limit is 10: upload it as a blob"),
            ({"limits": SizeLimits(weights_bytes=10)}, TooLarge, "limit is 10"),
        ],
    )
    def test_one_sentence(self, verbs, fields, error, sentence):
        with pytest.raises(error, match=sentence):
            verbs.push(**fields)

    def test_two_bases_of_one_fingerprint_need_a_name(self, verbs):
        manifest = verbs.manifest(base_model=None, base_fingerprint=SHAPE.fingerprint)
        with pytest.raises(Incompatible, match="2 base models here"):
            find_base(manifest, fake_bases(tiny="a", twin="b"))

    def test_a_recorded_name_is_one_base_or_refused(self, verbs):
        bases = fake_bases(tiny="acme/base", twin="/models/base/")
        peft = {"config": None, "base_model": None, "files": {}}
        for recorded, expected in (("acme/base", "tiny"), ("/models/base", "twin"), ("twin", "twin")):
            for fields in (
                {"recorded_base": recorded},
                {"peft_config": {"base_model_name_or_path": recorded}},
                {"recorded_base": recorded, "peft_config": {"base_model_name_or_path": "elsewhere"}},
            ):
                assert find_base(verbs.manifest(**{**peft, "peft_config": {}, **fields}), bases) is bases[expected]
        twice = verbs.manifest(base_model=None, recorded_base="acme/base")
        with pytest.raises(
            Incompatible, match=r"2 base models here \(tiny, twin\) are that one.*one of tiny, twin"
        ) as caught:
            find_base(twice, fake_bases(tiny="acme/base", twin="acme/base"))
        assert "/models" not in str(caught.value)
        with pytest.raises(Incompatible, match="records base model 'x', and no base model here is that one"):
            find_base(verbs.manifest(**peft, peft_config={"base_model_name_or_path": "x"}), bases)
        for nothing in (None, "", 5, ["acme/base"]):
            with pytest.raises(InvalidManifest, match="No base model is named"):
                find_base(verbs.manifest(**peft, peft_config={"base_model_name_or_path": nothing}), bases)


# --- vectors --------------------------------------------------------------------------------------


def test_damaged_ones_are_repaired_by_the_same_push(verbs):
    sample = vectors_of(verbs.base, passages("law", 40))
    row = verbs.push(sample=sample).row
    with verbs.database.read() as catalogue:
        (vectors,) = catalogue.samples.embeddings(row.sample.digest)
    verbs.blobs.damage(vectors.blob_digest, b"other bytes")
    assert verbs.push(sample=sample).row == row
    assert verbs.blobs.is_whole(vectors.blob_digest)


def test_they_are_ready_at_once_and_hold_no_text(verbs):
    pushed = verbs.push(sample=vectors_of(verbs.base, passages("law", 40)))
    assert (pushed.job, pushed.row.sample_state) == (None, "ready")
    assert not pushed.row.sample.has_text
    with verbs.database.read() as catalogue:
        (row,) = catalogue.samples.embeddings(pushed.row.sample.digest)
    assert (row.encoder_name, row.count, row.dimensions) == ("base", 40, 8)
    assert verbs.push(sample=vectors_of(verbs.base, passages("law", 40))).created is False


def test_pools_that_gain_a_member_are_refitted(verbs):
    verbs.ready("acme/one")
    verbs.fit(POOL, GmmSpec(), verbs.base.digest)
    verbs.push("acme/two", sample=vectors_of(verbs.base, passages("two")), seed=1)
    with verbs.database.read() as catalogue:
        jobs = catalogue.jobs.list(None, kind="fit", limit=9).rows
    assert [PoolSpec.model_validate(job.arguments["pool"]) for job in jobs] == [POOL]


@pytest.mark.parametrize(
    ("shape", "fields", "sentence"),
    [
        ((30, 9), {}, "gives 8 dimensions for each passage; these vectors have 9 for each passage"),
        ((30, 8), {"unit": "sentence"}, "these vectors have 8 for each sentence"),
        ((19, 8), {}, "has 19 vectors: send at least 20"),
        ((5001, 8), {}, "at most 5000"),
        ((30, 8), {"encoder": "sha256:" + "0" * 64}, "No encoder of this base model has digest"),
        ((30, 8), {"file": {"base64": "AAAA"}}, "embeddings"),
        ((30, 8), {}, "1 of their values are NaN"),
    ],
)
def test_vectors_that_are_refused(verbs, shape, fields, sentence):
    row_counts = counts(verbs)
    array = np.ones(shape, np.float32)
    if "NaN" in sentence:
        array[3, 3] = np.nan
    upload = {"encoder": verbs.base.digest, "unit": "passage", "file": inline(save_embeddings(array)), **fields}
    with pytest.raises(InvalidSample, match=sentence):
        verbs.push(sample={"embeddings": [upload]})
    assert counts(verbs) == row_counts


def test_one_file_for_each_encoder(verbs):
    sample = vectors_of(verbs.base, passages("law"))
    with pytest.raises(InvalidSample, match="one file for each encoder"):
        verbs.push(sample={"embeddings": sample["embeddings"] * 2})
    both = sample["embeddings"] + vectors_of(verbs.sentences, passages("law"))["embeddings"]
    row = verbs.push(sample={"embeddings": both}).row
    with verbs.database.read() as catalogue:
        assert len(catalogue.samples.embeddings(row.sample.digest)) == 2


def test_each_encoder_embeds_once_and_what_it_cut_is_counted_also_under_another_name(verbs):
    row = verbs.ready("acme/law")
    assert row.sample.truncated == {"base": 0, "sbert": 3}
    verbs.embed(row)
    assert (verbs.ready("acme/other", text="law", seed=1).sample, verbs.sentences.calls) == (row.sample, 1)


@pytest.mark.parametrize("bases", [{}, {"tiny": SimpleNamespace(shape=OTHER_SHAPE)}], ids=["missing", "replaced"])
def test_a_sample_is_not_embedded_by_another_base_model(verbs, bases):
    row = verbs.push(sample={"texts": passages("law")}).row
    with pytest.raises(Unavailable, match="waits for base model 'tiny'"):
        embed(replace(verbs.registry, bases=bases), row.id, progress=verbs.progress)
    with verbs.database.read() as catalogue:
        assert catalogue.samples.embeddings(row.sample.digest) == []
    assert verbs.embed(row).sample_state == "ready"


def test_a_cancelled_embedding_keeps_what_it_has_and_is_taken_up_again(verbs):
    row = verbs.push(sample={"texts": passages("law")}).row

    def cancel(done: int, total: int, message: str) -> None:
        if "sentences" in message:
            raise Cancelled(message)

    verbs.progress = cancel
    with pytest.raises(Cancelled):
        verbs.embed(row)
    assert verbs.row(row.id).sample_state == "pending"
    with verbs.database.read() as catalogue:
        assert [embedding.encoder_name for embedding in catalogue.samples.embeddings(row.sample.digest)] == ["base"]
    del verbs.progress
    assert verbs.embed(row).sample_state == "ready"
