"""Answering questions with a span of a context, by a linear head (SQuAD; Devlin et al., NAACL 2019, section 4.2).

Registered in `training.tasks`. A context that does not fit beside its question is read in windows that overlap. A
window without the answer is trained to point at a place that stands for "not here": CLS of an encoder, the last token
of a causal model, which has read all. A row is that place's, the answer's and the window's bounds, and the tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
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
"""Start and end of the answer, begin and end of the context, and the place for "not here"."""
QUESTION_SHARE = 0.5
"""Of the room that a question may take; what is longer is cut."""
OVERLAP = 0.5
"""Share of a window that the one before holds too: what one cuts, the other has whole."""
LONGEST_ANSWER = 30
"""Tokens; as SQuAD's evaluations have it."""
FAR = -1e9
"""The score of a place where no answer can be."""
UNANSWERABLE = "questions_unanswerable"
"""What records call the number of questions without an answer."""
NEEDS = '{"question", "context", "answers": {"text": [...], "answer_start": [...]}}'


@dataclass(frozen=True)
class Question:
    """A question about a context, with every right answer and where it begins; without any, it cannot be answered."""

    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    line: int = field(default=0, compare=False)


class Window(NamedTuple):
    """A part of a context: its row's numbers and tokens, and the characters its tokens stand for."""

    leads: list[int]
    ids: list[int]
    offsets: list[tuple[int, int]]


class QuestionAnswering(Task):
    """Extractive question answering: start and end of a span; items are `Question`.

    `may_abstain` says whether a question may be left without an answer, as in SQuAD 2.0; by default each is answered,
    as in SQuAD 1.1. An adapter's record tells which it was trained for (`trained`); no right answer is looked at.
    """

    key = "question_answering"
    name = "extractive question answering"
    answers = "question_answering"
    noise = 20.0

    def __init__(self, *, may_abstain: bool = False) -> None:
        self.may_abstain = may_abstain

    def items(self, lines: Sequence[tuple[int, Any]], *, where: str) -> list[Question]:
        """Of SQuAD's items, one a line; raises InvalidParameter for an answer that is not where it says."""
        return [_question(Line(value, where=where, number=number, needs=NEEDS)) for number, value in lines]

    def text_of(self, item: Question) -> str:
        """Question and context."""
        return f"{item.question}\n{item.context}"

    def identity(self, items: Sequence[Question]) -> list[Any]:
        """Questions, contexts and answers."""
        return [[item.question, item.context, [list(answer) for answer in item.answers]] for item in items]

    def head(self, items: Sequence[Question]) -> HeadConfig:
        """Scores of start and end."""
        del items
        return HeadConfig(task="question_answering", labels=("start", "end"))

    def encode(
        self, base: LoadedBase, items: Sequence[Question], *, block: int, what: str = "training",
        at_least: int = MIN_TEXTS, head: HeadConfig | None = None,
    ) -> Examples:  # fmt: skip
        """A row a window; raises InvalidParameter for too few items or a block with no room for a context."""
        del head
        enough(items, at_least, of="questions", where=f"The {what} data")
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
        """One that may abstain where the training data held questions without an answer."""
        return QuestionAnswering(may_abstain=bool(record.get(UNANSWERABLE)))

    def scored(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Scored:
        """Logits (2 * batch, longest) of each place to be the start, then the end."""
        batch = batch_of(base, rows, leads=LEADS)
        logits = self._logits(base, adapter, rows).flatten(0, 1)
        targets = batch.leads[:, :2].T.flatten()
        return Scored(logits, targets, torch.full(targets.shape, 1 / len(targets), device=logits.device))

    def _logits(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Tensor:
        """fp32 (2, batch, longest); `FAR` outside of the context and the place for "not here"."""
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
        """SQuAD's exact match and F1, as shares; of a question without an answer "" is the right one."""
        needed_head(adapter, self)
        enough(items, 1, of="questions", where="The evaluation data")
        with under(base, adapter), torch.no_grad():
            given = self.predicted(base, adapter, items, block=block, batch=batch)
        golds = [[text for text, _ in item.answers] or [""] for item in items]
        pairs = list(zip(given, golds, strict=True))
        return {
            "exact_match": float(np.mean([max(exact_match(guess, one) for one in gold) for guess, gold in pairs])),
            "f1": float(np.mean([max(token_f1(guess, one) for one in gold) for guess, gold in pairs])),
            "questions": len(items),
            UNANSWERABLE: sum(not item.answers for item in items),
        }

    def predicted(
        self, base: LoadedBase, adapter: AdapterModule | None, items: Sequence[Question], *, block: int, batch: int = 8
    ) -> list[str]:
        """The answer to each question, "" for none, with `adapter` attached to the base by the caller.

        It depends on question and context alone.
        """
        split = [_windows(base, item, block)[0] for item in items]
        rows = rows_of([(window.leads, window.ids) for windows in split for window in windows])
        scores: Iterator[np.ndarray] = (
            one
            for part in slices(len(rows), batch)
            for one in self._logits(base, adapter, torch.from_numpy(rows[part])).cpu().numpy().transpose(1, 0, 2)
        )
        return [
            _answer(item, [(window, next(scores)) for window in windows], may_abstain=self.may_abstain)
            for item, windows in zip(items, split, strict=True)
        ]


def _question(line: Line) -> Question:
    question, context = line.string("question"), line.string("context")
    answers = tuple(dict.fromkeys(_answers(line)))
    for text, start in answers:
        if not text or context[start : start + len(text)] != text:
            raise line.wrong(f"says that {text[:40]!r} is at character {start} of its context, and it is not")
    return Question(question, context, answers, line.number)


def _answers(line: Line) -> Iterator[tuple[str, int]]:
    """Of {"text": [...], "answer_start": [...]} or a list of {"text", "answer_start"}."""
    value = line.fields.get("answers")
    if isinstance(value, list) and all(isinstance(one, dict) for one in value):
        value = {name: [one.get(name) for one in value] for name in ("text", "answer_start")}
    texts, starts = (value.get("text"), value.get("answer_start")) if isinstance(value, dict) else (None, None)
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        raise line.lacks('has no "answers"')
    for text, start in zip(texts, starts, strict=True):
        if not isinstance(text, str) or type(start) is not int or start < 0:
            raise line.lacks('has an answer without "text" or "answer_start"')
        yield text, start


def _windows(base: LoadedBase, item: Question, block: int) -> tuple[list[Window], bool]:
    """The windows of a question's context, and whether the question had to be cut."""
    around = frame(base, pair=True)
    room = block - around.taken
    question = tokens_of(base, item.question).ids
    most = int(room * QUESTION_SHARE)
    context = tokens_of(base, item.context)
    size = room - min(len(question), most)
    if most < 1 or size < 2:
        raise InvalidParameter(f"A block of {block} tokens has no room for a question and a context.", param="block")
    step = max(1, int(size * (1 - OVERLAP)))
    starts = range(0, max(1, len(context.ids) - size + step), step)
    last_place = base.shape.kind == "causal"
    windows = [_window(around, question[:most], context, start, size, item, last_place=last_place) for start in starts]
    return windows, len(question) > most


def _window(
    around: Frame, question: Sequence[int], context: Tokens, start: int, size: int, item: Question, *, last_place: bool
) -> Window:
    part = context.ids[start : start + size]
    offsets = context.offsets[start : start + size]
    ids, begin = around.around(question, part)
    nowhere = len(ids) - 1 if last_place else 0
    span = _span(offsets, item.answers[0]) if item.answers else None
    first, last = (nowhere, nowhere) if span is None else (begin + span[0], begin + span[1])
    return Window([first, last, begin, begin + len(part), nowhere], ids, offsets)


def _span(offsets: Sequence[tuple[int, int]], answer: tuple[str, int]) -> tuple[int, int] | None:
    """The tokens that hold the answer's characters; None where some of them are outside of `offsets`."""
    begin, end = answer[1], answer[1] + len(answer[0])
    if not offsets or offsets[0][0] > begin or offsets[-1][1] < end:
        return None
    touching = [index for index, (first, last) in enumerate(offsets) if first < end and last > begin]
    return (touching[0], touching[-1]) if touching else None


def _answer(item: Question, read: Sequence[tuple[Window, np.ndarray]], *, may_abstain: bool) -> str:
    """The best span over all windows; "" where "not here" is better in each and that may be said."""
    best, text, nowhere = -np.inf, "", np.inf
    for window, (starts, ends) in read:
        _, _, begin, end, none = window.leads
        nowhere = min(nowhere, float(starts[none] + ends[none]))
        score, first, last = _best_span(starts[begin:end], ends[begin:end])
        if score > best:
            best = score
            text = item.context[window.offsets[first][0] : window.offsets[last][1]].strip() if window.offsets else ""
    return "" if may_abstain and nowhere >= best else text


def _best_span(starts: np.ndarray, ends: np.ndarray) -> tuple[float, int, int]:
    """The highest sum of a start and an end that is not before it nor `LONGEST_ANSWER` tokens after; its places."""
    if not len(starts):
        return -np.inf, 0, 0
    count = len(starts)
    gaps = np.arange(count) - np.arange(count)[:, None]
    sums = np.where((gaps >= 0) & (gaps < LONGEST_ANSWER), starts[:, None] + ends, -np.inf)
    first, last = divmod(int(sums.argmax()), count)
    return float(sums[first, last]), first, last
