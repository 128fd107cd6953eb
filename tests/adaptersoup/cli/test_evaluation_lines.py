"""What `soup train` says on its way where no terminal shows a bar: a line an evaluation."""

from __future__ import annotations

import sys

import pytest

from adaptersoup.cli.verbs.train.progress import EvaluationLines, training_progress
from training.hyperparameters import Hyperparameters

RECIPE = Hyperparameters(steps=10, evaluations=2)


def steps_said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return [line.partition(":")[0] for line in err.splitlines()]


def test_a_line_for_the_start_and_for_each_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    with training_progress(RECIPE) as report:
        for step in range(1, 11):
            report(step, 10, f"loss {step}")
    assert steps_said(capsys) == ["step 1 of 10", "step 5 of 10", "step 10 of 10"]


def test_an_evaluation_whose_step_was_not_heard_of_is_said_at_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    lines = EvaluationLines(RECIPE)
    for step in (2, 4, 7, 8, 9):
        lines.at(step, 10, "")
    assert steps_said(capsys) == ["step 2 of 10", "step 7 of 10"]


def test_trainings_are_told_apart_and_waiting_is_no_step(capsys: pytest.CaptureFixture[str]) -> None:
    lines = EvaluationLines(RECIPE)
    for name in ("law", "zoo"):
        lines.at(0, 0, "waiting for the training to start", name=name)
        lines.at(5, 10, "loss 1", name=name)
    assert capsys.readouterr().err == "law: step 5 of 10: loss 1\nzoo: step 5 of 10: loss 1\n"


def test_on_a_terminal_there_is_a_bar_instead(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with training_progress(RECIPE) as report:
        report(10, 10, "loss 1")
    assert "step 10 of 10:" not in capsys.readouterr().err
