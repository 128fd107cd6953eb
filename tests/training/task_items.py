"""Small data of every task, made so that a tiny model can learn them: used by the tests of tasks and evaluation."""

from __future__ import annotations

from training.tasks.answering import Question
from training.tasks.classification import Labelled
from training.tasks.summarisation import Summarised

LABELLED = [
    Labelled(f"contract {i} is {'void and bad' if i % 2 else 'good and fine'}", "bad" if i % 2 else "good")
    for i in range(60)
]
QUESTIONS = [
    Question("what is void?", f"The court said that {name} is void today.", ((name, len("The court said that ")),))
    for name in (f"contract {i % 10}" for i in range(60))
]
SUMMARISED = [Summarised(f"The fox {i} jumps over the dog and the court.", f"fox {i % 5}") for i in range(60)]
ITEMS = {"classification": LABELLED, "question_answering": QUESTIONS, "summarisation": SUMMARISED}


def as_json(key, item):
    """The line of data that an item is read from."""
    if key == "classification":
        pair = {} if item.pair is None else {"pair": item.pair}
        return {"text": item.text, "label": item.label, **pair}
    if key == "question_answering":
        answers = {"text": [text for text, _ in item.answers], "answer_start": [start for _, start in item.answers]}
        return {"question": item.question, "context": item.context, "answers": answers}
    return {"text": item.text, "summary": item.summary}
