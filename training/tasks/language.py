"""Causal language modelling: texts end to end in blocks, the mean NLL of each next token.

Registered in `training.tasks`. Perplexity of new texts (docs/explanation/methods.md#perplexity): each text by itself,
every token scored once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from registry.adapters import AdapterModule
from registry.base_model import LoadedBase
from registry.base_model.likelihood import hidden_states, score_windows, text_scores, token_log_probs, windows
from registry.evaluate.perplexity import report
from registry.spec import HeadConfig, Passage, PassageScore, PerplexityReport
from training.data import MIN_TEXTS, Examples, pack, text_of
from training.tasks.contract import Scored, Task, under


class LanguageModelling(Task):
    """Predicting each next token of a domain's text; items are texts, a row is a block of them (block,)."""

    key = "language_modelling"
    name = "language modelling"
    unit = "nats a token"
    causal = True

    def items(self, lines: Sequence[tuple[int, Any]], *, where: str) -> list[str]:
        """Parse {"text"} objects, skipping empty texts; raises InvalidParameter with the line."""
        texts = [text_of(value, where, number) for number, value in lines]
        return [text for text in texts if text.strip()]

    def text_of(self, item: str) -> str:
        """Return the text itself."""
        return item

    def identity(self, items: Sequence[str]) -> list[Any]:
        """Return the texts."""
        return list(items)

    def encode(
        self,
        base: LoadedBase,
        items: Sequence[str],
        *,
        block: int,
        purpose: str = "training",
        at_least: int = MIN_TEXTS,
        head: HeadConfig | None = None,
    ) -> Examples:
        """Pack the texts' tokens into blocks; raises InvalidParameter for too few texts or less than one block."""
        del head
        return pack(items, base.tokenize, block=block, purpose=purpose, at_least=at_least)

    def scored(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Scored:
        """The states (batch * (block - 1), hidden) before each next token."""
        del adapter
        ids = rows.to(base.model.device)
        hidden = hidden_states(base.model, ids, torch.ones_like(ids))[:, :-1].flatten(0, 1)
        targets = ids[:, 1:].flatten()
        return Scored(hidden, targets, torch.full(targets.shape, 1.0 / len(targets), device=ids.device), base.model)

    def loss(self, base: LoadedBase, adapter: AdapterModule | None, rows: Tensor) -> Tensor:
        """Mean NLL per predicted token of blocks (batch, block).

        The base's parameters require no gradient, so only the layers above the first trained tensor are in the graph.
        """
        del adapter
        ids = rows.to(base.model.device)
        return -token_log_probs(base.model, ids, torch.ones_like(ids)).mean()

    def metrics(
        self, base: LoadedBase, adapter: AdapterModule | None, items: Sequence[str], *, block: int, batch: int = 8
    ) -> dict[str, float]:
        """Perplexity of the texts, each cut into windows of at most `block` tokens, and its standard error.

        With an adapter also that of the base alone, and the difference of mean NLL with its paired standard error and,
        for two texts or more, its 90 % interval.
        """
        base_scores = passage_scores(base, items, block=block, batch=batch)
        if adapter is None:
            return _figures(report(base_scores))
        with under(base, adapter):
            scores = passage_scores(base, items, block=block, batch=batch)
        perplexity = report(scores, base_scores)
        baseline = perplexity.baseline
        assert baseline is not None
        interval = dict(zip(("difference_low", "difference_high"), baseline.interval or (), strict=False))
        return {
            **_figures(perplexity),
            "base_perplexity": baseline.perplexity,
            "base_nll": baseline.mean_nll,
            "difference": baseline.difference,
            "difference_standard_error": baseline.standard_error,
            **interval,
        }

    def record(self, train: Examples, valid: Examples) -> dict[str, Any]:
        """Counts of the data used and left out."""
        return {
            **train.counts,
            "valid_texts": valid.counts["texts"],
            "valid_tokens": valid.counts["tokens_available"],
            "valid_tokens_left_out": valid.counts["tokens_left_out"],
        }

    def outcome(self, *, examples: int, width: int, start_loss: float, best_loss: float) -> dict[str, Any]:
        """Predicted tokens, and perplexity on the validation blocks, or the loss if a perplexity would overflow."""
        tokens = {"tokens_trained": examples * (width - 1)}
        try:
            return {
                **tokens,
                "valid_perplexity_before": math.exp(start_loss),
                "valid_perplexity": math.exp(best_loss),
            }
        except OverflowError:  # at the start; the best loss may be low all the same
            return {**tokens, "valid_loss_before": start_loss, "valid_loss": best_loss}


def _figures(perplexity: PerplexityReport) -> dict[str, float]:
    return {
        "perplexity": perplexity.perplexity,
        "nll": perplexity.mean_nll,
        "nll_standard_error": perplexity.standard_error,
        "bits_per_byte": perplexity.bits_per_byte,
        "tokens": perplexity.tokens,
        "texts": len(perplexity.texts),
    }


def passage_scores(base: LoadedBase, texts: Sequence[Passage], *, block: int, batch: int = 8) -> list[PassageScore]:
    """Score the log-likelihood of each text, or answer, under the base with the attached adapter, if any.

    A text is BOS + its tokens, in windows of at most `block`, each with BOS. Memory is that of `batch` longest windows.
    """
    bos_id = base.bos_id if base.entry.bos else None
    tokenized = [base.tokenize_passage(text) for text in texts]
    cut = [windows(ids, context=block, bos_id=bos_id, prompt=prompt) for ids, prompt in tokenized]
    flat = [window for text_windows in cut for window in text_windows]
    max_tokens = batch * max((len(window.ids) for window in flat), default=0)
    return text_scores(texts, cut, score_windows(base.model, flat, max_tokens=max_tokens, pad_id=0))
