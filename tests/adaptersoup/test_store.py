"""A registry in a folder, used from Python: what a notebook does, over the tiny base model."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from adaptersoup import Store
from plots.style import to_svg
from registry.base_model import read_allowlist
from registry.catalogue.rows import AdapterRow
from registry.context import Caller, Registry
from registry.errors import Cancelled, Incompatible, InvalidParameter, NotFound, SoupError, Unavailable
from registry.evaluate.matrix import CrossEvaluated, EvaluationPool, cross_evaluate
from registry.formats import AdapterContents, write_directory
from registry.progress import Progress, silent
from registry.samples.sample import embed
from registry.select.requested import pool_of
from registry.spec import PoolRequest, Provenance
from registry.tasks.process_pool import ProcessPool
from service.engine.score_task import score_samples
from service.operations import storage
from service.settings import Settings
from tests.registry.tasks.matrix import SETTINGS, score_all_but_code, stock, stored_evaluations
from tests.service.passages import WORDS, passages
from tests.service.servers import CONFIG, adapter_weights, write_bases
from tests.service.without_processes import FitsHere
from tests.tiny_models import build_tiny_base

pytestmark = pytest.mark.slow
QUICK = {"default_effort": "instant", "threads": 1}  # effort quick would start a process
EVIL = "<script>alert(1)</script>\x1b[31m"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library") / "soups"


@pytest.fixture(scope="module")
def folders(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    with Store(root / "drawn", tiny_base_dir, base_id="tiny", **QUICK) as store:
        for seed, domain in enumerate(WORDS):
            weights = adapter_weights(store._runtime, seed=seed)
            init = Provenance(init_hash=f"sha256:{7:064x}", init_source="declared")
            write_directory(
                root / domain,
                AdapterContents(config=CONFIG, domain=domain, weights=weights, base_model="tiny", provenance=init),
            )
    return root


@pytest.fixture(scope="module")
def store(place: Path, tiny_base_dir: Path, folders: Path) -> Iterator[Store]:
    with Store(place, tiny_base_dir, base_id="tiny", **QUICK) as store:
        for domain in WORDS:
            store.push(
                folders / domain,
                name=f"team/{domain}",
                texts=passages(domain, 30),
                tags=[domain],
                owner=f"{domain} team",
            )
        yield store


# --- notebook -------------------------------------------------------------------------------------


def test_what_was_pushed_is_listed(store: Store) -> None:
    adapters = store.adapters()
    assert [adapter.ref for adapter in adapters] == ["team/code@1", "team/court@1", "team/kitchen@1"]
    assert adapters[0].card.tags == ("code",)
    assert [adapter.name for adapter in store.adapters(tag="court")] == ["court"]
    assert [adapter.name for adapter in store.adapters(owner="court team")] == ["court"]
    assert adapters.to_frame()["domain"].tolist() == ["code", "court", "kitchen"]
    assert str(adapters).splitlines()[0].split() == [
        "ADAPTER",
        "KIND",
        "DOMAIN",
        "METHOD",
        "PARAMETERS",
        "TAGS",
        "OWNER",
    ]


def test_the_warnings_of_a_push_are_in_its_value(store: Store, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pushed = store.adapter("team/court").model_copy(update={"warnings": ["The sample is small."]})
    monkeypatch.setattr(store.client, "push", lambda *_, **__: pushed)
    assert store.push(folders / "court", name="team/court").warnings == ["The sample is small."]


def test_a_selection_right_after_pushing_has_all_that_was_pushed(store: Store) -> None:
    selection = store.select(passages("court", 20, seed=1))
    assert [selected.ref for selected in selection.selection.selected] == ["team/court@1"]
    assert selection.not_yet_included == []
    assert len(selection.to_frame()) == 3
    assert "1 chosen of 3" in to_svg(selection.plot())


def test_a_soup_is_chosen_verified_and_tells_on_what_evidence(store: Store) -> None:
    soup = store.cook(passages("court", 20, seed=1))
    assert f"{soup.verification.difference:+.4f} nats a token against the base" in str(soup)
    assert soup.spent is not None
    assert f"on {soup.verification.passages} " in to_svg(soup.plot())


def test_a_soup_is_cooked_scored_and_says_so(store: Store) -> None:
    recipe = {"ingredients": [{"ref": "team/court"}, {"ref": "team/code", "weight": 3.0}]}
    soup = store.cook(recipe=recipe, mixing="average", name="team/mixed")
    assert (soup.model, soup.abstained) == ("team/mixed@1", False)
    assert set(soup.table.rows) == {("team/court@1", 0.25), ("team/code@1", 0.75)}
    assert "team/code@1" in to_svg(soup.plot())
    evaluation = store.evaluate(soup, passages("court", 5, seed=2))
    assert evaluation.baseline.model == "base/tiny"
    assert f"{evaluation.baseline.difference:+.4f} ±" in to_svg(evaluation.plot())
    assert evaluation.to_frame()["perplexity"].tolist() == [evaluation.perplexity, evaluation.baseline.perplexity]
    assert store.evaluate("base/tiny", ["a"], baseline=None).baseline is None
    assert store.generate(soup, "0 1", max_tokens=2, seed=3)


def test_an_abstention_is_an_answer(store: Store) -> None:
    texts = [text for domain in WORDS for text in passages(domain, 10, seed=1)]
    soup = store.cook(texts, selector={"kind": "posterior", "least": 0.9})
    assert soup.abstained
    assert soup.model == store.base
    assert soup.reason in str(soup)
    assert soup.to_frame().empty


def test_strategies_are_compared_on_other_text_and_leave_nothing_behind(store: Store) -> None:
    refs_before = {adapter.ref for adapter in store.adapters()}
    domains = {name: (passages(name, 12, seed=1), passages(name, 6, seed=2)) for name in ("court", "code")}
    ways = {
        "single": {"selector": "cosine", "options": {"single": True}, "verify": False},
        "all": {"selector": "uniform", "verify": False, "mixing": "average"},
    }
    steps: list[int] = []
    comparison = store.compare(domains, ways, progress=lambda done, total, message: steps.append(done))
    assert [(row.domain, row.strategy) for row in comparison] == [(d, s) for d in domains for s in ways]
    assert [row.ingredients for row in comparison][::2] == [("court",), ("code",)]
    assert {row.model for row in comparison if row.strategy == "single"} == {"team/court@1", "team/code@1"}
    alone = store.evaluate("team/court@1", passages("court", 6, seed=2)).baseline
    assert comparison.rows[0].difference == pytest.approx(alone.difference)
    assert {adapter.ref for adapter in store.adapters()} == refs_before, "soups are temporary, and what was there stays"
    assert steps[-1] == 4
    assert to_svg(comparison.plot()).count(">+0") + to_svg(comparison.plot()).count(">-0") == 4
    assert len(comparison.to_frame()) == 4
    assert list(comparison.means.values()) == sorted(comparison.means.values())
    single = store.compare({"court": domains["court"]}, ways)
    assert to_svg(single.plot()).count(" ± ") == 2
    assert single.table.sentences[0].startswith("One domain, nats a token")
    with pytest.raises(InvalidParameter, match="at least one"):
        store.compare({}, ways)


def test_a_comparison_that_fails_leaves_nothing_behind_either(store: Store) -> None:
    refs_before = {adapter.ref for adapter in store.adapters()}
    with pytest.raises(InvalidParameter):
        store.compare({"court": (passages("court", 12, seed=1), [""])}, {"all": {"selector": "uniform"}})
    assert {adapter.ref for adapter in store.adapters()} == refs_before


def test_a_comparison_that_is_interrupted_ends_its_cook(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    refs_before = {adapter.ref for adapter in store.adapters()}
    cancel = Mock(wraps=store.client.cancel_job)
    monkeypatch.setattr(store.client, "cancel_job", cancel)
    monkeypatch.setattr(store.client, "soup_of", Mock(side_effect=KeyboardInterrupt))
    sample = passages("court", 12, seed=1)
    with pytest.raises(KeyboardInterrupt):
        store.compare({"court": (sample, sample)}, {"all": {"selector": "uniform"}})
    cancel.assert_called_once()
    assert next(store.client.jobs(limit=1)).finished_at is not None
    assert {adapter.ref for adapter in store.adapters()} == refs_before


def test_an_attached_model_computes_what_the_store_serves(store: Store, tiny_base_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_base_dir).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_base_dir)
    text = passages("court", 1, seed=3)[0][:40]
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False).input_ids]])
    with torch.no_grad():
        plain = model(ids, labels=ids).loss
        with store.attach("team/court", model):
            loss = model(ids, labels=ids).loss
        assert torch.equal(model(ids, labels=ids).loss, plain)
    served = store.evaluate("team/court", [text])
    assert float(loss) == pytest.approx(served.mean_nll, abs=1e-5)
    assert float(plain) == pytest.approx(served.baseline.mean_nll, abs=1e-5)
    with pytest.raises(Incompatible, match="nothing to attach"), store.attach(store.base, model):
        pass
    del model.transformer.h[1].mlp.c_fc
    with pytest.raises(Incompatible, match="not the adapter's base model"), store.attach("team/court", model):
        pass


def test_what_people_wrote_is_shown_as_text(store: Store, folders: Path) -> None:
    named = store.push(folders / "code", name="team/evil", domain=EVIL)
    assert EVIL not in named._repr_html_()
    assert "\x1b" not in str(named)
    assert len(str(named).splitlines()) == 2
    assert "&lt;script&gt;" in named._repr_html_()


@pytest.mark.parametrize("verb", ["cook", "select"])
def test_a_text_in_place_of_passages_is_refused(store: Store, verb: str) -> None:
    with pytest.raises(InvalidParameter, match="a list of passages"):
        getattr(store, verb)("one text")


def test_errors_are_not_printed_by_a_logger_without_handlers() -> None:
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("soup").handlers)


def test_frames_need_pandas_and_say_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(store.adapters().to_frame(), pd.DataFrame)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(Unavailable, match="adaptersoup\\[frames\\]"):
        store.adapters().to_frame()


def test_whoever_waits_when_it_is_closed_hears_of_it(tiny_base_dir: Path, folders: Path, tmp_path: Path) -> None:
    store = Store(tmp_path / "closed", tiny_base_dir, base_id="tiny", **QUICK)
    store.push(folders / "code", name="team/code")
    stream = store.client.stream("team/code", "0 1", max_tokens=60)
    next(stream)  # and no more is read: the application waits for that
    read = store._runtime.engine.counters()["prompt_tokens_total"]  # that of the stream, which may still run
    pool = ThreadPoolExecutor(1)
    asking = pool.submit(store.evaluate, "team/code", ["a"] * 5_000)
    pool.shutdown(wait=False)  # it ends with that call; a call that never ends fails the test below
    while not asking.done() and store._runtime.engine.counters()["prompt_tokens_total"] == read:
        time.sleep(0.01)
    store.close()
    assert isinstance(asking.exception(60), SoupError | None)
    with pytest.raises(Unavailable):
        list(stream)
    with pytest.raises(Unavailable, match="closed"):
        store.adapters()
    with pytest.raises(Unavailable, match="closed"), store.attach("team/code", torch.nn.Linear(1, 1)):
        pass
    with pytest.raises(Unavailable, match="closed"):
        _ = store.base


def test_a_sample_that_could_not_be_embedded_is_told_once(store: Store) -> None:
    store._embedding_jobs.add("job-none")
    with pytest.raises(NotFound):
        store.select(passages("court", 20, seed=1))
    assert store.select(passages("court", 20, seed=1)).selection.selected


@pytest.fixture
def unembedded(tiny_base_dir: Path, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two pushed adapters; its session ended before any sample was embedded."""
    monkeypatch.setattr("service.jobs.runner.FitProcess", FitsHere)
    with Store(tmp_path / "left", tiny_base_dir, base_id="tiny", job_workers=0, **QUICK) as store:
        for domain in ("kitchen", "court"):
            store.push(folders / domain, name=f"team/{domain}", texts=passages(domain, 30))
    return tmp_path / "left"


def test_a_cook_waits_for_samples_that_an_earlier_session_left(
    unembedded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[int] = []

    def embed_slowly(registry: Registry, adapter_id: int, *, progress: Progress) -> AdapterRow:
        time.sleep(2 if embedded else 0)  # a server's cook fits the pool once its first sample is embedded
        embedded.append(adapter_id)
        return embed(registry, adapter_id, progress=progress)

    monkeypatch.setattr("service.jobs.kinds.embed", embed_slowly)
    with Store(unembedded, **QUICK) as store:
        soup = store.cook(passages("court", 20, seed=1), verify=False)
        assert (soup.model, soup.not_yet_included, len(embedded)) == ("team/court@1", [], 2)


def test_a_selection_waits_until_a_fitted_pool_has_them(unembedded: Path, folders: Path) -> None:
    with Store(unembedded, **QUICK) as store:
        assert len(store.select(passages("court", 20, seed=1)).to_frame()) == 2
        store.push(folders / "code", name="team/code", texts=passages("code", 30))
        selection = store.select(passages("code", 20, seed=1))
        assert [selected.ref for selected in selection.selection.selected] == ["team/code@1"]
        assert selection.not_yet_included == []


# --- folder ---------------------------------------------------------------------------------------


def test_one_at_a_time_has_it_open(store: Store, place: Path, tmp_path: Path) -> None:
    for base in (None, tmp_path):
        with pytest.raises(Unavailable, match="in use by another server"):
            Store(place, base, base_id="tiny")
    assert store.adapters()


def test_another_base_needs_another_id(tiny_base_dir: Path, tmp_path: Path) -> None:
    allowlist = write_bases(tmp_path / "bases.toml", {"tiny": tiny_base_dir})
    for base, revision in ((tmp_path, None), (tiny_base_dir, "f" * 40)):
        with pytest.raises(InvalidParameter, match="another base_id"):
            Store(tmp_path, base, base_id="tiny", revision=revision)
    assert allowlist.read_text().count("[bases.") == 1


def test_a_base_that_another_process_adds_before_the_folder_is_owned_is_kept(
    tiny_base_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owned = storage.owned

    def owned_after_another(folder: Path) -> AbstractContextManager[None]:
        write_bases(folder / "bases.toml", {"other": tiny_base_dir})
        return owned(folder)

    monkeypatch.setattr(storage, "owned", owned_after_another)
    with Store(tmp_path, tiny_base_dir, base_id="tiny", **QUICK) as store:
        with pytest.raises(InvalidParameter, match=r"2 base models \(other, tiny\)"):
            _ = store.base
        assert list(read_allowlist(tmp_path / "bases.toml")) == ["other", "tiny"]


def test_a_new_base_is_on_the_disk_before_its_list_has_the_name(
    tiny_base_dir: Path, tmp_path: Path, synced: list[str]
) -> None:
    with Store(tmp_path / "a", tiny_base_dir, base_id="tiny", **QUICK):
        rename = synced.index("rename bases.toml.new bases.toml")
    assert synced[rename - 1 : rename + 2 : 2] == ["sync bases.toml.new", "sync a"]
    assert not (tmp_path / "a" / "bases.toml.new").exists()


def test_it_is_there_when_it_is_opened_again_and_is_a_servers_folder(
    tiny_base_dir: Path, folders: Path, tmp_path: Path
) -> None:
    with Store(tmp_path / "here", tiny_base_dir, base_id="tiny", **QUICK) as first:
        first.push(folders / "code", name="team/code")
    first.close()
    with Store(tmp_path / "here", **QUICK) as second:
        assert [adapter.ref for adapter in second.adapters()] == ["team/code@1"]
        assert second.base == "base/tiny"
    assert (tmp_path / "here" / "admin.key") == Settings(data=tmp_path / "here").admin_key_path


def test_its_folder_is_found_when_the_program_has_gone_to_another(
    tiny_base_dir: Path, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Store("here", tiny_base_dir, base_id="tiny", **QUICK) as store:
        monkeypatch.chdir(folders)
        store.push("code", name="team/code")
        assert store.folder == tmp_path / "here"
        assert [adapter.ref for adapter in store.adapters()] == ["team/code@1"]


def test_a_base_that_is_none_leaves_nothing_behind(tiny_base_dir: Path, tmp_path: Path) -> None:
    place, odd = tmp_path / "a", shutil.copytree(tiny_base_dir, tmp_path / "\N{GRINNING FACE}")
    (tmp_path / "empty").mkdir()
    for base, named, error in ((tmp_path, "Not A Name", "no name"), ("no/such/folder", "b", "not a folder")):
        with pytest.raises(InvalidParameter, match=error):
            Store(place, base, base_id=named)
    with pytest.raises(Unavailable):
        Store(place, tmp_path / "empty")
    assert not list(place.glob("bases.toml*"))
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "law.txt").write_text("A text.")
    for new in (place / "typo", tmp_path / "empty", tmp_path / "texts"):
        with pytest.raises(InvalidParameter, match="no store in"):
            Store(new)
    assert not (place / "typo").exists()
    assert [file.name for file in (tmp_path / "texts").iterdir()] == ["law.txt"]
    with Store(place, **QUICK) as store, pytest.raises(InvalidParameter, match="0 base models"):
        _ = store.base
    with Store(place, odd, base_id="odd", **QUICK) as store:
        assert store.base == "base/odd"


def test_a_base_behind_a_link_is_opened_twice_by_the_same_call(tiny_base_dir: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tiny_base_dir)
    for base in (link, link, tmp_path / "a" / ".." / "link"):
        with Store(tmp_path / "a", base, base_id="linked", **QUICK) as store:
            assert store.base == "base/linked"
    assert (tmp_path / "a" / "bases.toml").read_text().count("[bases.") == 1


def test_a_base_of_the_hub_is_opened_again_without_its_revision(tmp_path: Path) -> None:
    text = '[bases.big]\nsource = "someone/big"\nrevision = "0123abc"\n'
    (tmp_path / "bases.toml").write_text(text)
    for revision in (None, "0123abc"):
        with pytest.raises(Unavailable, match="not in the local cache"):  # so it is accepted, and loaded
            Store(tmp_path, "someone/big", base_id="big", revision=revision, **QUICK)
    with pytest.raises(InvalidParameter, match=r"is someone/big at revision 0123abc .* give revision 4567def another"):
        Store(tmp_path, "someone/big", base_id="big", revision="4567def", **QUICK)
    assert (tmp_path / "bases.toml").read_text() == text


def test_of_two_bases_each_model_is_compared_with_its_own(tiny_base_dir: Path, folders: Path, tmp_path: Path) -> None:
    with Store(tmp_path / "two", build_tiny_base(tmp_path / "other", seed=1), base_id="other", **QUICK) as store:
        pass
    with Store(tmp_path / "two", tiny_base_dir, base_id="tiny", **QUICK) as store:
        adapter = store.push(folders / "court", name="team/court", texts=passages("court", 30))
        texts = passages("court", 6, seed=2)
        recipe = {"ingredients": [{"ref": "team/court"}]}
        compared = store.compare({"court": (texts, texts)}, {"alone": {"recipe": recipe, "verify": False}})
        differences = {row.difference for row in compared}
        for model in (adapter, "team/court", "team/court*1+team/court@1*0", "base/other"):
            baseline = store.evaluate(model, texts).baseline
            assert baseline.model == ("base/other" if model == "base/other" else "base/tiny")
            differences |= set() if model == "base/other" else {baseline.difference}
        assert len(differences) == 1


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [({"thread": 1}, "no setting thread"), ({"threads": "many"}, "threads"), ({"data": "x"}, "in its own folder")],
)
def test_settings_are_a_servers(tmp_path: Path, setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParameter, match=sentence):
        Store(tmp_path / "a", **setting)


SCRIPT = """
import sys, threading
from adaptersoup import Store

store = Store(sys.argv[1], sys.argv[2], base_id="tiny", threads=1)
texts = [str(number) * 50 for number in range(1_000, 3_000)]
computing = threading.Thread(target=store.evaluate, args=("base/tiny", texts), daemon=True)
computing.start()
while computing.is_alive() and not store._runtime.engine.counters()["prompt_tokens_total"]:
    computing.join(0.01)
raise RuntimeError("the script's own")
"""


@pytest.mark.long
def test_a_script_that_fails_ends_with_its_own_error(tmp_path: Path, tiny_base_dir: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "store"), str(tiny_base_dir)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 1, ended.stderr
    assert "RuntimeError: the script's own" in ended.stderr


def test_a_store_leaves_the_threads_of_its_program(tmp_path: Path, tiny_base_dir: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with Store(tmp_path / "a", tiny_base_dir, base_id="tiny"):
            assert torch.get_num_threads() == 2
        with (
            pytest.raises(Unavailable),
            Store(tmp_path / "a", database_url="postgresql+psycopg://nobody@127.0.0.1:1/x"),
        ):
            pass
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


# --- a pool that is evaluated as tasks ------------------------------------------------------------


@pytest.fixture(scope="module")
def stocked(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("matrix") / "own_store"
    stock(folder, tiny_base_dir)
    return folder


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPool]:
    with ProcessPool(1) as place:
        yield place


@pytest.fixture
def own_store(stocked: Path, tmp_path: Path) -> Iterator[Store]:
    with Store(shutil.copytree(stocked, tmp_path / "own_store"), **SETTINGS) as own_store:
        yield own_store


def elsewhere(
    own_store: Store, place: ProcessPool, progress: Progress = silent, score: Any = score_samples
) -> CrossEvaluated:
    registry, caller = own_store._runtime.services.registry, Caller("admin", None, "test")
    base, spec = pool_of(registry, caller, PoolRequest())
    workers = EvaluationPool(place, score, 1)
    return cross_evaluate(registry, caller, base, spec, passages=10, progress=progress, workers=workers)


def test_tasks_come_to_the_figures_of_the_stores_engine(
    stocked: Path, own_store: Store, processes: ProcessPool, tmp_path: Path
) -> None:
    steps: list[tuple[int, int]] = []
    evaluated = elsewhere(own_store, processes, lambda done, total, _: steps.append((done, total)))
    assert evaluated == CrossEvaluated(pairs=9, computed=9, known=0, failed={})
    assert steps == sorted(steps)
    assert {total for _, total in steps} == {9}
    with Store(shutil.copytree(stocked, tmp_path / "here"), **SETTINGS) as here:
        assert here.evaluate_pool(passages=10) == evaluated
        assert stored_evaluations(own_store) == stored_evaluations(here)
    assert elsewhere(own_store, processes) == CrossEvaluated(pairs=9, computed=0, known=9, failed={})
    assert len(stored_evaluations(own_store)) == 9


def damage(own_store: Store, digest: str) -> None:
    """Flip a bit of a stored blob."""
    data = own_store._runtime.services.registry.blobs.read(digest)
    (path,) = (
        file
        for file in own_store.folder.rglob("*")
        if file.is_file() and file.stat().st_size == len(data) and file.read_bytes() == data
    )
    path.chmod(0o600)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def test_an_adapter_that_is_damaged_is_named_and_keeps_no_other_from_it(
    own_store: Store, processes: ProcessPool
) -> None:
    damage(own_store, own_store._row("team/code").weights_blob)
    evaluated = elsewhere(own_store, processes)
    assert (evaluated.computed, list(evaluated.failed)) == (6, ["team/code@1"])
    assert {adapter for adapter, _ in stored_evaluations(own_store)} == {"team/court@1", "team/kitchen@1"}


def test_an_adapter_whose_sample_is_damaged_is_evaluated_on_the_samples_of_others(own_store: Store) -> None:
    sample = own_store._row("team/code").sample
    damage(own_store, sample.digest)
    evaluated = own_store.evaluate_pool(passages=10)
    assert (evaluated.computed, list(evaluated.failed)) == (6, ["team/code@1"])
    assert ("team/code@1", "team/court@1") in stored_evaluations(own_store)


def test_a_sample_that_cannot_be_scored_is_named_and_others_are_evaluated(
    own_store: Store, processes: ProcessPool
) -> None:
    evaluated = elsewhere(own_store, processes, score=score_all_but_code)
    assert (evaluated.computed, evaluated.failed) == (6, {"team/code@1": "It has another language."})
    assert ("team/code@1", "team/court@1") in stored_evaluations(own_store)


def test_it_is_ended_by_its_progress_and_goes_on(own_store: Store, processes: ProcessPool) -> None:
    def stop(done: int, _total: int, _message: str) -> None:
        if done:
            raise Cancelled("It was cancelled.")

    with pytest.raises(Cancelled):
        elsewhere(own_store, processes, stop)
    known_before = len(stored_evaluations(own_store))
    assert 0 < known_before < 9
    assert own_store.evaluate_pool(passages=10) == CrossEvaluated(
        pairs=9, computed=9 - known_before, known=known_before, failed={}
    )


@pytest.mark.parametrize(
    ("options", "sentence"), [({"cores": 2}, "are for tasks on Ray"), ({"on": "spark"}, "--on takes ray")]
)
def test_what_is_of_ray_alone_is_refused_without_it(own_store: Store, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidParameter, match=sentence):
        own_store.evaluate_pool(**options)
