"""Token log-likelihoods of a causal language model, for trainer, evaluation and engine.

Log-probabilities are `logit - logsumexp(logits)` in fp32. Only scored positions reach the output layer, a slice at a
time, and no tensor as wide as the vocabulary is kept for a backward pass. With 50,000 entries, the logits of a training
step would need far more memory than the model. Batches are padded on the right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from registry.errors import InvalidParameter, InvalidWeights
from registry.spec import Passage, PassageScore, scored_text

_LOGIT_ROWS = 256  # rows of logits in memory at a time; for each slice, autocast converts a frozen output layer anew
_CACHED_CELLS = 2**18  # logits in a slice on a CPU: 1 MiB of fp32, which its cache holds


def hidden_states(
    model: nn.Module, input_ids: Tensor, attention_mask: Tensor, *, token_types: Tensor | None = None
) -> Tensor:
    """Last hidden state after the final LayerNorm (batch, time, hidden), in the base's dtype.

    `token_types` (batch, time) are the segment ids of encoders that read pairs of texts.
    """
    transformer = cast(nn.Module, model.base_model)
    types = {} if token_types is None else {"token_type_ids": token_types}
    out = transformer(input_ids=input_ids, attention_mask=attention_mask, use_cache=False, **types)
    return cast(Tensor, out.last_hidden_state)


def lm_logits(model: nn.Module, hidden: Tensor) -> Tensor:
    """Logits (..., vocabulary) of hidden states (..., hidden) from `hidden_states`, in the base's dtype.

    Some families scale them (`logit_scale` of Cohere, `logits_scaling` of Granite) or cap them
    (`final_logit_softcapping` of Gemma 2, c tanh(z / c)). `checks` compares these with the model's own logits whenever
    a base model is loaded.
    """
    head = cast(Callable[[], nn.Module], model.get_output_embeddings)()
    logits = cast(Tensor, head(hidden))
    if factor := getattr(model.config, "logit_scale", None):
        logits = logits * factor
    if divisor := getattr(model.config, "logits_scaling", None):
        logits = logits / divisor
    if cap := getattr(model.config, "final_logit_softcapping", None):
        logits = torch.tanh(logits / cap) * cap
    return logits


def log_probs_of_next(model: nn.Module, hidden: Tensor, input_ids: Tensor, mask: Tensor) -> Tensor:
    """fp32 (batch, time - 1): log p(token t + 1 | tokens up to t) in nats; 0 where that token is not in the mask."""
    targets, scored = input_ids[:, 1:], mask[:, 1:].bool()
    log_probs = log_probs_of(model, hidden[:, :-1][scored], targets[scored])
    return torch.zeros(targets.shape, dtype=torch.float32, device=hidden.device).masked_scatter(scored, log_probs)


def log_probs_of(model: nn.Module, states: Tensor, ids: Tensor) -> Tensor:
    """fp32 (rows,): log-probabilities of `ids` (rows,) after last hidden states (rows, hidden); differentiable.

    Logits exist for a slice of rows at a time, also in the backward pass. If the output layer is frozen, as under most
    adapters, the forward pass stores each row's gradient (rows, hidden) and the backward pass scales it. An output
    layer that is trained, or has a LoRA that is, recomputes its logits.
    """
    if not torch.is_grad_enabled():
        return _sliced_log_probs(model, states, ids)
    trained = lm_logits(model, states[:0].detach()).requires_grad
    if trained or not states.requires_grad:
        return _sliced_log_probs(model, states, ids, recompute=trained)
    return cast(Callable[..., Tensor], _LogProbs.apply)(states, ids, model)


def _sliced_log_probs(model: nn.Module, states: Tensor, ids: Tensor, *, recompute: bool = False) -> Tensor:
    """Log-probabilities (rows,), slice by slice; with `recompute` a backward pass computes the logits again."""
    recomputed = partial(checkpoint, _log_probs, use_reentrant=False, preserve_rng_state=False)
    compute: Callable[..., Tensor] = recomputed if recompute else _log_probs
    return torch.cat([compute(model, states[rows], ids[rows]) for rows in logit_slices(len(states))])


def _log_probs(model: nn.Module, states: Tensor, ids: Tensor) -> Tensor:
    return chosen_log_probs(lm_logits(model, states), ids)


def logit_slices(rows: int) -> list[slice]:
    """Slices of `rows` whose logits fit into memory together; a single empty one for no row."""
    return [slice(start, start + _LOGIT_ROWS) for start in range(0, max(1, rows), _LOGIT_ROWS)]


class _LogProbs(torch.autograd.Function):
    """Log-probabilities of tokens under a frozen output layer; the forward pass computes each row's gradient too."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, ids: Tensor, model: nn.Module) -> Tensor:
        slices: list[Tensor] = []
        slopes: list[Tensor] = []
        for rows in logit_slices(len(states)):
            with torch.enable_grad():
                inputs = states[rows].detach().requires_grad_()
                log_probs = _log_probs(model, inputs, ids[rows])
            slopes += torch.autograd.grad(log_probs, inputs, torch.ones_like(log_probs))
            slices.append(log_probs.detach())
        ctx.save_for_backward(states, ids, torch.cat(slopes))
        ctx.model = model
        return torch.cat(slices)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        states, ids, slopes = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return (slopes * gradient[:, None]).to(slopes.dtype), None, None
        # a second derivative is needed, by GraSP for one
        log_probs = _sliced_log_probs(ctx.model, states, ids, recompute=True)
        return torch.autograd.grad(log_probs, states, gradient, create_graph=True)[0], None, None


def chosen_log_probs(logits: Tensor, ids: Tensor) -> Tensor:
    """fp32 (rows,): log-probabilities of `ids` (rows,) under `logits` (rows, vocabulary); differentiable, twice too.

    Neither pass holds more than a slice of the logits in fp32. A training step on a small base model spends a third
    of its time between logits and loss where each operation goes through main memory by itself.
    """
    return cast(Callable[..., Tensor], _ChosenLogProbs.apply)(logits, ids)


class _ChosenLogProbs(torch.autograd.Function):
    """z_i - logsumexp(z), whose gradient is onehot(i) - softmax(z)."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor) -> Tensor:
        normaliser = torch.cat([logits[rows].float().logsumexp(dim=-1) for rows in _slices(logits)])
        ctx.save_for_backward(logits, ids, normaliser)
        return logits.gather(-1, ids[:, None]).squeeze(-1).float() - normaliser

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, ids, normaliser = ctx.saved_tensors
        if torch.is_grad_enabled():  # a second derivative is needed: by operations that torch differentiates
            return _gradient(logits, ids, logits.float().logsumexp(dim=-1), gradient), None
        logit_gradient = torch.empty_like(logits)
        for rows in _slices(logits):
            logit_gradient[rows] = _gradient(logits[rows], ids[rows], normaliser[rows], gradient[rows])
        return logit_gradient, None


def _gradient(logits: Tensor, ids: Tensor, normaliser: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of the logits (rows, vocabulary), in their dtype, from that of the log-probabilities (rows,)."""
    softmax = (logits.float() - normaliser[:, None]).exp() * -gradient[:, None]
    return softmax.scatter_add(-1, ids[:, None], gradient[:, None]).to(logits.dtype)


def _slices(logits: Tensor) -> Iterator[slice]:
    """Slices of rows whose logits fit into a CPU's cache; a single one on other devices."""
    rows, vocabulary = logits.shape
    step = max(1, _CACHED_CELLS // max(1, vocabulary)) if logits.device.type == "cpu" else max(1, rows)
    return (slice(start, start + step) for start in range(0, max(1, rows), step))


def token_log_probs(model: nn.Module, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """`log_probs_of_next` from ids and mask (batch, time), right-padded; differentiable."""
    hidden = hidden_states(model, input_ids, attention_mask)
    return log_probs_of_next(model, hidden, input_ids, attention_mask)


def without_bos(ids: Sequence[int], bos_id: int | None) -> Sequence[int]:
    """The tokens of a text without its leading BOS."""
    return ids[1:] if ids and ids[0] == bos_id else ids


class Window(NamedTuple):
    """Token ids that a model reads together, of which those from index `start` on are scored."""

    ids: tuple[int, ...]
    start: int = 1

    @property
    def scored(self) -> int:
        """The number of tokens that are scored."""
        return max(0, len(self.ids) - self.start)


def windows(ids: Sequence[int], *, context: int, bos_id: int | None, prompt: int = 0) -> list[Window]:
    """A text's tokens (without BOS) cut into consecutive windows of at most `context`, each beginning with BOS.

    Every text token is scored exactly once, as a token after the first of a window
    (docs/explanation/methods.md#perplexity). If the text begins with a BOS, that is the BOS of its first window.
    Without a BOS, each window begins with the last token of the one before, and only the text's first token stays
    unscored. The first `prompt` tokens are not scored. The last of them are read: as many as fit into the first window
    with the rest, or half a window if the rest is longer. An empty text has no window. Raises InvalidParameter for a
    context below 2.
    """
    if context < 2:
        raise InvalidParameter(f"A context of {context} tokens leaves nothing to predict.", param="context")
    step, bos = context - 1, () if bos_id is None else (bos_id,)
    text = ids if bos_id is None else without_bos(ids, bos_id)
    prompt -= len(ids) - len(text)
    if prompt > 0:
        room, answer = context - len(bos), len(text) - prompt
        read_prompt = min(prompt, room - answer if answer < room else room // 2)
        text, prompt = text[prompt - read_prompt :], read_prompt
    end = len(text) if bos else max(len(text) - 1, min(len(text), 1))
    return [
        Window((*bos, *text[first : first + step + (not bos)]), max(1, prompt - first + len(bos)))
        for first in range(0, end, step)
    ]


def batches(lengths: Sequence[int], *, max_tokens: int) -> list[list[int]]:
    """Indices grouped by similar length so that rows times longest <= `max_tokens`; longest first.

    A row longer than `max_tokens` is a batch of its own.
    """
    grouped: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if not grouped or (len(grouped[-1]) + 1) * longest > max_tokens:
            grouped.append([])
            longest = lengths[index]
        grouped[-1].append(index)
    return grouped


def padded(rows: Sequence[Sequence[int]], *, pad_id: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Ids and attention mask (rows, longest), int64, padded on the right."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[pad_id] * (longest - len(row))] for row in rows], device=device)
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows], device=device)
    return ids, mask


def text_scores(texts: Sequence[Passage], cut: Sequence[Sequence[Window]], nll: Sequence[float]) -> list[PassageScore]:
    """The score of each text: `cut` has its windows, `nll` (nats) that of each window of all texts in their order.

    Raises InvalidWeights for a score that is not a finite number.
    """
    window_nll = iter(nll)
    totals = [sum(next(window_nll) for _ in windows) for windows in cut]
    for number, total in enumerate(totals, 1):
        if not math.isfinite(total):
            raise InvalidWeights(
                f"The score of text {number} is not finite: values of the model, or of an adapter on it, overflow."
            )
    return [
        PassageScore(
            nll=total,
            tokens=scored_tokens(windows),
            bytes=len(scored_text(text).encode()),
            windows=len(windows),
        )
        for text, windows, total in zip(texts, cut, totals, strict=True)
    ]


def scored_tokens(windows: Sequence[Window]) -> int:
    """The number of tokens scored in a text's windows."""
    return sum(window.scored for window in windows)


def scored_log_probs(model: nn.Module, windows: Sequence[Window], *, pad_id: int) -> Tensor:
    """`token_log_probs` of windows (windows, longest - 1), 0 where a token is padding or not scored; differentiable."""
    device = next(model.parameters()).device
    ids, mask = padded([window.ids for window in windows], pad_id=pad_id, device=device)
    starts = torch.tensor([[window.start] for window in windows], device=device)
    scored = mask * (torch.arange(ids.shape[1], device=device) >= starts)
    return log_probs_of_next(model, hidden_states(model, ids, mask), ids, scored)


@torch.inference_mode()
def score_windows(model: nn.Module, windows: Sequence[Window], *, max_tokens: int, pad_id: int) -> list[float]:
    """NLL in nats of each window, summed over its scored tokens; batches of about `max_tokens`."""
    scores = [0.0] * len(windows)
    todo = [index for index, window in enumerate(windows) if window.scored > 0]
    for batch in batches([len(windows[index].ids) for index in todo], max_tokens=max_tokens):
        rows = [todo[index] for index in batch]
        sums = scored_log_probs(model, [windows[index] for index in rows], pad_id=pad_id).double().sum(dim=1)
        for index, total in zip(rows, sums.tolist(), strict=True):
            scores[index] = -total
    return scores
