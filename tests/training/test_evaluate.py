"""`soup evaluate` and the library function behind it, on directories that `soup train` or `Trained.write` made."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch

from registry.adapters import create, paper_config
from registry.adapters.weights import save_tensors
from registry.base_model import load_base
from registry.errors import Incompatible, InvalidParameter
from registry.formats import AdapterContents, read_directory, write_directory
from registry.spec import BaseEntry, PrefixConfig, UnionConfig
from tests.adaptersoup.cli.outcome import done, refused
from tests.texts_file import write_texts
from tests.tiny_models import build_tiny_base
from tests.training.conftest import TEXTS, VALID, state_hash, train_on
from tests.training.task_items import ITEMS, LABELLED, QUESTIONS, as_json
from training.evaluate import adapter_of, evaluate_task, task_of
from training.hyperparameters import Hyperparameters
from training.tasks import LANGUAGE_MODELLING, TASKS
from training.tasks.contract import with_head

pytestmark = pytest.mark.slow

RECIPE = Hyperparameters(steps=25, batch=8, block=56, learning_rate=1e-2, evaluations=2)


def trained(base, key, folder):
    task, items = TASKS[key], {**ITEMS, "language_modelling": TEXTS}[key]
    config = with_head(paper_config("pfeiffer", bottleneck=8), task.head(items))
    trained_adapter = train_on(base, config, items, items[:20], hyperparameters=RECIPE, task=task)
    return trained_adapter.write(folder, base, domain="law")


@pytest.fixture(scope="module")
def folders(base, tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    return {key: trained(base, key, root / key) for key in TASKS}


@pytest.fixture
def data(tmp_path):
    def write(key):
        path = tmp_path / f"{key}.jsonl"
        if key == "language_modelling":
            return write_texts(path, VALID)
        path.write_text("".join(json.dumps(as_json(key, item)) + "\n" for item in ITEMS[key][:12]))
        return path

    return write


SAYS = {
    "language_modelling": ["perplexity", "base perplexity", "difference standard error"],
    "classification": ["accuracy", "mcc", "macro f1"],
    "question_answering": ["exact match", "f1", "questions unanswerable"],
    "summarisation": ["rouge1", "rougeL", "loss"],
}


@pytest.mark.parametrize("key", TASKS)
def test_a_directory_is_evaluated_on_its_own_task(base, folders, data, tiny_base_dir, tmp_path, soup, key):
    command = ("evaluate", folders[key].path, "--data", data(key), "--base-folder", tiny_base_dir)
    evaluation = json.loads(done(soup(*command, "--json"))[0])
    assert (evaluation["object"], evaluation["task"]) == ("evaluation", TASKS[key].name)
    items = VALID if key == "language_modelling" else ITEMS[key][:12]
    base_hash = state_hash(base.model)
    assert evaluation["figures"] == pytest.approx(
        evaluate_task(base, adapter_of(folders[key], base), TASKS[key], items)
    )
    assert state_hash(base.model) == base_hash
    lines = done(soup(*command, "--plot", tmp_path / "figures.svg"))[0].splitlines()
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in SAYS[key])
    rates = [value for value in evaluation["figures"].values() if isinstance(value, float)]
    assert any(f">{rates[0]:{form}}<" in (tmp_path / "figures.svg").read_text() for form in (".2f", ".4g"))


def test_perplexity_is_that_of_each_text_by_itself_and_paired_with_the_base(base, folders):
    figures = evaluate_task(base, adapter_of(folders["language_modelling"], base), LANGUAGE_MODELLING, VALID)
    alone = evaluate_task(base, None, LANGUAGE_MODELLING, VALID)
    assert alone["perplexity"] == pytest.approx(figures["base_perplexity"])
    assert figures["perplexity"] < figures["base_perplexity"]
    assert figures["difference"] == pytest.approx(figures["nll"] - alone["nll"], rel=1e-6)
    assert figures["difference"] + 2 * figures["difference_standard_error"] < 0
    assert figures["difference_low"] < figures["difference"] < figures["difference_high"] < 0
    single = evaluate_task(base, adapter_of(folders["language_modelling"], base), LANGUAGE_MODELLING, VALID[:1])
    assert "difference_low" not in single, "one text has no interval"
    total = tokens = 0.0
    for text in VALID:
        ids = torch.tensor([base.tokenize(text)])
        with torch.no_grad():
            scores = torch.log_softmax(base.model(ids).logits[0, :-1], -1)
        total -= float(scores.gather(1, ids[0, 1:, None]).sum())
        tokens += ids.shape[1] - 1
    assert alone["nll"] == pytest.approx(total / tokens, rel=1e-5)
    assert alone["tokens"] == tokens


def test_texts_over_the_context_are_scored_in_windows(base):
    long = " ".join(VALID)
    figures = evaluate_task(base, None, LANGUAGE_MODELLING, [long], block=16)
    assert figures["tokens"] == len(base.tokenize(long, bos=False))
    assert math.isfinite(figures["perplexity"])


def test_what_a_prefix_takes_is_no_room_for_texts(base):
    prefix = create(PrefixConfig(length=40), base.shape, seed=0, init="linear")
    assert math.isfinite(evaluate_task(base, prefix, LANGUAGE_MODELLING, [" ".join(VALID)])["perplexity"])
    for block in (25, 1):
        with pytest.raises(InvalidParameter, match="not between 2 and 24"):
            evaluate_task(base, prefix, LANGUAGE_MODELLING, VALID, block=block)
    config = UnionConfig(members=(PrefixConfig(length=40), paper_config("parallel", bottleneck=2)))
    numbers = RECIPE.model_copy(update={"block": 32})
    with pytest.raises(InvalidParameter, match="context of 64, of which the prefix takes 40"):
        train_on(base, config, TEXTS, VALID, hyperparameters=numbers)


def test_questions_are_left_without_an_answer_by_what_was_trained_to(base, folders, tmp_path):
    none = [replace(item, answers=()) for item in QUESTIONS[::2]]
    config = with_head(paper_config("pfeiffer", bottleneck=2), TASKS["question_answering"].head(QUESTIONS))
    task, few = TASKS["question_answering"], RECIPE.model_copy(update={"steps": 1})
    trained_adapter = train_on(base, config, QUESTIONS + none, QUESTIONS[:20], hyperparameters=few, task=task)
    either = trained_adapter.write(tmp_path / "squad2", base, domain="law")
    for key in (None, "question_answering"):
        assert task_of(either, key).may_abstain
        assert not task_of(folders["question_answering"], key).may_abstain
    assert task_of(either, "language_modelling") is LANGUAGE_MODELLING


def test_an_adapter_of_unknown_making_models_language(base, tmp_path):
    adapter = create(paper_config("pfeiffer", bottleneck=2), base.shape, seed=0)
    folder = write_directory(
        tmp_path / "a", AdapterContents(config=adapter.config, domain="x", weights=save_tensors(adapter.state_dict()))
    )
    assert task_of(folder) is LANGUAGE_MODELLING
    evaluate_task(base, adapter_of(folder, base), task_of(folder), VALID)  # no fingerprint to hold it to


def test_another_base_than_recorded_is_refused(folders, tmp_path):
    """Of the same shape: only the fingerprint tells them apart."""
    other_base = load_base(BaseEntry(id="tiny", source=str(build_tiny_base(tmp_path, seed=1))))
    with pytest.raises(Incompatible, match="was made for the base model with fingerprint"):
        adapter_of(folders["classification"], other_base)


@pytest.mark.parametrize(
    ("key", "more", "code", "message"),
    [
        ("classification", ["--task", "language_modelling"], 1, "line 1"),
        ("classification", ["--task", "chess"], 2, "'chess' is not one of"),
        ("classification", ["--block", "65"], 1, "not between 2 and 64"),
        ("language_modelling", ["--base-kind", "encoder"], 1, "encoder"),
        ("language_modelling", ["--base", "x"], 2, "--base-folder"),
    ],
)
def test_soup_evaluate_refuses_in_one_sentence(folders, data, tiny_base_dir, soup, key, more, code, message):
    path = data("question_answering" if "language_modelling" in more else key)
    command = ("evaluate", folders[key].path, "--data", path, "--base-folder", tiny_base_dir)
    assert message in refused(soup(*command, *more), code)


def test_soup_evaluate_names_a_label_outside_the_set_by_its_line(folders, tiny_base_dir, tmp_path, soup):
    path = tmp_path / "data.jsonl"
    lines = [as_json("classification", item) for item in LABELLED[:3]] + [{"text": "x", "label": "neutral"}]
    path.write_text("\n\n".join(json.dumps(line) for line in lines))
    command = ("evaluate", folders["classification"].path, "--base-folder", tiny_base_dir, "--data")
    assert "a label outside the set ('bad', 'good'): line 7: 'neutral'" in refused(soup(*command, path))
    path.write_text("")
    assert "empty" in refused(soup(*command, path))
    refused(soup(*command, tmp_path / "no"))


def test_an_encoders_adapter_is_evaluated_from_its_directory(bases, tmp_path, data, soup):
    encoder = bases("roberta")
    folder = trained(encoder, "classification", tmp_path / "reviews")
    assert read_directory(folder.path).config.head.labels == ("bad", "good")
    command = ("evaluate", folder.path, "--data", data("classification"), "--base-folder", encoder.entry.source)
    out, _ = done(soup(*command, "--base-kind", "encoder", "--json"))
    assert json.loads(out)["figures"]["texts"] == 12
