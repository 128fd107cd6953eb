"""Every blob is looked at, at the pace that was asked for, and who needs one that is not whole is named."""

from __future__ import annotations

import pytest

from registry.blobs import LocalBlobs
from registry.blobs.local import CHUNK
from registry.errors import Unavailable
from registry.progress import Progress, silent
from registry.spec import CosineSpec, PoolSpec, StoreMark
from service.operations.blob_hashes import Checked, Pace, check_hashes
from tests.postgres import Databases
from tests.registry.damaged_files import flip, overwrite
from tests.registry.toy_registry import SHAPE, ToyRegistry

ON_DATABASES = ("sqlite",)  # backups ask each kind which rows name a blob
FAST = 10**12


@pytest.fixture
def verbs(databases: Databases, tmp_path):
    """The verbs over a folder that carries its database's mark."""
    with databases.new(tmp_path, pool_size=4) as database:
        verbs = ToyRegistry(database, LocalBlobs(tmp_path / "blobs"))
        with database.write() as catalogue:
            verbs.blobs.set_aside.set_mark(catalogue.stores.advance("0" * 32, after=0))
        yield verbs


def checked(verbs: ToyRegistry, *, whole: bool = True, progress: Progress = silent) -> Checked:
    blobs = LocalBlobs(verbs.blobs.folder, make=False)
    return check_hashes(verbs.database, blobs, whole=whole, pace=Pace(FAST, sleep=lambda _: None), progress=progress)


def found(verbs: ToyRegistry, **how) -> dict[str, tuple]:
    return {one.digest: (one.problem, one.named_by) for one in checked(verbs, **how).unsound}


def test_nothing_where_all_is_well(verbs):
    row = verbs.ready("acme/law")
    said: list = []
    done = checked(verbs, progress=lambda *told: said.append(told))
    stored = list(verbs.blobs.digests())
    assert (done.blobs, done.unsound) == (len(stored), ())
    assert done.bytes == sum(verbs.blobs.size(digest) for digest in stored)
    assert said[0][:2] == (0, len(stored))
    assert said[-1] == (len(stored), len(stored), f"0 not whole, {done.bytes} bytes read")
    assert row.weights_blob in stored


def test_each_is_named_with_all_that_needs_it(verbs):
    row = verbs.ready("acme/law")
    verbs.push("acme/twin")
    verbs.ready("acme/code", seed=1)
    selector = verbs.fit(PoolSpec(base_fingerprint=SHAPE.fingerprint), CosineSpec(encoder="base"), verbs.base.digest)
    soup = verbs.row(verbs.cook(recipe={"ingredients": [{"ref": "acme/law"}, {"ref": "acme/code"}]}).soup_id)
    with verbs.database.read() as catalogue:
        vectors = catalogue.samples.embedding(row.sample.digest, verbs.base.digest).blob_digest
    flip(verbs.blobs.place(row.weights_blob))
    flip(verbs.blobs.place(row.sample.digest))
    flip(verbs.blobs.place(vectors), at=len(verbs.blobs.place(vectors).read_bytes()) // 2)
    overwrite(verbs.blobs.place(selector.state_blob), b"")
    verbs.blobs.place(soup.weights_blob).unlink()
    assert found(verbs) == {
        row.weights_blob: ("damaged", ("weights of acme/law@1", "weights of acme/twin@1")),
        row.sample.digest: ("damaged", ("sample of acme/law@1",)),
        vectors: ("damaged", ("embeddings of acme/law@1",)),
        selector.state_blob: ("damaged", (f"selector {selector.id}",)),
        soup.weights_blob: ("missing", (f"weights of {soup.ref}", f"recipe {soup.recipe_digest}")),
    }
    sizes_only = found(verbs, whole=False)
    assert {digest: problem for digest, (problem, _) in sizes_only.items()} == {
        selector.state_blob: "damaged",
        soup.weights_blob: "missing",
    }


def test_uploads_that_nothing_is_made_of_and_what_no_row_names(verbs):
    upload, request = verbs.blobs.put_bytes(b"an upload"), verbs.blobs.put_bytes(b"a request")
    with verbs.database.write() as catalogue:
        catalogue.blobs.record(upload, 9)
        catalogue.blobs.grant("acme", upload)
    for digest in (upload, request):
        flip(verbs.blobs.place(digest))
    assert found(verbs) == {upload: ("damaged", ("uploaded by namespace acme",)), request: ("damaged", ())}


def test_what_the_disk_does_not_give(verbs):
    row = verbs.push().row
    place = verbs.blobs.place(row.weights_blob)
    place.unlink()
    place.mkdir()
    assert found(verbs) == {row.weights_blob: ("unreadable", ("weights of acme/law@1",))}


def test_nothing_is_remembered_from_what_was_read_before(verbs):
    row = verbs.push().row
    checked(verbs)
    verbs.blobs.read(row.weights_blob)
    place = verbs.blobs.place(row.weights_blob)
    changed = bytearray(place.read_bytes())
    changed[-1] ^= 1
    place.write_bytes(changed)
    assert list(found(verbs)) == [row.weights_blob]


@pytest.mark.parametrize("mark", [None, StoreMark(store="1" * 32, generation=1)])
def test_another_folder_is_not_called_a_folder_of_lost_blobs(verbs, mark):
    verbs.push()
    (verbs.blobs.folder / "store.json").unlink()
    if mark is not None:
        verbs.blobs.set_aside.set_mark(mark)
    with pytest.raises(Unavailable, match="is not the place of this database's blobs"):
        checked(verbs)


def test_the_pace_is_kept_and_what_reading_takes_counts():
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    pace = Pace(CHUNK, clock=lambda: now[0], sleep=sleep)
    pace.took(CHUNK)
    now[0] += 0.25  # reading the next takes a quarter of a second
    pace.took(2 * CHUNK)
    pace.took(CHUNK // 2)
    assert slept == [1.0, 1.75, 0.5]
    now[0] += 10  # a slow disk is not made up for
    pace.took(CHUNK)
    pace.took(CHUNK)
    assert slept[3:] == [0.0, 1.0]
