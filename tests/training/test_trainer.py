"""`soup train`: what it writes, replaces and keeps, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial

import pytest

from adaptersoup.cli.app import run as soup
from adaptersoup.cli.verbs.train import interrupts
from registry.formats import read_directory
from tests.training.conftest import TEXTS, VALID, stop_after
from training.checkpoint import FILE
from training.trainer import Trained

pytestmark = pytest.mark.slow


@pytest.fixture
def command(tiny_base_dir, tmp_path):
    """The command line of a short training in a folder of the test's own."""
    for name, texts in (("texts", TEXTS), ("valid", VALID)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def arguments(*more, out="law"):
        return [
            "train",
            "--base-folder",
            str(tiny_base_dir),
            "--texts",
            str(tmp_path / "texts.jsonl"),
            "--valid",
            str(tmp_path / "valid.jsonl"),
            "--out",
            str(tmp_path / out),
            "--steps",
            "4",
            "--batch",
            "2",
            "--block",
            "32",
            *more,
        ]

    return arguments


def test_soup_train_writes_a_directory_that_can_be_pushed(command, tmp_path, base, capsys):
    out = tmp_path / "adapters" / "law"
    picture = tmp_path / "law.svg"
    assert soup(command("--sample", "30", "--lr", "0.01", "--plot", str(picture), out="adapters/law")) == 0
    assert ">Training on law</text>" in picture.read_text()
    said = capsys.readouterr()
    assert said.out == f"{out}\n"
    assert "before" in said.err
    on_the_way = [line.partition(": loss ") for line in said.err.splitlines() if line.startswith("step ")]
    assert [step for step, _, _ in on_the_way] == [f"step {number} of 4" for number in (1, 2, 3, 4)]
    assert all("on validation " in figures for _, _, figures in on_the_way)
    folder = read_directory(out)
    assert folder.domain == "law"
    assert folder.base_fingerprint == base.shape.fingerprint
    assert folder.provenance.init_source == "trained_here"
    sample = [json.loads(line)["text"] for line in folder.sample.read_text().splitlines()]
    assert len(sample) == 30
    assert set(sample) <= set(TEXTS)


def test_soup_train_keeps_what_is_there_unless_told(command, tmp_path, capsys):
    out = tmp_path / "law"
    assert soup(command("--sample", "0")) == 0
    assert read_directory(out).sample is None
    before = (out / "adapter_model.safetensors").read_bytes()
    assert soup(command("--init-seed", "3")) == 1
    assert "--replace" in capsys.readouterr().err
    assert (out / "adapter_model.safetensors").read_bytes() == before
    assert soup(command("--init-seed", "3", "--replace", "--json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["object"], said["path"], said["training"]["steps"]) == ("folder", str(out), 4)
    assert said["init_hash"] == read_directory(out).provenance.init_hash
    assert (out / "adapter_model.safetensors").read_bytes() != before


def test_soup_train_never_replaces_a_folder_of_texts(command, tmp_path, capsys):
    kept = {path.name for path in tmp_path.iterdir()}
    assert soup(command("--replace", out=".")) == 1
    assert "is not replaced" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_soup_train_without_its_files_is_a_question_of_usage(capsys):
    assert soup(["train", "--texts", "a.jsonl"]) == 2
    assert "Missing --valid, --out" in capsys.readouterr().err


def test_soup_train_on_an_allowlist_names_the_base(command, tiny_base_dir, tmp_path):
    bases = tmp_path / "bases.toml"
    bases.write_text(f'[bases.tiny]\nsource = "{tiny_base_dir}"\n[bases.other]\nsource = "{tiny_base_dir}"\n')

    def allowed(base, *more):
        arguments = command("--replace", "--bases", str(bases), "--base", base, *more)
        return ["train", *arguments[3:]]  # without --base-folder

    assert soup(allowed("tiny")) == 0
    assert read_directory(tmp_path / "law").base_model == "tiny"
    assert soup(allowed("none")) == 1
    assert soup(allowed("tiny", "--base-kind", "encoder")) == 2


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
    ],
)
def test_soup_train_refuses_in_one_sentence_and_writes_nothing(
    command, tmp_path, capsys, monkeypatch, more, code, said
):
    monkeypatch.chdir(tmp_path)
    assert soup(command(*more, out="out")) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_soup_train_goes_on_where_it_was_stopped(command, tmp_path, monkeypatch, capsys):
    state = tmp_path / "state"
    numbers = ("--method", "lora", "--lr", "0.02", "--accumulate", "2", "--schedule", "cosine")
    again = command(*numbers, "--checkpoint", str(state))
    assert soup(command(*numbers, out="whole")) == 0
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stop_after(2))
        assert soup(again) == 1
    assert "step 3 of 4" in (said := capsys.readouterr().err)
    assert "Run the same command again to go on." in said
    assert soup([*again, "--seed", "1"]) == 1
    assert "data_seed (0 there, 1 here)" in capsys.readouterr().err
    assert not (tmp_path / "law").exists()
    assert soup(again) == 0
    assert "after step 2" in capsys.readouterr().err
    assert not state.exists()
    for name in ("adapter_model.safetensors", "soup.json"):
        made, whole = ((tmp_path / folder / name).read_bytes() for folder in ("law", "whole"))
        assert made.replace(b'"law"', b'"whole"') == whole


def test_what_is_longer_than_a_block_is_counted_and_told(tiny_base_dir, tmp_path, capsys):
    lines = [json.dumps({"text": f"court {i} held " * (1 + i % 2 * 20), "label": i % 2}) for i in range(40)]
    for name in ("data", "valid"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    files = ["--data", str(tmp_path / "data.jsonl"), "--valid", str(tmp_path / "valid.jsonl")]
    arguments = ["train", *files, "--base-folder", str(tiny_base_dir), "--out", str(tmp_path / "out"), "--steps", "1"]
    assert soup([*arguments, "--block", "40", "--task", "classification"]) == 0
    said = capsys.readouterr().err
    assert "Longer than a block of 40 tokens: 20 texts cut, 20 texts cut to validate on." in said


def test_a_training_without_a_checkpoint_says_that_nothing_is_kept(command, monkeypatch, capsys):
    monkeypatch.setattr(interrupts, "stoppable", stop_after(1))
    assert soup(command()) == 1
    assert "Nothing of it is kept: --checkpoint FOLDER would." in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interrupt_is_noted_and_the_second_ends(number):
    before = {one: signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)}
    seen = []
    try:
        signal.signal(number, lambda *_: seen.append("ended"))
        with interrupts.stoppable() as should_stop:
            assert not should_stop()
            os.kill(os.getpid(), number)
            assert should_stop()
            assert seen == []
            os.kill(os.getpid(), number)
            assert seen == ["ended"]
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@pytest.mark.slow
def test_the_help_needs_no_torch():
    check = (
        "import sys\nfrom adaptersoup.cli.app import run\n"
        "code = run(['train', '--help'])\nassert code == 0\nassert 'torch' not in sys.modules, 'torch'"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "soup push" in done.stdout


@pytest.fixture
def bank(command):
    return partial(command, "--adamix", "2")


def test_killed_between_a_bank_and_its_merge_the_same_command_goes_on(bank, tmp_path, capsys, monkeypatch):
    assert soup(bank(out="whole")) == 0
    saved = ("--checkpoint", str(tmp_path / "state"))
    with monkeypatch.context() as patch:
        patch.setattr(Trained, "merged", killed)
        with pytest.raises(Killed):
            soup(bank(*saved))
    assert (tmp_path / "law-bank").is_dir()
    assert not (tmp_path / "law").exists()
    assert (tmp_path / "state" / FILE).is_file()
    capsys.readouterr()
    assert soup(bank(*saved)) == 0
    assert "Went on from the checkpoint after step 4." in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
    for end in ("", "-bank"):
        assert read_directory(tmp_path / f"law{end}").sample is not None  # what is pushed of it has it, and its merge
        made, whole = (tmp_path / f"{name}{end}" / "adapter_model.safetensors" for name in ("law", "whole"))
        assert made.read_bytes() == whole.read_bytes()


class Killed(BaseException):
    """As by a signal that nobody handles."""


def killed(_):
    raise Killed


def test_what_is_in_the_place_of_a_bank_is_replaced_if_asked_and_only_then(bank, tmp_path, capsys):
    assert soup(bank("--init-seed", "3")) == 0
    shutil.rmtree(tmp_path / "law")
    weights = tmp_path / "law-bank" / "adapter_model.safetensors"
    before = weights.read_bytes()
    capsys.readouterr()
    assert soup(bank()) == 1
    assert "law-bank exists, and is of another training: init_seed (3 there, 0 here)." in capsys.readouterr().err
    shutil.rmtree(tmp_path / "law-bank")
    assert soup(bank(out="other")) == 0
    (tmp_path / "other").rename(tmp_path / "law-bank")
    before = weights.read_bytes()
    assert soup(bank()) == 1
    assert "law-bank exists and is not empty: choose another directory, or add --replace." in capsys.readouterr().err
    assert weights.read_bytes() == before
    assert not (tmp_path / "law").exists()
    assert soup(bank("--replace")) == 0
    assert weights.read_bytes() != before


def test_a_step_of_fewer_rows_than_were_asked_for_is_recorded_and_said(command, tmp_path, capsys):
    assert soup(command("--batch", "100", "--accumulate", "3")) == 0
    record = read_directory(tmp_path / "law").provenance.training
    assert record["rows_a_step"] < 100
    said = f"Each step was of {record['rows_a_step']} sequences, which are all there are: 300 were asked for (batch 100"
    assert said in capsys.readouterr().err
    assert soup(command(out="few")) == 0
    assert read_directory(tmp_path / "few").provenance.training["rows_a_step"] == 2
    assert "sequences" not in capsys.readouterr().err


def test_an_adapter_that_learnt_nothing_is_announced(command, capsys):
    assert soup(command("--lr", "1e-30")) == 0
    assert "No step was better than the start, so that the adapter is as it began" in capsys.readouterr().err
    assert soup(command("--lr", "1e-2", out="learnt")) == 0
    assert "No step" not in capsys.readouterr().err


def test_what_is_trained_on_is_not_validated_on(command, tmp_path, capsys):
    texts = str(tmp_path / "texts.jsonl")
    assert soup(command("--valid", texts)) == 1
    assert f"--texts and --valid are the same file, {texts}: validate on other text." in capsys.readouterr().err
    assert not (tmp_path / "law").exists()
