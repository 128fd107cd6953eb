"""The speed of scoring texts, compared with a plain forward pass and with a simple script.

- `score_vs_forward`: tokens per second of the engine on blocks of equal length over those of the model alone, called on
  the same blocks in batches as large as the engine's steps; it stops at the logits, the engine gives likelihoods.
- `score_vs_evaluate`: the engine on passages in the order of their file over the loop of Hugging Face's `evaluate`
  (its metric `perplexity`): 16 texts at a time, padded, cross entropy over all logits.

Rows are random token ids. All ways run in turn in each repeat, on other rows each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

import torch
from torch import Tensor, nn

from benchmarks.report import Result, interleaved, options, ratios, repeated
from benchmarks.subjects import CONTEXT, CopiedBases, Window, about, base_options, chosen_base, passages, rows_of
from registry.base_model import LoadedBase
from registry.base_model.likelihood import padded
from registry.errors import Internal
from service.engine import EngineLimits, ScoreRequest
from service.engine.engine import Engine

STEP_TOKENS = 2048
BATCH = 16
"""Texts at a time, `evaluate`'s default."""
GOALS = {"score_vs_forward": (0.95, 1.0), "score_vs_evaluate": (1.3, 1.6)}
TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2}
"""Of a row's nats: by how much two ways of computing the same may differ."""

Nats = Sequence[float]


@dataclass
class Setting:
    """A base model, an engine that has it, blocks of one length and passages of many."""

    base: LoadedBase
    engine: Engine
    count: int
    blocks: list[Window] = field(default_factory=list)
    texts: list[Window] = field(default_factory=list)

    def redraw(self, seed: int) -> None:
        """Other rows, with about as many tokens in the blocks as in the passages."""
        length = min(CONTEXT, self.base.shape.context)
        self.blocks = rows_of(self.base, rows=max(1, self.count // 2), length=length, seed=seed)
        self.texts = passages(self.base, rows=self.count, seed=seed)

    def by_engine(self, rows: Sequence[Window]) -> Nats:
        """NLL of each row from the engine, waiting for the answer."""
        ticket = self.engine.submit(ScoreRequest(self.base.entry.id, tuple(rows)))
        while self.engine.step():  # in this thread, as the others (`interleaved`)
            pass
        return list(ticket.result().nll)

    @torch.inference_mode()
    def forward(self) -> list[Tensor]:
        """Logits of the blocks, batch by batch; nothing of them is kept, so as not to time the allocator."""
        step = max(1, STEP_TOKENS // len(self.blocks[0]))
        last_logits: list[Tensor] = []
        for start in range(0, len(self.blocks), step):
            logits: Tensor = self.base.model(input_ids=torch.tensor(self.blocks[start : start + step])).logits
            last_logits.append(logits[:, -1].clone())
        return last_logits

    @torch.inference_mode()
    def evaluate(self, rows: Sequence[Window]) -> Nats:
        """NLL of each row as the metric computes it."""
        nlls: list[float] = []
        loss = nn.CrossEntropyLoss(reduction="none")
        for start in range(0, len(rows), BATCH):
            ids, mask = padded(rows[start : start + BATCH], pad_id=0)
            logits: Tensor = self.base.model(ids, attention_mask=mask).logits
            shifted, labels = logits[..., :-1, :].contiguous(), ids[..., 1:].contiguous()
            nlls += (loss(shifted.transpose(1, 2), labels) * mask[..., 1:]).sum(1).tolist()
        return nlls


def run(base: LoadedBase, *, rows: int, repeats: int) -> Result:
    """Every way, in turn."""
    setting = Setting(base, Engine(CopiedBases({base.entry.id: base}), EngineLimits(max_step_tokens=STEP_TOKENS)), rows)
    setting.redraw(0)
    check(setting)
    calls: dict[str, Callable[[], object]] = {
        "blocks": lambda: setting.by_engine(setting.blocks),
        "forward": setting.forward,
        "passages": lambda: setting.by_engine(setting.texts),
        "evaluate": lambda: setting.evaluate(setting.texts),
    }
    tokens: list[int] = []

    def redraw(repeat: int) -> None:
        setting.redraw(repeat + 1)
        tokens.append(sum(map(len, setting.texts)))

    times = interleaved(calls, repeats=repeats, before_repeat=redraw)
    return _result(setting, times, tokens)


def check(setting: Setting) -> None:
    """Check that the engine and the script compute the same; raises Internal."""
    for rows in (setting.blocks, setting.texts):
        check_nats(setting.by_engine(rows), setting.evaluate(rows), setting.base.entry.dtype)


def check_nats(rows: Nats, references: Nats, dtype: str) -> None:
    """Raise Internal if two ways of computing the same NLLs differ."""
    for nll, reference in zip(rows, references, strict=True):
        if abs(nll - reference) > TOLERANCE[dtype] * reference:
            raise Internal(f"a row has {nll} nats by one way and {reference} by the other")


def _result(setting: Setting, times: dict[str, list[float]], tokens: Sequence[int]) -> Result:
    result = Result()
    blocks = [sum(map(len, setting.blocks))] * len(tokens)
    for way, wall_seconds in times.items():
        counts = blocks if way in ("blocks", "forward") else tokens
        rates = [count / duration for count, duration in zip(counts, wall_seconds, strict=True)]
        result.figures[f"{way}_tokens_per_s"] = repeated(rates, "tokens/s")
        result.rows.append(
            {**about(setting.base), "way": way, "wall_s": median(wall_seconds), "tokens_per_s": median(rates)}
        )
    for figure, theirs, ours in (
        ("score_vs_forward", "forward", "blocks"),
        ("score_vs_evaluate", "evaluate", "passages"),
    ):
        goal, stretch = GOALS[figure]
        speed_ratios = ratios(times[theirs], times[ours])
        result.figures[figure] = repeated(speed_ratios, "ratio", goal=goal, stretch=stretch, note="tokens/s")
    return result


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    base_options(parser)
    parser.add_argument("--rows", type=int, default=64, help="passages to score, and half as many blocks")
    arguments = parser.parse_args()
    run(chosen_base(arguments.base_folder, arguments.dtype), rows=arguments.rows, repeats=arguments.repeats).finish(
        arguments.out
    )


if __name__ == "__main__":
    main()
