"""Summaries by a causal model: the document and a prompt, and the loss on the summary alone (Radford et al., 2019).

Registered in `training.tasks`. A row is where the summary begins, and the tokens: BOS, document, prompt, summary, end.
The prompt is in the adapter's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from registry.adapters import AdapterModule
from registry.base_model import LoadedBase
from registry.base_model.likelihood import lm_logits, without_bos
from registry.errors import InvalidParameter
from registry.spec import HeadConfig
from training.data import MIN_TEXTS, Examples, Line, enough
from training.tasks.contract import Scored, Task, under
from training.tasks.encoding import batch_of, rows_of, slices, states, tokens_of
from training.tasks.overlap import rouge

PROMPT = "\n\nSummary:"
"""Between a document and a space, with which its summary begins."""
LEADS = 1
LEAST_OF_A_DOCUMENT = 8
"""Tokens: a summary that leaves no room for so many is left out."""
LONGEST = 128
"""Tokens of a summary that is generated."""
NEEDS = '{"text": ..., "summary": ...}'


@dataclass(frozen=True)
class Summarised:
    """A document and its summary."""

    text: str
    summary: str
    line: int = field(default=0, compare=False)


class Summarisation(Task):
    """Writing the summary of a document; items are `Summarised`."""

    key = "summarisation"
    name = "summarisation"
    unit = "nats a token"
    causal = True
    noise = 10.0  # one summary of a few words, in a small batch

    def items(self, lines: Sequence[tuple[int, Any]], *, where: str) -> list[Summarised]:
        """Of {"text", "summary"}; raises InvalidParameter with the line."""
        read = (Line(value, where=where, number=number, needs=NEEDS) for number, value in lines)
        return [Summarised(line.string("text"), line.string("summary"), line.number) for line in read]

    def text_of(self, item: Summarised) -> str:
        """The document."""
        return item.text

    def identity(self, items: Sequence[Summarised]) -> list[Any]:
        """Documents and summaries."""
        return [[item.text, item.summary] for item in items]

    def inputs(self) -> dict[str, Any]:
        """The prompt."""
        return {"prompt": PROMPT}

    def encode(
        self, base: LoadedBase, items: Sequence[Summarised], *, block: int, what: str = "training",
        at_least: int = MIN_TEXTS, head: HeadConfig | None = None,
    ) -> Examples:  # fmt: skip
        """A row an item, its document cut where both do not fit; one whose summary does not fit is left out.

        Raises InvalidParameter for too few items, or where none is left.
        """
        del head
        enough(items, at_least, of="documents", where=f"The {what} data")
        found, cut = [], 0
        for item in items:
            target = [*tokens_of(base, f" {item.summary.strip()}").ids, *_end(base)]
            prompt, whole = _prompt(base, item.text, block - len(target))
            if prompt is not None:
                cut += not whole
                found.append(([len(prompt)], [*prompt, *target]))
        if not found:
            raise InvalidParameter(
                f"No summary of the {what} data fits into a block of {block} tokens with its document.", param="block"
            )
        targets = sum(len(ids) - lead[0] for lead, ids in found)
        return Examples(
            rows_of(found),
            {
                "documents": len(items), "documents_cut": cut, "documents_left_out": len(items) - len(found),
                "summary_tokens": targets,
            },
        )  # fmt: skip

    def scored(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Scored:
        """The states before the summaries' tokens (tokens, hidden); each summary counts alike, however long."""
        del adapter
        batch = batch_of(base, rows, leads=LEADS)
        places = torch.arange(1, batch.ids.shape[1], device=batch.ids.device)
        wanted = (places >= batch.leads) & batch.mask[:, 1:].bool()  # (batch, longest - 1)
        before = states(base, batch)[:, :-1][wanted]
        weights = (wanted / wanted.sum(dim=1, keepdim=True) / len(rows))[wanted]
        return Scored(before, batch.ids[:, 1:][wanted], weights, base.model)

    def metrics(
        self, base: LoadedBase, adapter: AdapterModule | None, items: Sequence[Summarised], *, block: int,
        batch: int = 8,
    ) -> dict[str, float]:  # fmt: skip
        """ROUGE of greedy summaries, and the mean loss of the given ones (mean NLL a token, in nats)."""
        data = self.encode(base, items, block=block, what="evaluation", at_least=1)
        with under(base, adapter), torch.no_grad():
            losses = [
                float(self.loss(base, adapter, torch.from_numpy(data.rows[part]))) * len(data.rows[part])
                for part in slices(len(data.rows), batch)
            ]
            written = [summary_of(base, item.text, block=block) for item in items]
        scores = [rouge(one, item.summary) for one, item in zip(written, items, strict=True)]
        figures = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
        return {**figures, "loss": sum(losses) / len(data.rows), **data.counts}


@torch.no_grad()
def summary_of(base: LoadedBase, text: str, *, block: int) -> str:
    """The base's greedy summary of a document, with whatever is attached to it; at most `LONGEST` tokens."""
    room = min(LONGEST, block // 2)
    prompt, _ = _prompt(base, text, block - room)
    if prompt is None:
        raise InvalidParameter(f"A block of {block} tokens has no room for a document and a summary.", param="block")
    cache, ids = DynamicCache(config=base.model.config), prompt
    written: list[int] = []
    while len(written) < room:
        given = torch.tensor([ids], device=base.model.device)
        seen = torch.ones((1, len(prompt) + len(written)), dtype=torch.long, device=base.model.device)
        out = base.model.base_model(input_ids=given, attention_mask=seen, past_key_values=cache, use_cache=True)
        token = int(lm_logits(base.model, out.last_hidden_state[0, -1]).argmax())
        if token in _end(base)[:1]:
            break
        written.append(token)
        ids = [token]
    return str(base.tokenizer.backend_tokenizer.decode(written)).strip()


def _end(base: LoadedBase) -> list[int]:
    """What ends a summary: EOS, or a line break where the tokenizer has none."""
    return tokens_of(base, "\n").ids if base.eos_id is None else [base.eos_id]


def _prompt(base: LoadedBase, text: str, room: int) -> tuple[list[int] | None, bool]:
    """BOS, the document cut to what fits into `room`, and the prompt; None without room. And whether it is whole."""
    bos = [base.bos_id] if base.entry.bos and base.bos_id is not None else []
    after = tokens_of(base, PROMPT).ids
    document = without_bos(tokens_of(base, text).ids, base.bos_id if bos else None)
    most = room - len(bos) - len(after)
    if most < min(LEAST_OF_A_DOCUMENT, len(document)):
        return None, False
    return [*bos, *document[:most], *after], len(document) <= most
