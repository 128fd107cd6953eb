"""The demo's figures: scores that survive an interruption, and a table whose averages are what they say."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from demo import picture, strategies, table
from demo import run as demo_run
from demo.job import NOVEL_SAMPLE, Job
from demo.scores import Score, Scores
from demo.strategies import EVERY
from demo.table import Entry, Row, Table
from demo.talk import Talk
from registry.spec import BaseEntry, SampleSource
from tests.texts_file import write_texts


def answer(*nll: float) -> dict[str, Any]:
    return {"texts": [{"nll": value, "tokens": 10, "bytes": 40, "windows": 1} for value in nll]}


def score(*nll: float) -> Score:
    return Score(nll=nll, tokens=(10,) * len(nll), bytes=40 * len(nll))


# --- scores ----------------------------------------------------------------------------------------------


def test_a_score_is_asked_for_once_even_by_the_next_run(tmp_path):
    scores = Scores(tmp_path / "scores")
    with pytest.raises(ConnectionError):
        scores.get("sha256:a", ["x"], Mock(side_effect=ConnectionError))  # of which nothing is kept
    for digest, text, nll in (("sha256:a", "x", 1.0), ("sha256:b", "x", 2.0), ("sha256:a", "y", 3.0)):
        assert scores.get(digest, [text], lambda nll=nll: answer(nll)) == score(nll)
    reopened = Scores(tmp_path / "scores")
    for store in (scores, reopened):
        assert store.get("sha256:a", ["x"], lambda: pytest.fail("asked again")) == score(1.0)
    assert reopened.get("sha256:c", ["x"], lambda: answer(4.0)) == score(4.0)
    assert reopened.reused == 1


def test_a_score_knows_its_figures():
    passages_score = Score(nll=(20.0, 40.0), tokens=(10, 20), bytes=120)
    assert passages_score.perplexity == pytest.approx(math.e**2)
    assert passages_score.bits_per_byte == pytest.approx(0.5 / math.log(2))
    against = passages_score.against(Score(nll=(21.0, 42.0), tokens=(10, 20), bytes=120))
    assert (against.difference, against.standard_error) == (pytest.approx(-0.1), pytest.approx(0.0, abs=1e-12))


# --- table -----------------------------------------------------------------------------------------------


@pytest.fixture
def small() -> Table:
    base = Row("base model", {"a": Entry(score(20, 20, 20), "base/x"), "b": Entry(score(30, 30, 30), "base/x")})
    singles = {
        "a": {"one": score(19, 19, 19), "two": score(18, 22, 21)},
        "b": {"one": score(31, 31, 31), "two": score(28, 29, 32)},
    }
    service = Row(
        "the service, verified",
        {
            "a": Entry(score(19, 19, 19), "demo/one@1", description="one"),
            "b": Entry(score(30, 30, 30), "base/x", description="it does not help", abstained=True),
        },
    )
    return Table([base, table.oracle(singles, {"one": "demo/one@1", "two": "demo/two@1"}), service], singles)


def test_the_text_has_every_row_what_abstained_and_who_beats_the_base(small):
    for width in (60, 200):
        text = table.text(small, width=width)
        assert "the base model (it does not help)" in " ".join(text.split())
        for line in (
            " -9.5 ± 0.0 %",
            "arithmetic  geometric  bits/byte  to the base",
            "a\n",
            "  1 of 2 adapters beat the base (1 by two standard errors)",  # `one` always by as much
            "  1 of 2 adapters beat the base (0 by two standard errors)",  # `two`, but with a large spread
        ):
            assert line in text
    assert table.text(small, width=200).count("\n  the service, verified") == 2


def test_figures_and_rows_are_json_and_agree(small):
    figures = json.loads(json.dumps(table.figures(small), allow_nan=False))
    a, b = math.exp(2.0), math.exp(3.0)
    assert figures["perplexity_geometric_base_model"]["value"] == pytest.approx(math.sqrt(a * b), rel=1e-5)
    assert figures["perplexity_arithmetic_base_model"]["value"] == pytest.approx((a + b) / 2, rel=1e-5)
    counts = ("adapters_beating_base", "adapters_beating_base_by_two_se", "adapters_times_domains")
    assert [figures[name]["value"] for name in counts] == [2, 1, 4]
    rows = json.loads(json.dumps(table.rows(small), allow_nan=False))
    assert len(rows) == 3 * 2 + 2 * 2
    oracle = [row for row in rows if row["method"] == "oracle_best_single_adapter"]
    assert [row["taken"] for row in oracle] == ["one", "two"]
    assert (oracle[0]["perplexity"], oracle[0]["difference"]) == (pytest.approx(math.exp(1.9)), pytest.approx(-0.1))


# --- beside a control ------------------------------------------------------------------------------------


def row(name: str, *nll: float) -> Row:
    """One method on domain `a` and `b`, of so many nats a token in each."""
    return Row(
        name, {d: Entry(score(*[10 * x] * 3), f"m/{name}", description="x, y") for d, x in zip("ab", nll, strict=True)}
    )


@pytest.fixture
def controlled() -> Table:
    rows = [
        row("base model", 3.0, 3.0),
        row(table.CONTROL, 2.9, 2.9),
        row("again", 2.8, 2.95),
        row("soup, similarity", 2.8, 2.95),
        row("the service, verified", 2.8, 2.8),
    ]
    return Table(rows, {})


def test_the_sentence_says_base_control_soup_and_where_it_beats_both(controlled, small):
    assert table.sentence(controlled, answer=controlled.rows[2], seconds=41.2) == (
        f"2 novel domains: base {math.exp(3.0):.1f}, control {math.exp(2.9):.1f}, the soup {math.exp(2.875):.1f} "
        "(perplexity, geometric mean), better than both on 1 of 2; 41 s of choosing."
    )
    alone = Table([controlled.rows[0], controlled.rows[2]], {})
    assert "better than the base on 2 of 2; 1 s" in table.sentence(alone, answer=alone.rows[1], seconds=1)
    sentence = table.sentence(small, answer=small.rows[2], seconds=1)
    assert ", the answer (one adapter for 1, the base model for 1) " in sentence
    assert "soup" not in sentence


def test_gains_are_over_the_control_and_repeated_rows_stand_once(controlled):
    text = table.text(controlled)
    assert "again: in every domain the same as soup, similarity" in text
    assert text.count("again") == 1
    (line,) = [line for line in text.splitlines() if line.startswith("the service, verified")]
    assert line.split()[-4:] == ["-18.1", "%", "-9.5", "%"]
    figures = table.figures(controlled)
    assert figures["change_to_control_the_service_verified"]["value"] == pytest.approx(100 * math.expm1(-0.1), rel=1e-5)
    assert "change_to_control_control" not in figures
    repeated = Table([*controlled.rows[:4], Row("the service, verified", controlled.rows[2].entries)], {})
    assert [row.name for row in repeated.distinct()[0]] == ["base model", "control", "the service, verified"]


def test_the_picture_holds_every_domain_and_row_once_and_is_the_same_again(controlled, tmp_path):
    for name in ("one.svg", "two.svg"):
        picture.draw(controlled, tmp_path / name)
    drawn = (tmp_path / "one.svg").read_text()
    for label in ("a", "b", "control", "soup, similarity", "the service, verified"):
        assert f">{label}</text>" in drawn
    assert ">again</text>" not in drawn
    assert ">base model</text>" not in drawn
    assert drawn == (tmp_path / "two.svg").read_text()


@pytest.mark.parametrize(
    ("search", "ingredients"),
    [
        (None, ("law", "zoo")),
        ({"candidates": []}, ("law", "zoo")),  # effort tune trains what the selector took
        ({"candidates": [{"digest": "a", "domain": "news"}, {"digest": "b", "domain": "law"}]}, ("news",)),
    ],
)
def test_an_answer_names_what_went_into_it(search, ingredients):
    cooked = {
        "model": "demo/soup@1",
        "digest": "d",
        "abstained": False,
        "search": search,
        "selection": {"selected": [{"domain": "law"}, {"domain": "zoo"}]},
        "recipe": {"ingredients": [{"digest": "a"}]},
    }
    client: Any = SimpleNamespace(cook=lambda _request: cooked, sample=lambda texts: SampleSource(texts=tuple(texts)))
    assert strategies.cook(client, strategies.SERVICE, ["some text"]).ingredients == ingredients


# --- which text is cooked from, and which scored --------------------------------------------------


PASSAGES = 210
"""Of each part: more than any step draws."""


def domains_and_splits(texts: Any) -> set[str]:
    """`law valid` for each domain and split that some labelled passages are of."""
    return {" ".join(text.split()[:2]) for text in texts}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`train/law` and `train/cooking`, `novel/ships` and `novel/cats`, `mixed/control`: all splits of each."""
    folder = tmp_path_factory.mktemp("data")
    for kind, domains in {"train": ("law", "cooking"), "novel": ("ships", "cats"), "mixed": ("control",)}.items():
        for domain in domains:
            for split in ("train", "valid", "test"):
                texts = [f"{domain} {split} {n}: the court held that contract {n} was void" for n in range(PASSAGES)]
                write_texts(folder / kind / domain / f"{split}.jsonl.gz", texts)
    return folder


# --- the demo ---------------------------------------------------------------------------------------


def test_a_soup_of_the_demo_is_cooked_from_one_part_of_a_novel_domain_and_scored_on_another(data, tmp_path):
    server = Mock()  # it remembers what was cooked from and what was scored
    server.cook.return_value = {"model": "demo/soup", "abstained": False, "digest": "sha256:" + "5" * 64}
    server.sample.side_effect = lambda texts: {"texts": texts}
    score = {"nll": 1.0, "tokens": 10, "bytes": 40}
    server.perplexity.side_effect = lambda _model, texts: {"texts": [score for _ in texts]}
    base = BaseEntry(id="tiny", source=str(tmp_path))
    job = Job(tmp_path, data, base, ("law", "cooking"), ("ships", "cats"), "control", tmp_path / "adapters")
    pushed = {name: {"ref": f"demo/{name}@1", "digest": "sha256:" + "0" * 64} for name in ("law", "cooking", "control")}
    kitchen = demo_run.Kitchen(job, server, Scores(tmp_path / "scores"), "sha256:1", pushed)
    answers, _ = demo_run._cook(kitchen, Talk(2))
    demo_run._score(kitchen, answers, Talk(2))
    samples = [call.args[0] for call in server.sample.call_args_list]
    assert {len(sample) for sample in samples} == {NOVEL_SAMPLE}
    assert [domains_and_splits(sample) for sample in samples] == [
        {f"{domain} valid"} for domain in ("ships", "cats") for _ in EVERY
    ]
    assert {source for call in server.perplexity.call_args_list for source in domains_and_splits(call.args[1])} == {
        "ships test",
        "cats test",
    }
    assert domains_and_splits(job.training_sample("law")) == {"law train"}
