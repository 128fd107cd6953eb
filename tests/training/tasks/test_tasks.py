"""Every task on a tiny causal model and a tiny encoder: it is learnt, recorded, resumed, and what it cannot be is
refused; and classification in detail."""

from __future__ import annotations

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as peers
from tokenizers.processors import RobertaProcessing

from adaptersoup.cli.verbs.train.record import validation
from registry.adapters import create, from_tensors, paper_config
from registry.errors import Incompatible, InvalidParameter
from registry.names import digest_of
from registry.spec import FusionConfig, HeadConfig, PrefixConfig, UnionConfig
from tests.training.conftest import TEXTS, state_hash, train_on
from tests.training.task_items import ITEMS, LABELLED, as_json
from training.evaluate import evaluate_task
from training.hyperparameters import Hyperparameters
from training.methods.lora_targets import lora_for
from training.tasks import LANGUAGE_MODELLING, TASKS
from training.tasks.classification import Labelled, agreement
from training.tasks.contract import with_head
from training.tasks.encoding import Frame, batch_of, frame, rows_of, states, tokens_of
from training.tasks.language import passage_scores

pytestmark = pytest.mark.slow

CLASSIFICATION = TASKS["classification"]
RECIPE = Hyperparameters(steps=60, batch=8, block=60, learning_rate=1e-2, evaluations=3)
HEADED = ("classification", "question_answering")


def train(base, key, structure="pfeiffer", **changes):
    task, items = TASKS[key], ITEMS[key]
    config = changes.pop("config", None) or with_head(paper_config(structure, bottleneck=8), task.head(items))
    return train_on(base, config, items[:40], items[40:], **{"hyperparameters": RECIPE, "task": task, **changes})


def measured(base, key, trained):
    adapter = from_tensors(trained.config, base.shape, trained.tensors)
    return evaluate_task(base, adapter, TASKS[key], ITEMS[key][40:], block=60)


@pytest.mark.parametrize("key", ITEMS)
def test_a_task_is_learnt_and_frozen_means_frozen(base, key):
    base_hash = state_hash(base.model)
    trained = train(base, key)
    assert state_hash(base.model) == base_hash
    assert not any(p.requires_grad or p.grad is not None for p in base.model.parameters())
    record = json.loads(json.dumps(trained.record, allow_nan=False))
    assert record["valid_loss"] < 0.8 * record["valid_loss_before"]
    assert (record["task"], record["examples_trained"]) == (TASKS[key].name, 60 * 8)
    figures = measured(base, key, trained)
    if "loss" in figures:
        assert figures["loss"] == pytest.approx(record["valid_loss"], rel=1e-4)
    score = {"classification": "accuracy", "question_answering": "exact_match", "summarisation": None}[key]
    assert score is None or figures[score] == 1.0


def test_losses_stand_in_the_record_of_a_training_that_starts_beyond_any_perplexity(base):
    model = copy.deepcopy(base.model)
    model.get_output_embeddings().weight.data *= 1e4
    trained = train_on(
        dataclasses.replace(base, model=model),
        paper_config("pfeiffer", bottleneck=2),
        TEXTS[:30],
        TEXTS[30:],
        hyperparameters=RECIPE.model_copy(update={"steps": 1, "block": 32}),
    )
    figure, initial, final = validation(json.loads(json.dumps(trained.record, allow_nan=False)))
    assert (figure, initial > 709) == ("loss", True)
    assert final <= initial


@pytest.mark.parametrize("key", HEADED)
def test_an_encoder_learns_too_its_norms_and_head_included(encoder, key):
    base_hash = state_hash(encoder.model)
    trained = train(encoder, key, "houlsby", hyperparameters=RECIPE.model_copy(update={"learning_rate": 2e-2}))
    assert state_hash(encoder.model) == base_hash
    assert trained.record["valid_loss"] < trained.record["valid_loss_before"]
    fresh = train(
        encoder, key, "houlsby", hyperparameters=RECIPE.model_copy(update={"steps": 1, "learning_rate": 1e-30})
    )
    moved = [name for name, tensor in trained.tensors.items() if not torch.equal(tensor, fresh.tensors[name])]
    assert {"head.out.weight", "head.out.bias"} <= set(moved)
    assert any(".base_norm." in name for name in moved)
    figures = measured(encoder, key, trained)
    assert all(0 <= figures[name] <= 1 for name in ("accuracy", "macro_f1", "exact_match", "f1") if name in figures)


def test_a_real_encoder_classifies_after_a_few_steps(minilm):
    numbers = Hyperparameters(steps=12, batch=8, block=24, learning_rate=3e-3, evaluations=2)
    trained = train(minilm, "classification", hyperparameters=numbers)
    assert measured(minilm, "classification", trained)["accuracy"] == 1.0


@pytest.mark.parametrize("key", TASKS)
def test_parts_of_a_batch_are_the_batch(base, key):
    """Rows count alike, whatever their length: a mean over parts is the mean over all."""
    task, items = TASKS[key], {**ITEMS, "language_modelling": TEXTS}[key]
    head = task.head(items)
    rows = torch.from_numpy(task.encode(base, items[:20], block=60, at_least=1, head=head).rows[:5])
    adapter = None
    if head is not None:
        trained = train(base, key, hyperparameters=RECIPE.model_copy(update={"steps": 2}))
        adapter = from_tensors(trained.config, base.shape, trained.tensors)
    with torch.no_grad():
        whole = task.loss(base, adapter, rows)
        losses = [task.loss(base, adapter, chunk) * len(chunk) / len(rows) for chunk in (rows[:3], rows[3:])]
        scored = task.scored(base, adapter, rows)
    assert float(sum(losses)) == pytest.approx(float(whole), rel=1e-5)
    assert float(scored.weights.sum()) == pytest.approx(1)
    assert float(scored.loss()) == pytest.approx(float(whole), rel=1e-5)


@pytest.mark.parametrize("key", ITEMS)
def test_items_are_read_as_they_are_written(key):
    lines = [(number, as_json(key, item)) for number, item in enumerate(ITEMS[key], start=1)]
    task = TASKS[key]
    read = task.items(lines, where="file")
    assert read == ITEMS[key]
    assert digest_of(task.identity(read)) == digest_of(task.identity(ITEMS[key]))
    assert digest_of(task.identity(read)) != digest_of(task.identity(read[::-1]))
    assert all(task.text_of(item).strip() for item in read)


@pytest.mark.parametrize("key", ITEMS)
def test_what_is_no_item_is_refused_with_its_line(key):
    good = as_json(key, ITEMS[key][0])
    for bad in (
        [],
        "text",
        None,
        {},
        *({**good, name: 7.5} for name in good),
        {**good, next(iter(good)): " "},
    ):
        with pytest.raises(InvalidParameter, match=r"data\.jsonl, line 2, "):
            TASKS[key].items([(1, good), (2, bad)], where="data.jsonl")


@pytest.mark.parametrize("key", TASKS)
def test_too_little_data_is_refused_for_training_and_validation(base, key):
    task, items = TASKS[key], {**ITEMS, "language_modelling": TEXTS}[key]
    config = with_head(paper_config("pfeiffer", bottleneck=2), task.head(items))
    for train, valid, message in (
        (items[:19], items[:9], "training data holds 19"),
        (items, items[:4], "validation data"),
        ([], items[:9], "training data holds 0"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            train_on(base, config, train, valid, hyperparameters=RECIPE, task=task)


@pytest.mark.parametrize("key", ["language_modelling", "summarisation"])
def test_what_writes_needs_a_causal_model(encoder, key):
    items = {**ITEMS, "language_modelling": TEXTS}[key]
    with pytest.raises(Incompatible, match="is for causal base models, and 'tiny' is an encoder"):
        train_on(encoder, paper_config("pfeiffer"), items, items, hyperparameters=RECIPE, task=TASKS[key])
    with pytest.raises(Incompatible, match="is for causal base models"):
        evaluate_task(encoder, None, TASKS[key], items)


def test_an_adapter_without_the_tasks_head_is_refused(base):
    answers = with_head(paper_config("pfeiffer", bottleneck=2), TASKS["question_answering"].head([]))
    with pytest.raises(Incompatible, match="not an adapter with a head for question answering"):
        evaluate_task(base, create(answers, base.shape, seed=0), CLASSIFICATION, LABELLED)
    with pytest.raises(Incompatible, match="not the base model alone"):
        evaluate_task(base, None, CLASSIFICATION, LABELLED)


def test_a_head_is_put_beside_one_adapter_or_several_once():
    head = CLASSIFICATION.head(LABELLED)
    plain, prefix = paper_config("pfeiffer"), PrefixConfig(length=3)
    assert with_head(plain, None) == plain
    assert with_head(head, head) == head
    assert with_head(plain, head) == UnionConfig(members=(plain, head))
    assert with_head(UnionConfig(members=(plain, prefix)), head) == UnionConfig(members=(plain, prefix, head))
    second_head = HeadConfig(task="classification", labels=("x", "y"))
    for config in (with_head(plain, head), head):
        with pytest.raises(Incompatible, match="cannot be put beside"):
            with_head(config, second_head)
    with pytest.raises(Incompatible, match="take a bottleneck, a LoRA"):
        with_head(FusionConfig(member=plain, members=2), head)


@pytest.mark.parametrize(
    ("beside", "labels"),
    [
        pytest.param(PrefixConfig(length=3), ("bad", "good"), id="prefix"),
        pytest.param(
            UnionConfig(members=(PrefixConfig(length=2), paper_config("parallel", bottleneck=8))),
            ("bad", "good"),
            id="mam",
        ),
        pytest.param("lora", ("good", "neutral", "bad"), id="lora and a label that the data do not have"),
    ],
)
def test_a_head_beside_any_structure_learns(base, beside, labels):
    beside = lora_for(base.shape, rank=2, alpha=4) if beside == "lora" else beside
    trained = train(base, "classification", config=with_head(beside, HeadConfig(task="classification", labels=labels)))
    assert trained.config.head.labels == labels
    assert trained.record["valid_loss"] < 0.5 * trained.record["valid_loss_before"]
    assert measured(base, "classification", trained)["accuracy"] == 1.0


def test_a_head_alone_is_an_adapter(base):
    trained = train(base, "classification", config=CLASSIFICATION.head(LABELLED))
    assert set(trained.tensors) == {"out.weight", "out.bias"}
    assert trained.record["valid_loss"] < trained.record["valid_loss_before"]


# --- classification -----------------------------------------------------------------------------------


def test_the_label_map_is_of_the_data_and_in_an_order_of_its_own():
    def labels(*names):
        return CLASSIFICATION.head([Labelled("x", label) for label in names]).labels

    assert labels("b", "a", "b") == ("a", "b")
    assert labels("10", "9", "-1", "x") == ("-1", "9", "10", "x")
    for bad, message in (
        (["a", "a"], "has 1 labels"),
        ([], "has 0 labels"),
        (["a", "\0"], "character NUL"),
        ([f"{n:0200}" for n in range(400)], "80000 characters in all"),
    ):
        with pytest.raises(InvalidParameter, match=message):
            labels(*bad)


def test_labels_are_words_numbers_and_truths():
    lines = [(1, {"text": "x", "label": label}) for label in ("a", 3, True, False)]
    assert [item.label for item in CLASSIFICATION.items(lines, where="f")] == ["a", "3", "true", "false"]


def test_a_label_outside_the_set_is_refused_with_every_line(base):
    wrong = [Labelled("x y", "neutral", line=7), *LABELLED, Labelled("z", "other", line=99), Labelled("z", "none")]
    with pytest.raises(
        InvalidParameter, match=r"label outside the set \('bad', 'good'\): line 7: 'neutral' and 2 more"
    ) as caught:
        train_on(
            base,
            with_head(paper_config("pfeiffer"), CLASSIFICATION.head(LABELLED)),
            LABELLED,
            wrong,
            hyperparameters=RECIPE,
            task=CLASSIFICATION,
        )
    assert [problem.split(", ")[1] for problem in caught.value.problems] == [
        "line 7: 'neutral'.",
        "line 99: 'other'.",
        "item 63: 'none'.",
    ]


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40))
def test_figures_are_those_of_scikit_learn(pairs):
    truth, guesses = (np.array(column) for column in zip(*pairs, strict=True))
    figures = agreement(truth, guesses, labels=4)
    expected = {
        "accuracy": peers.accuracy_score(truth, guesses),
        "mcc": peers.matthews_corrcoef(truth, guesses),
        "macro_f1": peers.f1_score(truth, guesses, average="macro", zero_division=0),
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("pair", [False, True])
def test_what_stands_around_texts_is_what_the_tokenizer_says(encoder, pair):
    """Of a tokenizer that says nothing, CLS a SEP b SEP; with a post-processor, its own: RoBERTa's has two between."""
    cls, sep = encoder.bos_id, encoder.eos_id
    assert frame(encoder, pair=pair) == Frame((cls,), (sep,) if pair else (), (sep,))
    tokenizer = copy.deepcopy(encoder.tokenizer)
    tokenizer.backend_tokenizer.post_processor = RobertaProcessing(("</s>", 7), ("<s>", 5), trim_offsets=False)
    assert frame(dataclasses.replace(encoder, tokenizer=tokenizer), pair=pair) == Frame(
        (5,), (7, 7) if pair else (), (7,)
    )


def test_text_that_begins_with_the_bos_is_trained_on_with_one(base):
    """Blocks of texts, their scores, and what stands around a text that is classified."""
    prefixed = ["<|endoftext|>" + text for text in TEXTS]
    blocks = [LANGUAGE_MODELLING.encode(base, texts, block=32).rows.tolist() for texts in (TEXTS, prefixed)]
    assert blocks[0] == blocks[1]
    scores = [passage_scores(base, texts[:3], block=32) for texts in (TEXTS, prefixed)]
    assert [(score.nll, score.tokens) for score in scores[0]] == [(score.nll, score.tokens) for score in scores[1]]
    around = frame(base, pair=True)
    first, second = tokens_of(base, "The fox").ids, tokens_of(base, "jumps").ids
    assert around.wrap([0, *first], second) == around.wrap(first, second)


def test_a_token_without_an_embedding_is_refused(base):
    tokenizer = copy.deepcopy(base.tokenizer)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    with pytest.raises(InvalidParameter, match="special token '<image>', for which the base model has no embedding"):
        tokens_of(dataclasses.replace(base, tokenizer=tokenizer), "The <image> fox")


def test_a_pass_holds_as_many_tokens_as_the_batch_has_longest_windows(base, monkeypatch):
    passes = []
    read = base.model.base_model.forward
    monkeypatch.setattr(
        base.model.base_model, "forward", lambda **inputs: passes.append(inputs["input_ids"].numel()) or read(**inputs)
    )
    passage_scores(base, TEXTS, block=base.shape.context, batch=2)
    assert max(passes) <= 2 * max(len(base.tokenize(text)) for text in TEXTS)


@pytest.mark.parametrize("pair", [None, "and a second text"])
def test_an_encoder_gets_what_its_tokenizer_makes(minilm, pair):
    first, peer = "A first, rather longer text.", minilm.tokenizer
    ids, second_at = frame(minilm, pair=pair is not None).wrap(
        tokens_of(minilm, first).ids, tokens_of(minilm, pair).ids if pair else ()
    )
    expected = peer(first, pair)
    assert ids == expected["input_ids"]
    if pair:
        assert expected["token_type_ids"] == [0] * second_at + [1] * (len(ids) - second_at)


def test_a_pair_is_told_apart_and_padding_changes_nothing(minilm):
    items = [Labelled("short", "a", "one"), Labelled("a longer text than that", "b", "and another second")]
    data = CLASSIFICATION.encode(minilm, items, block=32, at_least=1)
    peer = minilm.tokenizer([i.text for i in items], [i.pair for i in items], padding=True, return_tensors="pt")
    batch = batch_of(minilm, torch.from_numpy(data.rows), leads=2)
    with torch.no_grad():
        ours = states(minilm, batch, second_at=batch.leads[:, 1])
        theirs = minilm.model(**peer).last_hidden_state
        alone = states(minilm, batch)
    mask = batch.mask.bool()
    torch.testing.assert_close(ours[mask], theirs[mask], atol=1e-5, rtol=1e-4)
    assert not torch.allclose(alone[mask], theirs[mask], atol=1e-2)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(6, 40))
def test_of_a_pair_the_longer_is_cut_and_all_room_is_used(first, second, room):
    from training.tasks.classification import _fitting_lengths

    lengths = _fitting_lengths(first, second, room)
    assert lengths[0] <= first
    assert lengths[1] <= second
    assert sum(lengths) == min(first + second, room)
    assert lengths[0] == first or lengths[0] + 1 >= lengths[1]
    assert lengths[1] == second or lengths[1] + 1 >= lengths[0]


def test_texts_beyond_the_block_are_cut_and_counted(base):
    items = [Labelled("one two three four five six seven eight", "a"), Labelled("one", "b")]
    data = CLASSIFICATION.encode(base, items, block=8, at_least=1)
    assert data.counts["texts_cut"] == 1
    assert data.rows.shape[1] == 2 + 8
    with pytest.raises(InvalidParameter, match="no room"):
        CLASSIFICATION.encode(base, items, block=2, at_least=1)


def test_one_long_example_does_not_make_many_short_ones_fill_the_memory() -> None:
    examples = [([0], [1])] * 300_000 + [([0], list(range(600)))]
    with pytest.raises(InvalidParameter, match=r"300001 examples of up to 601 tokens"):
        rows_of(examples)


def test_validation_texts_are_named_apart_from_training_texts(base):
    record = train(base, "classification", hyperparameters=RECIPE.model_copy(update={"steps": 1})).record
    assert (record["texts"], record["valid_texts"]) == (40, 20)
    assert record["data"] == {
        split: digest_of(CLASSIFICATION.identity(items))
        for split, items in (("train", LABELLED[:40]), ("valid", LABELLED[40:]))
    }
