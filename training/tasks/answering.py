"""The task of answering questions with a span of a context, by a linear head (Devlin et al., NAACL 2019, section 4.2).

Registered in `training.tasks`. A context that does not fit beside its question is read in windows that overlap. A
window without the answer is trained to point at a position that stands for "not here": CLS of an encoder, the last
token of a causal model. A row is the bounds of the answer and of the context, that position, and the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from registry.adapters import AdapterModule
from registry.base_model import LoadedBase
from registry.errors import InvalidParameter
from registry.spec import HeadConfig
from training.data import MIN_TEXTS, Examples, Line, enough
from training.tasks.classification import needed_head
from training.tasks.contract import Scored, Task, under
from training.tasks.encoding import Frame, Tokens, batch_of, frame, rows_of, slices, states, tokens_of
from training.tasks.overlap import exact_match, token_f1

LEADS = 5
"""Numbers at the start of a row: answer start and end, context begin and end, and the position for "not here"."""
QUESTION_SHARE = 0.5
"""The share of a window that a question may take; a longer one is cut."""
OVERLAP = 0.5
"""The share of a window that the previous one holds too, so that an answer cut by one is whole in the other."""
LONGEST_ANSWER = 30
"""Tokens, as in SQuAD's evaluations."""
FAR = -1e9
"""The score of a position where no answer can be."""
UNANSWERABLE = "questions_unanswerable"
"""The name in records of the number of questions without an answer."""
NEEDS = '{"question", "context", "answers": {"text": [...], "answer_start": [...]}}'


@dataclass(frozen=True)
class Question:
    """A question about a context, with every right answer and its start; one without answers cannot be answered."""

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]


class Window(NamedTuple):
    """A window of a context: its row's numbers and tokens, and the characters that each token stands for."""

    leads: list[int]
    ids: list[int]
    offsets: list[tuple[int, int]]


class QuestionAnswering(Task):
    """Extractive question answering: start and end of a span; items are `Question`.

    `may_abstain` allows empty answers, as in SQuAD 2.0; by default every question is answered, as in SQuAD 1.1. Which
    one an adapter was trained for is read from its record (`trained`), never from the right answers.
    """

    key = "question_answering"
    name = "extractive question answering"
    answers = "question_answering"
    divergence_margin = 20.0

    def __init__(self, *, may_abstain: bool = False) -> None:
        self.may_abstain = may_abstain

    def items(self, lines: Sequence[tuple[int, Any]], *, where: str) -> list[Question]:
        """Parse SQuAD's items, one a line; raises InvalidParameter for an answer that is not at its start."""
        return [_question(Line(value, where=where, number=number, needs=NEEDS)) for number, value in lines]

    def text_of(self, item: Question) -> str:
        """Return question and context."""
        return f"{item.question}\n{item.context}"

    def identity(self, items: Sequence[Question]) -> list[Any]:
        """Return questions, contexts and answers as JSON."""
        return [[item.question, item.context, [list(answer) for answer in item.answers]] for item in items]

    def head(self, items: Sequence[Question]) -> HeadConfig:
        """A head that scores start and end."""
        del items
        return HeadConfig(task="question_answering", labels=("start", "end"))

    def encode(
        self,
        base: LoadedBase,
        items: Sequence[Question],
        *,
        block: int,
        purpose: str = "training",
        at_least: int = MIN_TEXTS,
        head: HeadConfig | None = None,
    ) -> Examples:
        """Encode one row a window; raises InvalidParameter for too few items or a block too small for a context."""
        del head
        enough(items, at_least, of="questions", where=f"The {purpose} data")
        split = [_windows(base, item, block) for item in items]
        flat = [window for windows, _ in split for window in windows]
        return Examples(
            rows_of([(window.leads, window.ids) for window in flat]),
            {
                "questions": len(items),
                "questions_cut": sum(cut for _, cut in split),
                UNANSWERABLE: sum(not item.answers for item in items),
                "contexts_in_windows": sum(len(windows) > 1 for windows, _ in split),
                "windows": len(flat),
                "windows_without_answer": sum(window.leads[0] == window.leads[4] for window in flat),
            },
        )

    def trained(self, record: Mapping[str, Any]) -> Task:
        """The task, which may abstain if the training data had questions without an answer."""
        return QuestionAnswering(may_abstain=bool(record.get(UNANSWERABLE)))

    def scored(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Scored:
        """Logits (2 * batch, longest) of each position as the start, then as the end."""
        batch = batch_of(base, rows, leads=LEADS)
        logits = self._logits(base, adapter, rows).flatten(0, 1)
        targets = batch.leads[:, :2].T.flatten()
        return Scored(logits, targets, torch.full(targets.shape, 1 / len(targets), device=logits.device))

    def _logits(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Tensor:
        """fp32 logits (2, batch, longest); `FAR` outside of the context and the position for "not here"."""
        batch = batch_of(base, rows, leads=LEADS)
        hidden = states(base, batch, second_at=batch.leads[:, 2])
        logits = needed_head(adapter, self).logits(hidden, batch.mask).float()
        places = torch.arange(logits.shape[1], device=logits.device)
        inside = (places >= batch.leads[:, 2, None]) & (places < batch.leads[:, 3, None])
        inside = inside | (places == batch.leads[:, 4, None])
        return logits.permute(2, 0, 1).masked_fill(~inside, FAR)

    def metrics(
        self, base: LoadedBase, adapter: AdapterModule | None, items: Sequence[Question], *, block: int, batch: int = 8
    ) -> dict[str, float]:
        """SQuAD's exact match and F1, as shares; "" is right for a question without an answer."""
        needed_head(adapter, self)
        enough(items, 1, of="questions", where="The evaluation data")
        with under(base, adapter), torch.no_grad():
            guesses = self.predicted(base, adapter, items, block=block, batch=batch)
        references = [[text for text, _ in item.answers] or [""] for item in items]
        pairs = list(zip(guesses, references, strict=True))
        return {
            "exact_match": float(np.mean([max(exact_match(guess, text) for text in texts) for guess, texts in pairs])),
            "f1": float(np.mean([max(token_f1(guess, text) for text in texts) for guess, texts in pairs])),
            "questions": len(items),
            UNANSWERABLE: sum(not item.answers for item in items),
        }

    def predicted(
        self, base: LoadedBase, adapter: AdapterModule | None, items: Sequence[Question], *, block: int, batch: int = 8
    ) -> list[str]:
        """Predict the answer to each question, "" for none, with `adapter` attached to the base by the caller.

        Depends on question and context alone.
        """
        windows_of_items = [_windows(base, item, block)[0] for item in items]
        rows = rows_of([(window.leads, window.ids) for windows in windows_of_items for window in windows])
        scores = self._scores(base, adapter, rows, batch)
        return [
            _answer(item, [(window, next(scores)) for window in windows], may_abstain=self.may_abstain)
            for item, windows in zip(items, windows_of_items, strict=True)
        ]

    def _scores(
        self, base: LoadedBase, adapter: AdapterModule | None, rows: np.ndarray, batch: int
    ) -> Iterator[np.ndarray]:
        """Yield the scores of each row: (2, longest of its batch), for start and end."""
        for rows_slice in slices(len(rows), batch):
            logits = self._logits(base, adapter, torch.from_numpy(rows[rows_slice]))
            yield from logits.cpu().numpy().transpose(1, 0, 2)


def _question(line: Line) -> Question:
    question, context = line.string("question"), line.string("context")
    answers = tuple(dict.fromkeys(_answers(line)))
    for text, start in answers:
        if not text or context[start : start + len(text)] != text:
            raise line.wrong(f"says that {text[:40]!r} is at character {start} of its context, and it is not")
    return Question(question, context, answers)


def _answers(line: Line) -> Iterator[tuple[str, int]]:
    """Yield (text, start) from {"text": [...], "answer_start": [...]} or a list of {"text", "answer_start"}."""
    value = line.fields.get("answers")
    if isinstance(value, list) and all(isinstance(answer, dict) for answer in value):
        value = {name: [answer.get(name) for answer in value] for name in ("text", "answer_start")}
    texts, starts = (value.get("text"), value.get("answer_start")) if isinstance(value, dict) else (None, None)
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise line.lacks('has no "answers"')
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or type(start) is not int or start < 0:
            raise line.lacks('has an answer without "text" or "answer_start"')
        yield text, start


def _windows(base: LoadedBase, item: Question, block: int) -> tuple[list[Window], bool]:
    """Return the windows of a question's context, and True if the question was cut."""
    special = frame(base, pair=True)
    available = block - special.length
    question = tokens_of(base, item.question).ids
    max_question = int(available * QUESTION_SHARE)
    context = tokens_of(base, item.context)
    size = available - min(len(question), max_question)
    if max_question < 1 or size < 2:
        raise InvalidParameter(f"A block of {block} tokens has no room for a question and a context.", param="block")
    step = max(1, int(size * (1 - OVERLAP)))
    starts = range(0, max(1, len(context.ids) - size + step), step)
    windows = []
    for start in starts:
        window_tokens = Tokens(context.ids[start : start + size], context.offsets[start : start + size])
        windows.append(
            _window(special, question[:max_question], window_tokens, item, causal=base.shape.kind == "causal")
        )
    return windows, len(question) > max_question


def _window(special: Frame, question: Sequence[int], context: Tokens, item: Question, *, causal: bool) -> Window:
    ids, begin = special.wrap(question, context.ids)
    nowhere = len(ids) - 1 if causal else 0
    span = _span(context.offsets, item.answers[0]) if item.answers else None
    first, last = (nowhere, nowhere) if span is None else (begin + span[0], begin + span[1])
    return Window([first, last, begin, begin + len(context.ids), nowhere], ids, context.offsets)


def _span(offsets: Sequence[tuple[int, int]], answer: tuple[str, int]) -> tuple[int, int] | None:
    """First and last token of the answer's characters; None if some of them are outside of `offsets`."""
    begin, end = answer[1], answer[1] + len(answer[0])
    if not offsets or offsets[0][0] > begin or offsets[-1][1] < end:
        return None
    touching = [index for index, (first, last) in enumerate(offsets) if first < end and last > begin]
    return (touching[0], touching[-1]) if touching else None


def _answer(item: Question, scored: Sequence[tuple[Window, np.ndarray]], *, may_abstain: bool) -> str:
    """The best span over all windows; "" if `may_abstain` and "not here" scores higher in each."""
    best, text, nowhere = -np.inf, "", np.inf
    for window, (starts, ends) in scored:
        _, _, begin, end, no_answer = window.leads
        nowhere = min(nowhere, float(starts[no_answer] + ends[no_answer]))
        score, first, last = _best_span(starts[begin:end], ends[begin:end])
        if score > best:
            best = score
            text = item.context[window.offsets[first][0] : window.offsets[last][1]].strip() if window.offsets else ""
    return "" if may_abstain and nowhere >= best else text


def _best_span(starts: np.ndarray, ends: np.ndarray) -> tuple[float, int, int]:
    """The highest sum of a start and an end less than `LONGEST_ANSWER` tokens after it, and their positions."""
    if not len(starts):
        return -np.inf, 0, 0
    padded = np.concatenate([ends, np.full(LONGEST_ANSWER - 1, -np.inf, ends.dtype)])
    sums = starts[:, None] + sliding_window_view(padded, LONGEST_ANSWER)
    first, gap = divmod(int(sums.argmax()), LONGEST_ANSWER)
    return float(sums[first, gap]), first, first + gap
