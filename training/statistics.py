"""Statistics of an adapter on its own sample, for the mixing methods that weigh by them (`spec.weighing`).

`fisher` is the diagonal Fisher information of every value, the mean over tokens of E[(d log p(y | x) / d theta)^2] with
y drawn from the adapter's own prediction (Matena and Raffel, NeurIPS 2022, section 3). Tokens that are drawn
independently of each other have scores of mean zero. So the square of a passage's summed gradient has the expectation
of the sum of the squares, and one backward pass per passage is enough. The text's own tokens do not have this property.

`inputs` are the second moments of what each projection reads, the mean of x x^T over tokens (RegMean). Each passage is
a pass of its own, without padding; the base is as it was afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from registry.adapters import AdapterModule, attached, from_tensors
from registry.adapters.loadable import Tensors
from registry.adapters.moments import measured_weights, packed
from registry.base_model import LoadedBase
from registry.base_model.likelihood import Window, hidden_states, lm_logits, log_probs_of, logit_slices
from registry.errors import InvalidSample
from registry.progress import Progress, silent
from registry.spec import MeasuredStatistic, StatisticRequest, StoredAdapter
from training.passages import rows_of, tokens_of

Load = Callable[[StoredAdapter], Tensors]
Keep = Callable[[Mapping[str, Tensor]], str]
"""Stores tensors and returns the digest of their blob."""


def measure(
    base: LoadedBase, request: StatisticRequest, load: Load, keep: Keep, *, progress: Progress = silent
) -> MeasuredStatistic:
    """Compute a statistic and store it with `keep`.

    Raises InvalidSample for texts without a token to predict, Incompatible for an adapter of another base, and what
    `load`, `keep` and `progress` raise.
    """
    config = request.adapter.config
    max_tokens = min(request.max_tokens, base.shape.context - config.prefix_length)
    rows = [row for row in rows_of(base, request.texts, max_tokens=max_tokens) if row.scored]
    adapter = from_tensors(config, base.shape, load(request.adapter)).to(base.model.device)
    with attached(base.model, adapter):
        compute = _fisher if request.kind == "fisher" else _inputs
        statistic = compute(base, adapter, _reported(rows, progress), request.seed)
    broken = sorted(name for name, tensor in statistic.items() if not torch.isfinite(tensor).all())
    if broken:
        raise _no_numbers(broken[0])
    return MeasuredStatistic(blob=keep(statistic), passages=len(rows), tokens=tokens_of(rows))


def _no_numbers(place: str) -> InvalidSample:
    return InvalidSample(
        f"On its own sample an ingredient gives NaN or infinity at {place}: leave it out.", param="recipe"
    )


def _reported(rows: Sequence[Window], progress: Progress) -> Iterator[Window]:
    """Iterate over the rows, reporting progress before each; `progress` may raise."""
    for number, row in enumerate(rows):
        progress(number, len(rows), "computing the statistics")
        yield row


def _fisher(base: LoadedBase, adapter: AdapterModule, rows: Iterator[Window], seed: int) -> dict[str, Tensor]:
    """The diagonal Fisher information of one token by tensor name, fp32."""
    values = dict(adapter.named_parameters())
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in values.items()}
    generator = torch.Generator().manual_seed(seed)
    tokens = 0
    for value in values.values():
        value.requires_grad_()
    for row in rows:
        ids = torch.tensor([row.ids], device=base.model.device)
        states = hidden_states(base.model, ids, torch.ones_like(ids))[0, row.start - 1 : -1]
        if not torch.isfinite(states).all():  # nothing can be drawn from them
            raise _no_numbers("the last hidden state")
        log_probs = log_probs_of(base.model, states, drawn(base, states.detach(), generator))
        for name, gradient in zip(values, torch.autograd.grad(log_probs.sum(), list(values.values())), strict=True):
            sums[name] += gradient.double().square()
        tokens += row.scored
    return {name: (total / tokens).to("cpu", torch.float32) for name, total in sums.items()}


@torch.no_grad()
def drawn(base: LoadedBase, states: Tensor, generator: torch.Generator) -> Tensor:
    """Sample a token from the model's prediction at each of these last hidden states (rows, hidden): (rows,)."""
    tokens = []
    for chunk in logit_slices(len(states)):
        probabilities = lm_logits(base.model, states[chunk]).float().softmax(-1).cpu()
        tokens.append(torch.multinomial(probabilities, 1, generator=generator)[:, 0])
    return torch.cat(tokens).to(states.device)


def _inputs(base: LoadedBase, adapter: AdapterModule, rows: Iterator[Window], _seed: int) -> dict[str, Tensor]:
    """Second moments of inputs, packed, by the name of the projection's weight; without a LoRA's B (never used)."""
    tensors = dict(adapter.named_parameters())
    watch = _Watch({name: tensors[name] for name in measured_weights(adapter.config, tensors)})
    head = base.model.get_output_embeddings()
    edits_output = any(module is head for module, _ in adapter.edits(base.model))
    with torch.inference_mode(), watch:
        for row in rows:
            ids = torch.tensor([row.ids], device=base.model.device)
            states = hidden_states(base.model, ids, torch.ones_like(ids))[0]
            for chunk in logit_slices(len(states)) if edits_output else ():
                lm_logits(base.model, states[chunk])
    return {name: packed(watch.sums.pop(name) / tokens) for name, tokens in watch.tokens.items()}


class _Watch(TorchFunctionMode):
    """While entered, sums x x^T over the inputs of the linear layers with these weights, in double precision."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(weight): name for name, weight in weights.items()}
        size = {name: weight.shape[1] for name, weight in weights.items()}
        self.sums = {name: torch.zeros(n, n, dtype=torch.float64) for name, n in size.items()}
        self.tokens = dict.fromkeys(weights, 0)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Add the input of a watched linear layer, then call `func`."""
        name = self._names.get(id(args[1])) if func is F.linear else None
        if name is not None:
            inputs = args[0].detach().reshape(-1, args[0].shape[-1]).double()
            self.sums[name] += (inputs.T @ inputs).cpu()
            self.tokens[name] += len(inputs)
        return func(*args, **(kwargs or {}))
