"""The task of summarising with a causal model: document and prompt, loss on the summary alone (Radford et al., 2019).

Registered in `training.tasks`. A row is where the summary begins, and the tokens: BOS, document, prompt, summary, end.
The prompt is in the adapter's record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
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
"""Stands between a document and its summary, which begins with a space."""
LEADS = 1
MIN_DOCUMENT_TOKENS = 8
"""A summary that leaves room for fewer tokens of its document is skipped."""
MAX_SUMMARY_TOKENS = 128
"""The most tokens of a generated summary."""
NEEDS = '{"text": ..., "summary": ...}'


@dataclass(frozen=True)
class Summarised:
    """A document and its summary."""

    text: str
    summary: str


class Summarisation(Task):
    """Writing the summary of a document; items are `Summarised`."""

    key = "summarisation"
    name = "summarisation"
    unit = "nats a token"
    causal = True
    divergence_margin = 10.0  # one short summary in a small batch

    def items(self, lines: Sequence[tuple[int, Any]], *, where: str) -> list[Summarised]:
        """Parse {"text", "summary"}; raises InvalidParameter with the line."""
        parsed = (Line(value, where=where, number=number, needs=NEEDS) for number, value in lines)
        return [Summarised(line.string("text"), line.string("summary")) for line in parsed]

    def text_of(self, item: Summarised) -> str:
        """Return the document."""
        return item.text

    def identity(self, items: Sequence[Summarised]) -> list[Any]:
        """Return documents and summaries as JSON."""
        return [[item.text, item.summary] for item in items]

    def inputs(self) -> dict[str, Any]:
        """Return the prompt."""
        return {"prompt": PROMPT}

    def encode(
        self,
        base: LoadedBase,
        items: Sequence[Summarised],
        *,
        block: int,
        purpose: str = "training",
        at_least: int = MIN_TEXTS,
        head: HeadConfig | None = None,
    ) -> Examples:
        """Encode one row an item, its document cut to fit; items whose summary does not fit are skipped.

        Raises InvalidParameter for too few items, or if none fits.
        """
        del head
        enough(items, at_least, of="documents", where=f"The {purpose} data")
        examples, cut = [], 0
        for item in items:
            target = [*tokens_of(base, f" {item.summary.strip()}").ids, *_end(base)]
            prompt, whole = _prompt(base, item.text, block - len(target))
            if prompt is not None:
                cut += not whole
                examples.append(([len(prompt)], [*prompt, *target]))
        if not examples:
            raise InvalidParameter(
                f"No summary of the {purpose} data fits into a block of {block} tokens with its document.",
                param="block",
            )
        targets = sum(len(ids) - lead[0] for lead, ids in examples)
        return Examples(
            rows_of(examples),
            {
                "documents": len(items),
                "documents_cut": cut,
                "documents_left_out": len(items) - len(examples),
                "summary_tokens": targets,
            },
        )

    def scored(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Scored:
        """The states that predict the summaries' tokens (tokens, hidden); each summary has the same weight."""
        del adapter
        batch = batch_of(base, rows, leads=LEADS)
        positions = torch.arange(1, batch.ids.shape[1], device=batch.ids.device)
        in_summary = (positions >= batch.leads) & batch.mask[:, 1:].bool()  # (batch, longest - 1)
        predicting = states(base, batch)[:, :-1][in_summary]
        weights = (in_summary / in_summary.sum(dim=1, keepdim=True) / len(rows))[in_summary]
        return Scored(predicting, batch.ids[:, 1:][in_summary], weights, base.model)

    def metrics(
        self,
        base: LoadedBase,
        adapter: AdapterModule | None,
        items: Sequence[Summarised],
        *,
        block: int,
        batch: int = 8,
    ) -> dict[str, float]:
        """ROUGE of greedy summaries, and the mean loss of the reference summaries (mean NLL a token, in nats)."""
        data = self.encode(base, items, block=block, purpose="evaluation", at_least=1)
        with under(base, adapter), torch.no_grad():
            losses = [
                float(self.loss(base, adapter, torch.from_numpy(data.rows[batch_slice]))) * len(data.rows[batch_slice])
                for batch_slice in slices(len(data.rows), batch)
            ]
            written = [summary_of(base, item.text, block=block) for item in items]
        scores = [rouge(summary, item.summary) for summary, item in zip(written, items, strict=True)]
        figures = {name: float(np.mean([score[name] for score in scores])) for name in scores[0]}
        return {**figures, "loss": sum(losses) / len(data.rows), **data.counts}


@torch.no_grad()
def summary_of(base: LoadedBase, text: str, *, block: int) -> str:
    """Generate a greedy summary of a document with the base and its attached adapter, if any."""
    max_tokens = min(MAX_SUMMARY_TOKENS, block // 2)
    prompt, _ = _prompt(base, text, block - max_tokens)
    if prompt is None:
        raise InvalidParameter(f"A block of {block} tokens has no room for a document and a summary.", param="block")
    cache, ids = DynamicCache(config=base.model.config), prompt
    written: list[int] = []
    while len(written) < max_tokens:
        input_ids = torch.tensor([ids], device=base.model.device)
        mask = torch.ones((1, len(prompt) + len(written)), dtype=torch.long, device=base.model.device)
        out = base.model.base_model(input_ids=input_ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        token = int(lm_logits(base.model, out.last_hidden_state[0, -1]).argmax())
        if token in _end(base)[:1]:
            break
        written.append(token)
        ids = [token]
    return str(base.tokenizer.backend_tokenizer.decode(written)).strip()


def _end(base: LoadedBase) -> list[int]:
    """The tokens that end a summary: EOS, or a line break if the tokenizer has none."""
    return tokens_of(base, "\n").ids if base.eos_id is None else [base.eos_id]


def _prompt(base: LoadedBase, text: str, available: int) -> tuple[list[int] | None, bool]:
    """BOS, the document cut to fit into `available` tokens, and the prompt, with True if uncut.

    None and False if too little of the document fits.
    """
    bos = [base.bos_id] if base.entry.bos and base.bos_id is not None else []
    prompt = tokens_of(base, PROMPT).ids
    document = without_bos(tokens_of(base, text).ids, base.bos_id if bos else None)
    max_document = available - len(bos) - len(prompt)
    if max_document < min(MIN_DOCUMENT_TOKENS, len(document)):
        return None, False
    return [*bos, *document[:max_document], *prompt], len(document) <= max_document
