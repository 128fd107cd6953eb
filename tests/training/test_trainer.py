"""`soup train`, alone and as a sweep: directories that can be pushed, and goes on where it was stopped."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from functools import partial
from unittest.mock import Mock

import pytest

from adaptersoup.cli.verbs.train import interrupts
from adaptersoup.cli.verbs.train.progress import Table
from registry.errors import InvalidParameter
from registry.formats import AdapterContents, read_directory, write_directory
from registry.names import check_part
from registry.spec import Provenance
from tests.adaptersoup.cli.outcome import done, refused
from tests.registry.random_adapters import lora
from tests.registry.toy_registry import weights
from tests.service.scripted_server import Server, ok, refusal
from tests.service.servers import write_bases
from tests.texts_file import write_texts
from tests.training.conftest import TEXTS, VALID, Killed, stop_after, stoppable
from training.checkpoint import FILE, locked
from training.state import made_with
from training.sweep import CHECKPOINTS, Cell, finished_row, read_domain
from training.trainer import Trained

pytestmark = pytest.mark.slow


@pytest.fixture
def train(soup, tiny_base_dir, tmp_path):
    """Runs a short training in a folder of the test's own."""
    data = (
        "--texts",
        write_texts(tmp_path / "texts.jsonl", TEXTS),
        "--valid",
        write_texts(tmp_path / "valid.jsonl", VALID),
    )
    numbers = ("--steps", 4, "--batch", 2, "--block", 32)

    def run(*more, out="law", base=("--base-folder", tiny_base_dir)):
        return soup("train", *base, *data, "--out", tmp_path / out, *numbers, *more)

    return run


def test_soup_train_writes_a_directory_that_can_be_pushed(train, tmp_path, base):
    folder = tmp_path / "adapters" / "law"
    picture = tmp_path / "law.svg"
    out, err = done(train("--sample", 30, "--lr", 0.01, "--plot", picture, out="adapters/law"))
    assert ">Training on law</text>" in picture.read_text()
    assert out == f"{folder}\n"
    assert "before" in err
    on_the_way = [line.partition(": loss ") for line in err.splitlines() if line.startswith("step ")]
    assert [step for step, _, _ in on_the_way] == [f"step {number} of 4" for number in (1, 2, 3, 4)]
    assert all("on validation " in figures for _, _, figures in on_the_way)
    written = read_directory(folder)
    assert written.domain == "law"
    assert written.base_fingerprint == base.shape.fingerprint
    assert written.provenance.init_source == "trained_here"
    sample = [json.loads(line)["text"] for line in written.sample.read_text().splitlines()]
    assert len(sample) == 30
    assert set(sample) <= set(TEXTS)


def test_soup_train_keeps_what_is_there_unless_told(train, tmp_path):
    out = tmp_path / "law"
    done(train("--sample", 0))
    assert read_directory(out).sample is None
    old_weights = (out / "adapter_model.safetensors").read_bytes()
    assert "--replace" in refused(train("--init-seed", 3))
    assert (out / "adapter_model.safetensors").read_bytes() == old_weights
    answer = json.loads(done(train("--init-seed", 3, "--replace", "--json"))[0])
    assert (answer["object"], answer["path"], answer["training"]["steps"]) == ("folder", str(out), 4)
    assert answer["init_hash"] == read_directory(out).provenance.init_hash
    assert (out / "adapter_model.safetensors").read_bytes() != old_weights


def test_soup_train_never_replaces_a_folder_of_texts(train, tmp_path):
    names_before = {path.name for path in tmp_path.iterdir()}
    assert "is not replaced" in refused(train("--replace", out="."))
    assert {path.name for path in tmp_path.iterdir()} == names_before


def test_soup_train_without_its_files_is_a_question_of_usage(soup):
    assert "Missing --valid, --out" in refused(soup("train", "--texts", "a.jsonl"), 2)


def test_soup_train_on_an_allowlist_names_the_base(train, tiny_base_dir, tmp_path):
    bases = write_bases(tmp_path / "bases.toml", {"tiny": tiny_base_dir, "other": tiny_base_dir})
    allowed = partial(train, "--replace", base=("--bases", bases))
    done(allowed("--base", "tiny"))
    assert read_directory(tmp_path / "law").base_model == "tiny"
    refused(allowed("--base", "none"))
    refused(allowed("--base", "tiny", "--base-kind", "encoder"), 2)


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--lr", "0"], 1, "--lr: "),
        (["--block", "65"], 1, "65 tokens does not fit the base model's context of 64"),
        (["--base", "x"], 2, "--base-folder"),
        (["--structure", "lora"], 2, "structure"),
        (["--lr", "1e30", "--steps", "10"], 1, "diverged at step"),
        (["--warmup", "2"], 1, "warmup"),
        (["--rank", "4", "--alpha", "8"], 2, "--rank, --alpha: not an option of --method bottleneck"),
        (["--method", "lora", "--bottleneck", "4"], 2, "--bottleneck: not an option of --method lora"),
        (["--method", "lora", "--alpha", "0"], 1, "--alpha"),
        (["--method", "lora", "--targets", "q_proj"], 3, "no linear module 'q_proj'; it has c_attn, c_fc, c_proj"),
        (["--method", "lora", "--structure", "houlsby"], 2, "--structure: not an option of --method lora"),
        (["--checkpoint", "out/state"], 1, "cannot be in"),
        (["--checkpoint", "out-bank", "--adamix", "2"], 1, "out-bank, because the adapter replaces that folder"),
        (["--checkpoint-steps", "2"], 2, "need --checkpoint"),
        (["--checkpoint-seconds", "2"], 2, "need --checkpoint"),
        (["--bottleneck", "70000"], 1, "--bottleneck"),
        (["--domain", "d" * 201], 2, "--domain: must have at most 200 characters"),
    ],
)
def test_soup_train_refuses_in_one_sentence_and_writes_nothing(train, tmp_path, monkeypatch, more, code, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused(train(*more, out="out"), code)
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_is_refused_before_the_training(train, tmp_path, monkeypatch):
    monkeypatch.setattr("adaptersoup.cli.verbs.train.command._train", lambda *_: pytest.fail("it trains"))
    assert "texts.jsonl" in refused(train(out="texts.jsonl/law"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.jsonl", "valid.jsonl"]


def test_soup_train_goes_on_where_it_was_stopped(train, tmp_path, monkeypatch):
    state = tmp_path / "state"
    numbers = ("--method", "lora", "--lr", "0.02", "--accumulate", "2", "--schedule", "cosine")
    flags = (*numbers, "--checkpoint", state)
    done(train(*numbers, out="whole"))
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stop_after(2))
        err = refused(train(*flags))
    assert "step 3 of 4" in err
    assert "Run the same command again to go on." in err
    assert "data_seed (0 there, 1 here)" in refused(train(*flags, "--seed", "1"))
    assert not (tmp_path / "law").exists()
    assert "after step 2" in done(train(*flags))[1]
    assert not state.exists()
    for name in ("adapter_model.safetensors", "soup.json"):
        resumed, whole = ((tmp_path / folder / name).read_bytes() for folder in ("law", "whole"))
        assert resumed.replace(b'"law"', b'"whole"') == whole


def test_what_is_longer_than_a_block_is_counted_and_told(soup, tiny_base_dir, tmp_path):
    lines = [json.dumps({"text": f"court {i} held " * (1 + i % 2 * 20), "label": i % 2}) for i in range(40)]
    for name in ("data", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = ("--data", tmp_path / "data.jsonl", "--valid", tmp_path / "valid.jsonl", "--out", tmp_path / "out")
    numbers = ("--steps", 1, "--block", 40, "--task", "classification")
    _, err = done(soup("train", *files, "--base-folder", tiny_base_dir, *numbers))
    assert "Longer than a block of 40 tokens: 20 texts cut, 20 texts cut to validate on." in err


def test_a_training_without_a_checkpoint_says_that_nothing_is_kept(train, monkeypatch):
    monkeypatch.setattr(interrupts, "stoppable", stop_after(1))
    assert "Nothing of it is kept: --checkpoint FOLDER would." in refused(train())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("signal_handlers")
def test_the_first_interrupt_is_noted_and_the_second_ends(number):
    events = []
    signal.signal(number, lambda *_: events.append("ended"))
    with interrupts.stoppable() as should_stop:
        assert not should_stop()
        os.kill(os.getpid(), number)
        assert should_stop()
        assert events == []
        os.kill(os.getpid(), number)
        assert events == ["ended"]


@pytest.fixture
def bank(train):
    return partial(train, "--adamix", "2")


def test_killed_between_a_bank_and_its_merge_the_same_command_goes_on(bank, tmp_path, monkeypatch):
    done(bank(out="whole"))
    saved = ("--checkpoint", tmp_path / "state")
    with monkeypatch.context() as patch:
        patch.setattr(Trained, "merged", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            bank(*saved)
    assert (tmp_path / "law-bank").is_dir()
    assert not (tmp_path / "law").exists()
    assert (tmp_path / "state" / FILE).is_file()
    assert "Went on from the checkpoint after step 4." in done(bank(*saved))[1]
    assert not (tmp_path / "state").exists()
    for end in ("", "-bank"):
        assert read_directory(tmp_path / f"law{end}").sample is not None  # what is pushed of it has it, and its merge
        resumed, whole = (tmp_path / f"{name}{end}" / "adapter_model.safetensors" for name in ("law", "whole"))
        assert resumed.read_bytes() == whole.read_bytes()


def test_what_is_in_the_place_of_a_bank_is_replaced_if_asked_and_only_then(bank, tmp_path):
    done(bank("--init-seed", "3"))
    shutil.rmtree(tmp_path / "law")
    weights = tmp_path / "law-bank" / "adapter_model.safetensors"
    assert "law-bank exists, and is of another training: init_seed (3 there, 0 here)." in refused(bank())
    shutil.rmtree(tmp_path / "law-bank")
    done(bank(out="other"))
    (tmp_path / "other").rename(tmp_path / "law-bank")
    old_weights = weights.read_bytes()
    assert "law-bank exists and is not empty: choose another directory, or add --replace." in refused(bank())
    assert weights.read_bytes() == old_weights
    assert not (tmp_path / "law").exists()
    done(bank("--replace"))
    assert weights.read_bytes() != old_weights


def test_a_step_of_fewer_rows_than_were_asked_for_is_recorded_and_said(train, tmp_path):
    _, err = done(train("--batch", "100", "--accumulate", "3"))
    rows = read_directory(tmp_path / "law").provenance.training["rows_a_step"]
    assert rows < 100
    assert f"Each step was of {rows} sequences, which are all there are: 300 were asked for (batch 100" in err
    assert "sequences" not in done(train(out="few"))[1]
    assert read_directory(tmp_path / "few").provenance.training["rows_a_step"] == 2


def test_an_adapter_that_learnt_nothing_is_announced(train):
    sentence = "No step was better than the start, so that the adapter is as it began"
    assert sentence in done(train("--lr", "1e-30"))[1]
    assert sentence not in done(train("--lr", "1e-2", out="learnt"))[1]


def test_what_is_trained_on_is_not_validated_on(train, tmp_path):
    texts = tmp_path / "texts.jsonl"
    err = refused(train("--valid", texts))
    assert f"--texts and --valid are the same file, {texts}: validate on other text." in err
    assert not (tmp_path / "law").exists()


# --- sweeps ---------------------------------------------------------------------------------------


SWEPT_TEXTS = [f"The judge of court {i} held that contract {i * 7} was void." for i in range(60)]


@pytest.fixture
def domains(tmp_path):
    folders = [tmp_path / "texts" / name for name in ("law", "more_law")]
    for number, folder in enumerate(folders):
        write_texts(folder / "train.jsonl", SWEPT_TEXTS[number : number + 40])
        write_texts(folder / "valid.jsonl.gz", SWEPT_TEXTS[40:])
    return folders


@pytest.fixture
def sweep(soup, domains, tiny_base_dir, tmp_path):
    """Runs a sweep of short trainings into `out`, over rates and seeds and the first `of` domains."""
    numbers = ("--steps", 3, "--batch", 2, "--block", 32, "--bottleneck", 4)
    places = ("--base-folder", tiny_base_dir, "--out", tmp_path / "out")

    def run(*more, grid=("1e-2,1e-3", "1,2"), of=2, **options):
        rates, seeds = grid
        cells = (*domains[:of], "--lr", rates, "--seed", seeds)
        return soup("train", "sweep", *cells, *places, *numbers, *more, **options)

    return run


def contents(folder):
    return {path.name: (path / "adapter_model.safetensors").read_bytes() for path in sorted(folder.glob("[!.]*"))}


def test_a_sweep_makes_every_cell_from_one_start_and_again_only_what_is_missing(sweep, tmp_path):
    out, err = done(sweep())
    created = contents(tmp_path / "out")
    names = [
        f"{domain}-lr{rate}-seed{seed}"
        for domain in ("law", "more_law")
        for rate in ("0.01", "0.001")
        for seed in (1, 2)
    ]
    assert set(created) == set(names)
    assert [line.split()[0] for line in out.splitlines()] == ["ADAPTER", *names]
    assert [line.split()[2] for line in out.splitlines()] == ["FIGURE", *["perplexity"] * 8]
    ends = [line for line in err.splitlines() if not line.startswith(tuple(names))]
    assert [line.split(":")[0] for line in ends] == [f"{n} of 8" for n in range(1, 9)]
    folders = [read_directory(tmp_path / "out" / check_part(name, "name")) for name in names]
    assert len({folder.provenance.init_hash for folder in folders}) == 1
    assert [folder.domain for folder in folders] == ["law"] * 4 + ["more_law"] * 4
    assert [folder.provenance.training["data_seed"] for folder in folders] == [1, 2] * 4
    assert len(set(created.values())) == 8
    assert not (tmp_path / "out" / ".checkpoints").exists()
    assert all(folder.sample is not None for folder in folders)
    (tmp_path / "out" / "law-lr0.01-seed2").rename(tmp_path / "elsewhere")
    rows = json.loads(done(sweep("--json"))[0])["data"]
    assert [row["state"] for row in rows] == ["kept", "trained", *["kept"] * 6]
    assert contents(tmp_path / "out") == created
    assert rows[1]["path"] == str(tmp_path / "out" / "law-lr0.01-seed2")


def test_a_sweep_that_was_stopped_goes_on_to_the_same_adapters(sweep, tmp_path, monkeypatch):
    done(sweep(of=1))
    whole = contents(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stop_after(5))
        code, _, err = sweep(of=1)
    assert (code, "Run the same command again to go on." in err) == (1, True)
    assert list(contents(tmp_path / "out")) == ["law-lr0.01-seed1"]
    done(sweep(of=1))
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize(
    ("earlier", "now", "field"),
    [
        ((), ("--schedule", "cosine"), "schedule"),
        ((), ("--bottleneck", "8"), "config.bottleneck"),
        (("--sparsity", "0.5"), (), "pruning"),
        ((), ("--adamix", "2"), "consistency"),
        (("--adamix", "2"), ("--adamix", "2", "--share", "none"), "bank.share"),
    ],
)
def test_a_cell_of_another_training_is_refused_before_any_is_trained(sweep, tmp_path, earlier, now, field):
    """A pruned adapter, or the merge of a bank, is no plain one, which would have the same configuration."""
    done(sweep(*earlier, grid=("1e-3", "1"), of=1))
    created = contents(tmp_path / "out")
    assert f"of another training: {field} (" in refused(sweep(*now, grid=("1e-2,1e-3", "1"), of=1))
    assert contents(tmp_path / "out") == created
    done(sweep(*earlier, grid=("1e-3", "1"), of=1))


def test_the_checkpoint_of_another_training_is_refused_before_any_cell_is_trained(sweep, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stop_after(5))
        sweep(of=1)
    shutil.rmtree(tmp_path / "out" / "law-lr0.01-seed1")
    checkpoint = tmp_path / "out" / CHECKPOINTS / "law-lr0.01-seed2"
    for more in ((), ("--parallel", 2)):  # the second loads no base model here
        err = refused(sweep("--steps", 4, *more, of=1))
        assert f"The checkpoint in {checkpoint} is of another training: steps (3 there, 4 here)." in err
    assert contents(tmp_path / "out") == {}


@pytest.mark.parametrize(
    ("more", "grid", "code", "message"),
    [
        ((), ("1e-3,abc", "1"), 2, "separated by commas"),
        ((), ("1e-3", "1.5"), 2, "whole numbers"),
        ((), ("1e-3,0.001", "1"), 1, "law-lr0.001-seed1 is in the grid twice"),
        ((), ("1e-3,-1", "1"), 1, "learning_rate"),
        ((), ("1e-3", "-1"), 1, "data_seed"),
        (("--rank", "4"), ("1e-3", "1"), 2, "--rank: not an option of --method bottleneck"),
        (("no-such-folder",), ("1e-3", "1"), 1, "has no train.jsonl"),
        (("--cores", "2"), ("1e-3", "1"), 1, "give --on ray as well"),
        (("--push", "team", "--url", "nonsense"), ("1e-3", "1"), 1, "'nonsense'"),
    ],
)
def test_bad_grids_are_refused_in_one_sentence(sweep, tmp_path, more, grid, code, message):
    assert message in refused(sweep(*more, grid=grid), code)
    assert not (tmp_path / "out").exists()


def test_options_before_the_verb_are_refused(soup, domains):
    assert "go after 'sweep'" in refused(soup("train", "--steps", 3, "sweep", *domains), 2)


@pytest.mark.long
def test_a_cell_that_diverges_ends_no_other_and_cells_at_once_come_out_as_one_after_another(sweep, tmp_path):
    """Two processes, a cell that diverges, one that is there, and the same bytes as in one process."""
    options = {"grid": ("1e30,1e-2,1e-3", "1"), "of": 1}
    code, out, err = sweep("--steps", 10, **options)
    assert (code, [line.split()[1] for line in out.splitlines()[1:]]) == (1, ["diverged", "trained", "trained"])
    whole = contents(tmp_path / "out")
    assert list(whole) == ["law-lr0.001-seed1", "law-lr0.01-seed1"]
    shutil.rmtree(tmp_path / "out" / "law-lr0.01-seed1")
    code, out, err = sweep("--steps", 10, "--parallel", 2, "--json", **options)
    assert (code, [row["state"] for row in json.loads(out)["data"]]) == (1, ["diverged", "trained", "kept"])
    assert "law-lr1e+30-seed1: Training diverged at step" in err
    assert contents(tmp_path / "out") == whole


@pytest.mark.long
def test_a_sweep_in_processes_that_is_stopped_goes_on_to_the_same_adapters(sweep, tmp_path, monkeypatch):
    run_sweep = partial(sweep, "--steps", 300, grid=("1e-3", "1"), of=1)
    done(run_sweep())
    whole = contents(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "whole")
    saved = tmp_path / "out" / ".checkpoints" / "law-lr0.001-seed1"
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stoppable(saved.exists))  # a training makes it as it begins
        code, _, err = run_sweep("--parallel", 2)
    assert (code, "Run the same command again to go on." in err) == (1, True)
    assert saved.is_dir()
    done(run_sweep())
    assert contents(tmp_path / "out") == whole
    assert not (tmp_path / "out" / ".checkpoints").exists()


def test_a_second_sweep_into_the_same_folder_is_refused_while_the_first_is_at_work(sweep, tmp_path):
    with locked(tmp_path / "out" / CHECKPOINTS, "taken"):
        for _ in range(2):  # nor does the one that is refused let the next one in
            message = refused(sweep())
            assert f"Another sweep is at work in {tmp_path / 'out'}: wait for it, or choose another folder." in message
    assert not (tmp_path / "out" / CHECKPOINTS).exists()


def test_cells_that_were_made_on_other_threads_are_said(sweep, tmp_path):
    assert "last bits" not in done(sweep(grid=("1e-2", "1"), of=1))[1]
    (manifest,) = (tmp_path / "out" / "law-lr0.01-seed1").glob("*.json")
    assert '"threads": 1' in manifest.read_text()
    manifest.write_text(manifest.read_text().replace('"threads": 1', '"threads": 2'))
    _, err = done(sweep(grid=("1e-2,1e-3", "1"), of=1))
    notes = [line for line in err.splitlines() if "last bits" in line]
    differ = "Its last bits may differ from those of cells that are trained here: threads (2 there, 1 here)."
    assert notes == [f"law-lr0.01-seed1: {differ}"]


@pytest.mark.parametrize("environment", [{"torch": "1", "threads": 9}, 5, [5], ["threads"], "threads", None])
def test_a_folder_that_says_otherwise_what_it_was_made_with_is_a_row_without_a_note(domains, tmp_path, environment):
    contents = AdapterContents(
        config=lora(),
        weights=weights(0, lora()),
        base_model="tiny",
        provenance=Provenance(training={"made_with": environment}),
    )
    write_directory(tmp_path / "one", contents)
    row = finished_row(Cell(read_domain(domains[0]), 1e-3, 1), "kept", read_directory(tmp_path / "one"), made_with(9))
    assert (row.state, row.note) == ("kept", None)


def test_a_cell_whose_process_is_killed_again_and_again_is_left_for_the_next_time(sweep, monkeypatch):
    run_sweep = partial(sweep, grid=("1e-3", "1"), of=1)
    killed = set()

    def kill():
        for child in multiprocessing.active_children():
            killed.add(child.pid)
            child.kill()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stoppable(kill))
        code, out, err = run_sweep("--parallel", 2)
    assert (code, [line.split()[1] for line in out.splitlines()[1:]]) == (1, ["failed"])
    assert "law-lr0.001-seed1: The process that ran it was killed, or crashed, 3 times." in err
    assert len(killed) >= 3
    done(run_sweep())


def test_what_is_wrong_with_all_cells_ends_them_all(sweep, tmp_path):
    assert "999" in refused(sweep("--block", 999))
    assert contents(tmp_path / "out") == {}


def test_what_a_grid_made_is_pushed_in_one_go_the_best_of_a_domain_last(sweep):
    """Over a scripted server, which refuses one; a bank goes there and its merge is cooked there."""
    server = Server()
    pushed, cooked = [], []

    def push(request):
        manifest = json.loads(request.content)
        pushed.append((manifest["name"], manifest["config"]["method"], len(manifest["sample"]["texts"])))
        if manifest["name"].startswith("team/law-lr0.0001"):
            return refusal(403, "forbidden", "This key may not write there.")
        return ok({"ref": manifest["name"] + "@1", "created_at": f"2026-01-01T00:00:{len(pushed):02}Z"})

    def cook(request):
        cooked.append(json.loads(request.content))
        return ok({"object": "soup", "model": cooked[-1]["name"] + "@1"})

    server.on("POST /v1/adapters", push)
    server.on("POST /v1/soups", cook)
    flags = ("--adamix", 2, "--push", "team", "--json")
    code, out, err = sweep(*flags, grid=("5e-2,1e-4,1e-2", "1"), of=1, connect=lambda url, key: server.client())
    assert (code, "This key may not write there." in err) == (1, True)
    rows = json.loads(out)["data"]
    assert [row["ref"] for row in rows] == ["team/law-lr0.05-seed1@1", None, "team/law-lr0.01-seed1@1"]
    lowest = {row["name"]: min(loss for _, loss in row["training"]["valid_history"]) for row in rows}
    worst_first = sorted(lowest, key=lowest.__getitem__, reverse=True)
    assert worst_first[0] == "law-lr0.0001-seed1"
    assert pushed == [(f"team/{name}-bank", "adamix", 40) for name in worst_first]
    assert [body["recipe"]["ingredients"] for body in cooked] == [
        [{"ref": f"team/{name}-bank@1", "weight": 1.0}] for name in worst_first[1:]
    ]
    assert {body["mixing"]["method"] for body in cooked} == {"merge"}
    assert "Namespace" in refused(sweep("--push", "No Namespace"))


@pytest.mark.parametrize(
    ("domain", "more", "message"),
    [
        ("d" * 54, (), f"-lr0.001-seed2 would both be pushed as {'d' * 54}-lr0.001-s: names have"),
        ("LAW", (), "law-lr0.001-seed1 and LAW-lr0.001-seed1 would both be pushed as law-lr0.001-seed1: names have"),
        ("d" * 50, ("--adamix", 2), "name of the bank"),
    ],
)
def test_cells_whose_names_cannot_be_pushed_are_refused_before_any_is_trained(
    sweep, domains, tmp_path, domain, more, message
):
    folder = shutil.copytree(domains[1], tmp_path / domain)
    push = ("--push", "team", folder, *more)
    assert message in refused(sweep(*push, grid=("1e-3", "1,2"), of=1, connect=lambda url, key: Server().client()))
    assert not (tmp_path / "out").exists()


def test_adapters_that_are_newer_than_the_best_of_their_domain_are_named(sweep):
    """The server has the best from an earlier sweep, and keeps that version."""
    server, pushed = Server(), []

    def push(request):
        pushed.append(json.loads(request.content)["name"])
        return ok({"ref": pushed[-1] + "@1", "created_at": f"2026-01-01T00:00:{10 - len(pushed):02}Z"})

    server.on("POST /v1/adapters", push)
    _, err = done(sweep("--push", "team", grid=("1e-4,1e-2", "1"), of=1, connect=lambda url, key: server.client()))
    newest, best = (f"{name}@1" for name in pushed)
    assert f"law: {best} is the best, and selectors use the newest adapter of a domain. `soup rm {newest}`" in err


def test_a_table_of_progress_has_a_line_a_cell():
    from rich.console import Console

    table = Table(["law-lr0.001-seed1", "[b]strange[/b]"])
    table.at("law-lr0.001-seed1", 3, 10, "loss 2.5")
    table.ended("[b]strange[/b]", "kept")
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        console.print(table)
    lines = [line.split() for line in captured.get().splitlines()]
    assert lines[1:] == [["law-lr0.001-seed1", "training", "3/10", "loss", "2.5"], ["[b]strange[/b]", "kept"]]


def test_what_is_in_the_place_of_a_cells_bank_is_not_written_over(sweep, tmp_path):
    """Found before anything is trained."""
    grid = ("1e-3", "1")
    done(sweep(grid=grid))
    bank = tmp_path / "out" / "more_law-lr0.001-seed1-bank"
    for name in ("law", "more_law"):
        (tmp_path / "out" / f"{name}-lr0.001-seed1").rename(tmp_path / name)
    (tmp_path / "more_law").rename(bank)
    contents_before = contents(tmp_path / "out")
    err = refused(sweep("--adamix", 2, grid=grid))
    assert f"{bank} exists and is not empty: choose another directory, or remove it." in err
    assert contents(tmp_path / "out") == contents_before


@pytest.mark.parametrize(("filename", "least"), [("train.jsonl", 20), ("valid.jsonl.gz", 5)])
def test_a_domain_with_too_little_is_named_before_anything_is_trained(domains, sweep, tmp_path, filename, least):
    path = write_texts(domains[1] / filename, SWEPT_TEXTS[: least - 1])
    assert f"{path} holds {least - 1} items that are not empty, and at least {least} are needed." in refused(sweep())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["d" * 201, os.fsdecode(b"law\xff")])
def test_a_folder_whose_name_cannot_be_a_domain_is_refused(domains, name):
    folder = domains[0].rename(domains[0].with_name(name))
    with pytest.raises(InvalidParameter, match="is no valid domain"):
        read_domain(folder)


def test_data_that_are_wrong_later_are_those_of_a_domain(domains, sweep):
    write_texts(domains[1] / "train.jsonl", ["a"] * 20)
    code, _, err = sweep("--block", 64, grid=("1e-2", "1"))
    assert (code, f"{domains[1]}: The training data has" in err) == (1, True), err
