"""Training adapters on a tiny frozen base: what changes, what does not, and what is refused."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from adaptersoup.cli.app import run as soup
from adaptersoup.cli.verbs.train import interrupts
from registry.adapters import attached, create, from_tensors, paper_config
from registry.adapters.weights import init_hash, save_tensors
from registry.errors import Cancelled, InvalidParameter
from registry.formats import read_directory
from registry.names import digest_of
from tests.training.conftest import TEXTS, VALID, state_hash, stop_after, train_on
from training.checkpoint import FILE
from training.data import pack
from training.hyperparameters import Hyperparameters
from training.methods.lora_targets import lora_for
from training.trainer import MAX_VALIDATIONS, Trained, loss_of, thinned

pytestmark = pytest.mark.slow

RECIPE = Hyperparameters(steps=12, batch=4, block=32, learning_rate=1e-2, evaluations=3)
STRUCTURES = ("bapna_firat", "houlsby", "pfeiffer", "parallel")


def train(base, structure="bapna_firat", **changes):
    values = {"hyperparameters": RECIPE, "init": "zero_up" if structure == "parallel" else "near_identity", **changes}
    return train_on(base, paper_config(structure, bottleneck=8), TEXTS, VALID, **values)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_training_helps_and_frozen_means_frozen(base, structure):
    before = state_hash(base.model)
    trained = train(base, structure)
    assert state_hash(base.model) == before
    assert not any(p.requires_grad or p.grad is not None for p in base.model.parameters())
    assert trained.record["valid_perplexity"] < trained.record["valid_perplexity_before"]
    adapter = from_tensors(trained.config, base.shape, trained.tensors)
    blocks = torch.from_numpy(pack(VALID, base.tokenize, block=32).rows)
    with attached(base.model, adapter), torch.no_grad():
        again = math.exp(loss_of(base)(blocks))
    assert again == pytest.approx(trained.record["valid_perplexity"], rel=1e-5)


def test_one_init_seed_gives_one_init_hash_whatever_is_trained(base):
    first, second = train(base), train(base, hyperparameters=RECIPE.model_copy(update={"data_seed": 9}))
    other = train(base, init_seed=1)
    fresh = create(first.config, base.shape, seed=0)
    assert first.init_hash == second.init_hash == init_hash(fresh.state_dict())
    assert other.init_hash != first.init_hash
    assert first.provenance.init_source == "trained_here"
    assert save_tensors(first.tensors) != save_tensors(second.tensors)


def test_the_same_seeds_give_the_same_bytes(base):
    assert save_tensors(train(base).tensors) == save_tensors(train(base).tensors)


def test_a_long_history_is_thinned_and_keeps_its_best_step():
    history = [(step, 5.0 - (step == 4321)) for step in range(10_001)]
    kept = thinned(history, best_step=4321)
    assert len(kept) <= MAX_VALIDATIONS + 2
    assert {0, 4321, 10_000} <= {step for step, _ in kept}
    assert thinned(history[:MAX_VALIDATIONS], best_step=3) == history[:MAX_VALIDATIONS]
    assert thinned([], best_step=0) == []


def test_the_record_is_json_and_says_how_it_was_made(base):
    record = json.loads(json.dumps(train(base).record, allow_nan=False))
    assert record["steps"] == 12
    assert record["texts"] == len(TEXTS)
    assert record["tokens_trained"] == 12 * 4 * 31
    assert [step for step, _ in record["valid_history"]] == [0, 4, 8, 12]
    assert [step for step, _ in record["train_history"]] == list(range(1, 13))
    assert record["train_history"][-1][1] < record["train_history"][0][1]
    assert record["base"] == {"fingerprint": base.shape.fingerprint, "dtype": "float32"}
    assert record["data"] == {"train": digest_of(TEXTS), "valid": digest_of(VALID)}
    tokens = sum(len(base.tokenize(text)) for text in TEXTS)
    assert record["tokens_available"] + record["tokens_left_out"] == tokens
    assert (record["data_seed"], record["schedule"], record["dtype"]) == (0, "linear", "float32")


@pytest.mark.parametrize("structure", ["houlsby", "bapna_firat"])
def test_bfloat16_trains_too_and_the_adapter_stays_float32(base, structure):
    before = state_hash(base.model)
    trained = train(base, structure, hyperparameters=RECIPE.model_copy(update={"dtype": "bfloat16"}))
    plain = train(base, structure)
    assert state_hash(base.model) == before
    assert {tensor.dtype for tensor in trained.tensors.values()} == {torch.float32}
    assert trained.record["valid_perplexity"] < trained.record["valid_perplexity_before"]
    assert trained.record["valid_perplexity"] == pytest.approx(plain.record["valid_perplexity"], rel=0.05)
    assert trained.record["valid_perplexity_before"] != plain.record["valid_perplexity_before"]


def test_accumulation_is_the_large_batch_on_an_adapter_too(base):
    large = train(base, hyperparameters=RECIPE.model_copy(update={"batch": 8}))
    small = train(base, hyperparameters=RECIPE.model_copy(update={"batch": 2, "accumulate": 4}))
    assert small.record["tokens_trained"] == large.record["tokens_trained"]
    assert small.record["valid_perplexity"] == pytest.approx(large.record["valid_perplexity"], rel=1e-3)


def test_backward_stops_at_the_first_adapter(base):
    """What reaches the first adapter asks for no gradient, so nothing below it is kept for a backward pass."""
    adapter = create(paper_config("bapna_firat", bottleneck=4), base.shape, seed=0)
    needs = {}
    layers = base.model.transformer.h
    handles = [
        layer.mlp.register_forward_hook(lambda _m, _a, out, i=i: needs.update({i: out.requires_grad}))
        for i, layer in enumerate(layers)
    ]
    with attached(base.model, adapter):
        loss_of(base)(torch.randint(0, 300, (2, 16)))
    for handle in handles:
        handle.remove()
    assert needs == {0: False, 1: True}


def test_the_hooks_are_gone_after_success_and_after_failure(base):
    ids = torch.arange(20)[None]
    with torch.no_grad():
        plain = base.model(ids).logits
    train(base)
    with pytest.raises(Cancelled):
        train(base, should_stop=lambda: True)
    with torch.no_grad():
        assert torch.equal(base.model(ids).logits, plain)


def test_divergence_is_refused_with_step_and_rate(base):
    wild = RECIPE.model_copy(update={"learning_rate": 1e30, "steps": 50})
    with pytest.raises(InvalidParameter, match=r"diverged at step \d+ of 50.*learning rate"):
        train(base, hyperparameters=wild)


def test_a_block_beyond_the_context_is_refused(base):
    with pytest.raises(InvalidParameter, match="65 tokens does not fit the base model's context of 64"):
        train(base, hyperparameters=RECIPE.model_copy(update={"block": 65}))


@pytest.mark.parametrize(("texts", "valid", "said"), [([], VALID, "training data"), (TEXTS, VALID[:3], "validation")])
def test_too_little_text_is_refused(base, texts, valid, said):
    with pytest.raises(InvalidParameter, match=said):
        train_on(base, paper_config("pfeiffer", bottleneck=4), texts, valid, hyperparameters=RECIPE)


# --- soup train ----------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    for name, texts in (("train", TEXTS), ("valid", VALID)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return ["--texts", str(tmp_path / "train.jsonl"), "--valid", str(tmp_path / "valid.jsonl")]


def command(files, tiny_base_dir, out, *more):
    return ["train", *files, "--base-folder", str(tiny_base_dir), "--out", str(out), "--steps", "4", "--batch", "2",
            "--block", "32", "--bottleneck", "4", *more]  # fmt: skip


def test_soup_train_writes_a_directory_that_can_be_pushed(files, tiny_base_dir, tmp_path, base, capsys):
    out = tmp_path / "adapters" / "law"
    picture = tmp_path / "law.svg"
    assert soup(command(files, tiny_base_dir, out, "--sample", "30", "--lr", "0.01", "--plot", str(picture))) == 0
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


def test_soup_train_keeps_what_is_there_unless_told(files, tiny_base_dir, tmp_path, capsys):
    out = tmp_path / "law"
    assert soup(command(files, tiny_base_dir, out, "--sample", "0")) == 0
    assert read_directory(out).sample is None
    before = (out / "adapter_model.safetensors").read_bytes()
    assert soup(command(files, tiny_base_dir, out, "--init-seed", "3")) == 1
    assert "--replace" in capsys.readouterr().err
    assert (out / "adapter_model.safetensors").read_bytes() == before
    assert soup(command(files, tiny_base_dir, out, "--init-seed", "3", "--replace")) == 0
    assert (out / "adapter_model.safetensors").read_bytes() != before


def test_soup_train_never_replaces_a_folder_of_texts(files, tiny_base_dir, tmp_path, capsys):
    kept = {path.name for path in tmp_path.iterdir()}
    assert soup(command(files, tiny_base_dir, tmp_path, "--replace")) == 1
    assert "never replaced" in capsys.readouterr().err
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_soup_train_answers_in_json(files, tiny_base_dir, tmp_path, capsys):
    out = tmp_path / "law"
    assert soup(command(files, tiny_base_dir, out, "--json")) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["object"], said["path"]) == ("folder", str(out))
    assert said["init_hash"] == read_directory(out).provenance.init_hash
    assert said["training"]["steps"] == 4


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--alpha", "0"], 1, "--alpha"),
        (["--targets", "q_proj"], 3, "no linear module 'q_proj'; it has c_attn, c_fc, c_proj"),
        (["--structure", "houlsby"], 2, "--structure: not an option of --method lora"),
        (["--checkpoint", "out/state"], 1, "cannot be in"),
        (["--checkpoint-steps", "2"], 2, "only with --checkpoint"),
        (["--checkpoint-seconds", "2"], 2, "only with --checkpoint"),
    ],
)
def test_soup_train_refuses_what_a_lora_cannot_be(
    files, tiny_base_dir, tmp_path, capsys, more, code, said, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert soup(lora(files, tiny_base_dir, tmp_path / "out", *more)) == code
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_soup_train_without_its_files_is_a_question_of_usage(capsys):
    assert soup(["train", "--texts", "a.jsonl"]) == 2
    assert "Missing --valid, --out" in capsys.readouterr().err


def test_soup_train_on_an_allowlist_names_the_base(files, tiny_base_dir, tmp_path):
    bases = tmp_path / "bases.toml"
    bases.write_text(f'[bases.tiny]\nsource = "{tiny_base_dir}"\n[bases.other]\nsource = "{tiny_base_dir}"\n')
    arguments = command(files, tiny_base_dir, tmp_path / "a")
    at = arguments.index("--base-folder")
    arguments[at : at + 2] = ["--bases", str(bases), "--base", "tiny"]
    assert soup(arguments) == 0
    assert read_directory(tmp_path / "a").base_model == "tiny"
    arguments[at + 3] = "none"
    assert soup([*arguments, "--replace"]) == 1
    arguments[at + 3] = "tiny"
    assert soup([*arguments, "--replace", "--base-kind", "encoder"]) == 2


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        (["--lr", "0"], 1, "--lr: "),
        (["--block", "999"], 1, "context of 64"),
        (["--base", "x"], 2, "--base-folder"),
        (["--structure", "lora"], 2, "structure"),
        (["--lr", "1e30", "--steps", "60"], 1, "diverged"),
        (["--warmup", "2"], 1, "warmup"),
        (["--rank", "4", "--alpha", "8"], 2, "--rank, --alpha: not an option of --method bottleneck"),
        (["--method", "lora"], 2, "--bottleneck: not an option of --method lora"),
        (["--bottleneck", "70000"], 1, "--bottleneck"),
    ],
)
def test_soup_train_refuses_in_one_sentence_and_writes_nothing(
    files, tiny_base_dir, tmp_path, capsys, more, code, said
):
    out = tmp_path / "out"
    assert soup(command(files, tiny_base_dir, out, *more)) == code
    assert said in capsys.readouterr().err
    assert not out.exists()


def lora(files, tiny_base_dir, out, *more):
    arguments = command(files, tiny_base_dir, out, "--method", "lora", "--lr", "0.02", *more)
    at = arguments.index("--bottleneck")
    return arguments[:at] + arguments[at + 2 :]


def test_soup_train_makes_a_lora_that_peft_reads(files, tiny_base_dir, tmp_path, base):
    out = tmp_path / "law"
    assert soup(lora(files, tiny_base_dir, out, "--rank", "2", "--targets", "c_attn,mlp.*")) == 0
    folder = read_directory(out)
    assert folder.config == lora_for(base.shape, rank=2, alpha=4, targets=["c_attn", "c_fc", "mlp.c_proj"])
    assert folder.base_fingerprint == base.shape.fingerprint
    assert json.loads((out / "adapter_config.json").read_text())["peft_type"] == "LORA"


def test_soup_train_goes_on_where_it_was_stopped(files, tiny_base_dir, tmp_path, monkeypatch, capsys):
    def arguments(name: str, *more: str) -> list[str]:
        return lora(files, tiny_base_dir, tmp_path / name, "--accumulate", "2", "--schedule", "cosine", *more)

    state = tmp_path / "state"
    assert soup(arguments("whole")) == 0
    with monkeypatch.context() as patch:
        patch.setattr(interrupts, "stoppable", stop_after(2))
        assert soup(arguments("law", "--checkpoint", str(state))) == 1
    assert "step 3 of 4" in (said := capsys.readouterr().err)
    assert "Run the same command again to go on." in said
    assert soup(arguments("law", "--checkpoint", str(state), "--seed", "1")) == 1
    assert "data_seed (0 there, 1 here)" in capsys.readouterr().err
    assert not (tmp_path / "law").exists()
    assert soup(arguments("law", "--checkpoint", str(state))) == 0
    assert "after step 2" in capsys.readouterr().err
    assert not state.exists()
    for name in ("adapter_model.safetensors", "soup.json"):
        assert (tmp_path / "law" / name).read_bytes().replace(b'"law"', b'"whole"') == (
            tmp_path / "whole" / name
        ).read_bytes()


def test_what_is_longer_than_a_block_is_counted_and_told(tiny_base_dir, tmp_path, capsys):
    lines = [json.dumps({"text": f"court {i} held " * (1 + i % 2 * 20), "label": i % 2}) for i in range(40)]
    paths = [tmp_path / "data.jsonl", tmp_path / "valid.jsonl"]
    for path in paths:
        path.write_text("\n".join(lines))
    files = ["--data", str(paths[0]), "--valid", str(paths[1])]
    arguments = ["train", *files, "--base-folder", str(tiny_base_dir), "--out", str(tmp_path / "out"), "--steps", "1"]
    assert soup([*arguments, "--block", "40", "--task", "classification"]) == 0
    said = capsys.readouterr().err
    assert "Longer than a block of 40 tokens: 20 texts cut, 20 texts cut to validate on." in said
    assert soup([*arguments, "--block", "2", "--task", "classification", "--replace"]) == 1
    assert "A block of 2 tokens has no room for a text: 2 stand around it." in capsys.readouterr().err


def test_a_training_without_a_checkpoint_says_that_nothing_is_kept(files, tiny_base_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(interrupts, "stoppable", stop_after(1))
    assert soup(command(files, tiny_base_dir, tmp_path / "law")) == 1
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
def bank_command(tiny_base_dir, tmp_path):
    for name, texts in (("texts", TEXTS), ("valid", VALID)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def arguments(*more, out="law"):
        return ["train", "--base-folder", str(tiny_base_dir), "--texts", str(tmp_path / "texts.jsonl"), "--valid",
                str(tmp_path / "valid.jsonl"), "--out", str(tmp_path / out), "--adamix", "2", "--bottleneck", "4",
                "--steps", "4", "--batch", "2", "--block", "32", *more]  # fmt: skip

    return arguments


def test_killed_between_a_bank_and_its_merge_the_same_command_goes_on(bank_command, tmp_path, capsys, monkeypatch):
    assert soup(bank_command(out="whole")) == 0
    saved = ("--checkpoint", str(tmp_path / "state"))
    with monkeypatch.context() as patch:
        patch.setattr(Trained, "merged", killed)
        with pytest.raises(Killed):
            soup(bank_command(*saved))
    assert (tmp_path / "law-bank").is_dir()
    assert not (tmp_path / "law").exists()
    assert (tmp_path / "state" / FILE).is_file()
    capsys.readouterr()
    assert soup(bank_command(*saved)) == 0
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


def test_what_is_in_the_place_of_a_bank_is_replaced_if_asked_and_only_then(bank_command, tmp_path, capsys):
    assert soup(bank_command("--init-seed", "3")) == 0
    shutil.rmtree(tmp_path / "law")
    weights = tmp_path / "law-bank" / "adapter_model.safetensors"
    before = weights.read_bytes()
    capsys.readouterr()
    assert soup(bank_command()) == 1
    assert "law-bank is there, and of another training: init_seed (3 there, 0 here)." in capsys.readouterr().err
    shutil.rmtree(tmp_path / "law-bank")
    assert soup(bank_command(out="other")) == 0
    (tmp_path / "other").rename(tmp_path / "law-bank")
    before = weights.read_bytes()
    assert soup(bank_command()) == 1
    assert "law-bank exists and is not empty: choose another directory, or add --replace." in capsys.readouterr().err
    assert weights.read_bytes() == before
    assert not (tmp_path / "law").exists()
    assert soup(bank_command("--replace")) == 0
    assert weights.read_bytes() != before


def test_a_step_of_fewer_rows_than_were_asked_for_is_recorded_and_said(base, bank_command, tmp_path, capsys):
    assert train(base).record["rows_a_step"] == 4
    assert soup(bank_command("--batch", "100", "--accumulate", "3")) == 0
    record = read_directory(tmp_path / "law").provenance.training
    assert record["rows_a_step"] < 100
    said = f"Each step was of {record['rows_a_step']} sequences, which are all there are: 300 were asked for (batch 100"
    assert said in capsys.readouterr().err
    assert soup(bank_command(out="few")) == 0
    assert "sequences" not in capsys.readouterr().err


def test_an_adapter_that_learnt_nothing_is_announced(bank_command, capsys):
    assert soup(bank_command("--lr", "1e-30")) == 0
    assert "No step was better than the start, so that the adapter is as it began" in capsys.readouterr().err
    assert soup(bank_command("--lr", "1e-2", out="learnt")) == 0
    assert "No step" not in capsys.readouterr().err


def test_what_is_trained_on_is_not_validated_on(bank_command, tmp_path, capsys):
    texts = str(tmp_path / "texts.jsonl")
    assert soup(bank_command("--valid", texts)) == 1
    assert f"--texts and --valid are one file, {texts}: validate on other text." in capsys.readouterr().err
    assert not (tmp_path / "law").exists()
