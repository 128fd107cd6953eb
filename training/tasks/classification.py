"""The task of classifying texts or pairs of texts by a linear head (Houlsby et al., ICML 2019, section 3.2; GLUE).

Registered in `training.tasks`. The label map is in the adapter's head; a row is the label's index, where the second
text begins, and the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from registry.adapters import AdapterModule
from registry.adapters.head import HeadModule, head_module
from registry.base_model import LoadedBase
from registry.errors import Incompatible, InvalidParameter
from registry.spec import HeadConfig
from registry.spec.wording import describe_error
from training.data import MIN_TEXTS, Examples, Line, enough
from training.tasks.contract import Scored, Task, named_head, under
from training.tasks.encoding import batch_of, frame, rows_of, slices, states, tokens_of

LEADS = 2
MAX_LABELS = 4096
SHOWN = 20
"""The most labels and problems that a message lists."""
NEEDS = '{"text": ..., "label": ...}, with "pair" for a second text'


@dataclass(frozen=True)
class Labelled:
    """A text or pair of texts with its label; `line` is its line in the file, 0 without one."""

    text: str
    label: str
    pair: str | None = None
    line: int = field(default=0, compare=False)


class Classification(Task):
    """Sequence classification by a head over the labels of the data; items are `Labelled`."""

    key = "classification"
    name = "sequence classification"
    answers = "classification"
    divergence_margin = 20.0  # one confidently wrong text in a small batch

    def items(self, lines: Sequence[tuple[int, Any]], *, where: str) -> list[Labelled]:
        """Parse {"text", "label"} and, for pairs, "pair"; labels are strings, whole numbers, or true and false."""
        return [_labelled(Line(value, where=where, number=number, needs=NEEDS)) for number, value in lines]

    def text_of(self, item: Labelled) -> str:
        """Return both texts."""
        return item.text if item.pair is None else f"{item.text}\n{item.pair}"

    def identity(self, items: Sequence[Labelled]) -> list[Any]:
        """Return texts and labels as JSON."""
        return [[item.text, item.pair, item.label] for item in items]

    def head(self, items: Sequence[Labelled]) -> HeadConfig:
        """A head with the labels of the items, numbers in order; raises InvalidParameter if none can hold them."""
        labels = {item.label for item in items}
        if not 2 <= len(labels) <= MAX_LABELS:
            raise InvalidParameter(
                f"The data has {len(labels)} labels, and a classification has 2 to {MAX_LABELS}.", param="texts"
            )
        try:
            return HeadConfig(task="classification", labels=tuple(sorted(labels, key=_by_size)))
        except ValidationError as error:
            problem = describe_error(error.errors(include_url=False)[0])
            raise InvalidParameter(f"The data's labels are refused: {problem}.", param="texts") from None

    def encode(
        self,
        base: LoadedBase,
        items: Sequence[Labelled],
        *,
        block: int,
        purpose: str = "training",
        at_least: int = MIN_TEXTS,
        head: HeadConfig | None = None,
    ) -> Examples:
        """Encode one row an item; the longer of its texts is cut until both fit into `block`.

        Raises InvalidParameter for fewer than `at_least` items, a label that `head` lacks, a block that is too small.
        """
        enough(items, at_least, of="texts", where=f"The {purpose} data")
        indices = _indices(items, self.head(items) if head is None else head, purpose)
        examples, cut = [], 0
        for item, index in zip(items, indices, strict=True):
            special = frame(base, pair=item.pair is not None)
            first = tokens_of(base, item.text).ids
            second = [] if item.pair is None else tokens_of(base, item.pair).ids
            available = block - special.length
            if available < (1 if item.pair is None else 2):
                raise InvalidParameter(
                    f"A block of {block} tokens has no room for a text: {special.length} stand around it.",
                    param="block",
                )
            lengths = _fitting_lengths(len(first), len(second), available)
            cut += lengths != (len(first), len(second))
            ids, second_at = special.wrap(first[: lengths[0]], second[: lengths[1]])
            examples.append(([index, second_at if item.pair is not None else len(ids)], ids))
        return Examples(
            rows_of(examples), {"texts": len(items), "texts_cut": cut, "tokens": sum(len(ids) for _, ids in examples)}
        )

    def scored(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Scored:
        """Logits (batch, labels)."""
        batch = batch_of(base, rows, leads=LEADS)
        hidden = states(base, batch, second_at=batch.leads[:, 1])
        logits = needed_head(adapter, self).logits(hidden, batch.mask).float()
        return Scored(logits, batch.leads[:, 0], torch.full((len(rows),), 1 / len(rows), device=logits.device))

    def metrics(
        self, base: LoadedBase, adapter: AdapterModule | None, items: Sequence[Labelled], *, block: int, batch: int = 8
    ) -> dict[str, float]:
        """Accuracy, Matthews' correlation and macro F1 (over the labels that occur), and the mean loss in nats."""
        head = needed_head(adapter, self)
        data = self.encode(base, items, block=block, purpose="evaluation", at_least=1, head=head.config)
        guesses, losses = [], 0.0
        with under(base, adapter), torch.no_grad():
            for batch_slice in slices(len(data.rows), batch):
                rows = torch.from_numpy(data.rows[batch_slice])
                scored = self.scored(base, adapter, rows)
                guesses += scored.states.argmax(dim=1).tolist()
                losses += float(scored.loss()) * len(rows)
        figures = agreement(data.rows[:, 0], np.array(guesses), labels=len(head.config.labels))
        return {**figures, "loss": losses / len(items), "texts": len(items), "texts_cut": data.counts["texts_cut"]}


def agreement(truth: np.ndarray, guesses: np.ndarray, *, labels: int) -> dict[str, float]:
    """Accuracy, Matthews' correlation (Gorodkin's for several labels; 0 where undefined) and macro F1.

    `truth` and `guesses` are indices (n,) below `labels`.
    """
    table = np.zeros((labels, labels))
    np.add.at(table, (truth, guesses), 1)
    right, true, guessed, total = np.diag(table), table.sum(axis=1), table.sum(axis=0), table.sum()
    spread = (total**2 - (true**2).sum()) * (total**2 - (guessed**2).sum())
    mcc = (right.sum() * total - true @ guessed) / np.sqrt(spread) if spread > 0 else 0.0
    occurs = (true + guessed) > 0
    f1 = 2 * right[occurs] / (true + guessed)[occurs]
    return {"accuracy": float(right.sum() / total), "mcc": float(mcc), "macro_f1": float(f1.mean())}


def needed_head(adapter: AdapterModule | None, task: Task) -> HeadModule:
    """Return the adapter's head; raises Incompatible if it has none for the task."""
    head = None if adapter is None else head_module(adapter)
    if head is None or head.config.task != task.answers:
        if adapter is None:
            model = "the base model alone"
        else:
            model = f"an adapter with {named_head(None if adapter.config.head is None else adapter.config.head.task)}"
        raise Incompatible(f"{task.name.capitalize()} needs an adapter with a head for it, not {model}.", param="task")
    return head


def _labelled(line: Line) -> Labelled:
    text = line.string("text")
    pair = None if line.fields.get("pair") is None else line.string("pair")
    label = line.fields.get("label")
    if isinstance(label, bool | int):
        label = str(label).lower()
    if not isinstance(label, str) or not 1 <= len(label) <= 200:
        raise line.lacks('has no "label" of 1 to 200 characters, or a whole number')
    return Labelled(text, label, pair, line.number)


def _by_size(label: str) -> tuple[bool, int, str]:
    number = label.removeprefix("-").isdecimal()
    return (not number, int(label) if number else 0, label)


def _indices(items: Sequence[Labelled], head: HeadConfig, purpose: str) -> list[int]:
    """The index of each item's label in the head; raises InvalidParameter that lists the items with unknown labels."""
    index_by_label = {label: index for index, label in enumerate(head.labels)}
    wrong = [(index, item) for index, item in enumerate(items) if item.label not in index_by_label]
    if wrong:
        labels = ", ".join(repr(label) for label in head.labels[:SHOWN])
        problems = [f"{_place(item, index)}: {item.label[:80]!r}" for index, item in wrong[:SHOWN]]
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise InvalidParameter(
            f"The {purpose} data has a label outside the set ({labels}): {problems[0]}{more}.",
            param="texts",
            problems=[f"Not in the set of labels, {problem}." for problem in problems],
        )
    return [index_by_label[item.label] for item in items]


def _place(item: Labelled, index: int) -> str:
    """The line of an item, or its number if it comes from no file."""
    return f"line {item.line}" if item.line else f"item {index + 1}"


def _fitting_lengths(first: int, second: int, available: int) -> tuple[int, int]:
    """Lengths of two texts that together fit into `available` tokens; the longer one is cut first."""
    if first + second <= available:
        return first, second
    half = available // 2
    if second <= half:
        return available - second, second
    if first <= available - half:
        return first, available - first
    return available - half, half
