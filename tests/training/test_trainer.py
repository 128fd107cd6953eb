"""`soup train`: what it writes, replaces and keeps, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
from functools import partial

import pytest

from adaptersoup.cli.verbs.train import interrupts
from registry.formats import read_directory
from tests.adaptersoup.cli.outcome import done, refused
from tests.service.servers import write_bases
from tests.texts_file import write_texts
from tests.training.conftest import TEXTS, VALID, stop_after
from training.checkpoint import FILE
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
    before = (out / "adapter_model.safetensors").read_bytes()
    assert "--replace" in refused(train("--init-seed", 3))
    assert (out / "adapter_model.safetensors").read_bytes() == before
    answer = json.loads(done(train("--init-seed", 3, "--replace", "--json"))[0])
    assert (answer["object"], answer["path"], answer["training"]["steps"]) == ("folder", str(out), 4)
    assert answer["init_hash"] == read_directory(out).provenance.init_hash
    assert (out / "adapter_model.safetensors").read_bytes() != before


def test_soup_train_never_replaces_a_folder_of_texts(train, tmp_path):
    before = {path.name for path in tmp_path.iterdir()}
    assert "is not replaced" in refused(train("--replace", out="."))
    assert {path.name for path in tmp_path.iterdir()} == before


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
    ("more", "code", "said"),
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
        (["--checkpoint-steps", "2"], 2, "need --checkpoint"),
        (["--checkpoint-seconds", "2"], 2, "need --checkpoint"),
        (["--bottleneck", "70000"], 1, "--bottleneck"),
        (["--domain", "d" * 201], 2, "--domain: must have at most 200 characters"),
    ],
)
def test_soup_train_refuses_in_one_sentence_and_writes_nothing(train, tmp_path, monkeypatch, more, code, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(train(*more, out="out"), code)
    assert not (tmp_path / "out").exists()


def test_an_output_that_cannot_be_written_is_refused_before_the_training(train, tmp_path, monkeypatch):
    monkeypatch.setattr("adaptersoup.cli.verbs.train.command._train", lambda *_: pytest.fail("it trains"))
    assert "texts.jsonl" in refused(train(out="texts.jsonl/law"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.jsonl", "valid.jsonl"]


def test_soup_train_goes_on_where_it_was_stopped(train, tmp_path, monkeypatch):
    state = tmp_path / "state"
    numbers = ("--method", "lora", "--lr", "0.02", "--accumulate", "2", "--schedule", "cosine")
    again = (*numbers, "--checkpoint", state)
    done(train(*numbers, out="whole"))
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stop_after(2))
        err = refused(train(*again))
    assert "step 3 of 4" in err
    assert "Run the same command again to go on." in err
    assert "data_seed (0 there, 1 here)" in refused(train(*again, "--seed", "1"))
    assert not (tmp_path / "law").exists()
    assert "after step 2" in done(train(*again))[1]
    assert not state.exists()
    for name in ("adapter_model.safetensors", "soup.json"):
        made, whole = ((tmp_path / folder / name).read_bytes() for folder in ("law", "whole"))
        assert made.replace(b'"law"', b'"whole"') == whole


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
    seen = []
    signal.signal(number, lambda *_: seen.append("ended"))
    with interrupts.stoppable() as should_stop:
        assert not should_stop()
        os.kill(os.getpid(), number)
        assert should_stop()
        assert seen == []
        os.kill(os.getpid(), number)
        assert seen == ["ended"]


@pytest.fixture
def bank(train):
    return partial(train, "--adamix", "2")


def test_killed_between_a_bank_and_its_merge_the_same_command_goes_on(bank, tmp_path, monkeypatch):
    done(bank(out="whole"))
    saved = ("--checkpoint", tmp_path / "state")
    with monkeypatch.context() as patch:
        patch.setattr(Trained, "merged", killed)
        with pytest.raises(Killed):
            bank(*saved)
    assert (tmp_path / "law-bank").is_dir()
    assert not (tmp_path / "law").exists()
    assert (tmp_path / "state" / FILE).is_file()
    assert "Went on from the checkpoint after step 4." in done(bank(*saved))[1]
    assert not (tmp_path / "state").exists()
    for end in ("", "-bank"):
        assert read_directory(tmp_path / f"law{end}").sample is not None  # what is pushed of it has it, and its merge
        made, whole = (tmp_path / f"{name}{end}" / "adapter_model.safetensors" for name in ("law", "whole"))
        assert made.read_bytes() == whole.read_bytes()


class Killed(BaseException):
    """As by a signal that nobody handles."""


def killed(_):
    raise Killed


def test_what_is_in_the_place_of_a_bank_is_replaced_if_asked_and_only_then(bank, tmp_path):
    done(bank("--init-seed", "3"))
    shutil.rmtree(tmp_path / "law")
    weights = tmp_path / "law-bank" / "adapter_model.safetensors"
    assert "law-bank exists, and is of another training: init_seed (3 there, 0 here)." in refused(bank())
    shutil.rmtree(tmp_path / "law-bank")
    done(bank(out="other"))
    (tmp_path / "other").rename(tmp_path / "law-bank")
    before = weights.read_bytes()
    assert "law-bank exists and is not empty: choose another directory, or add --replace." in refused(bank())
    assert weights.read_bytes() == before
    assert not (tmp_path / "law").exists()
    done(bank("--replace"))
    assert weights.read_bytes() != before


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
