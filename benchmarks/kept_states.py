"""Three ways to keep the keys and values that new tokens attend to: rows of a slab, rows one by one, gathered blocks.

The engine keeps them in slabs (docs/decisions/0029): the newest tokens of all rows attend in one call over a view. Held
against a call for each row, and against blocks of 16 positions that have to be gathered into a tensor for torch's
kernel. Sizes are those of one layer of SmolLM2-135M (9 heads, 3 of keys and values, 64 wide), on the CPU in fp32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.report import Result, interleaved, options, ratios, repeated
from registry.errors import Internal

HEADS, KEPT, SIZE, BLOCK = 9, 3, 64, 16
SHAPES = ((16, 128), (16, 512), (64, 128), (64, 512))
CALLS = 20
"""Calls of one measurement."""


def ways(rows: int, positions: int) -> dict[str, Callable[[], Tensor]]:
    """Attention of one new token of each row over `positions` kept ones, (rows, heads, size), every way."""
    draw = torch.Generator().manual_seed(0)
    query = torch.randn(rows, KEPT, HEADS // KEPT, SIZE, generator=draw)
    kept = torch.randn(2, rows, KEPT, 2 * positions, SIZE, generator=draw)
    table = torch.randperm(rows * positions // BLOCK, generator=draw)
    blocks = torch.empty(2, len(table), KEPT, BLOCK, SIZE)
    cut = kept[:, :, :, :positions].reshape(2, rows, KEPT, -1, BLOCK, SIZE)
    blocks[:, table] = cut.transpose(2, 3).flatten(1, 2)
    attend = F.scaled_dot_product_attention

    def slab() -> Tensor:
        return attend(query, kept[0, :, :, :positions], kept[1, :, :, :positions])

    def one_by_one() -> Tensor:
        seen = kept[:, :, :, :positions]
        return torch.cat([attend(query[i : i + 1], seen[0, i : i + 1], seen[1, i : i + 1]) for i in range(rows)])

    def gathered() -> Tensor:
        keys, values = blocks[:, table].view(2, rows, -1, KEPT, BLOCK, SIZE).transpose(2, 3).flatten(3, 4)
        return attend(query, keys, values)

    return {"slab": slab, "one_by_one": one_by_one, "gathered": gathered}


@torch.inference_mode()
def run(*, shapes: tuple[tuple[int, int], ...] = SHAPES, repeats: int) -> Result:
    """Every way for every shape, in turn."""
    result = Result("kept_states")
    for rows, positions in shapes:
        calls = ways(rows, positions)
        for name, call in calls.items():
            if not torch.allclose(call(), calls["slab"](), atol=1e-5):
                raise Internal(f"{name} attends to something else")
        times = interleaved({name: partial(_often, call) for name, call in calls.items()}, repeats=repeats)
        for name, seconds in times.items():
            each = 1000 * median(seconds) / CALLS
            result.rows.append({"rows": rows, "positions": positions, "way": name, "wall_ms": each})
        for name in ("one_by_one", "gathered"):
            found = repeated(ratios(times[name], times["slab"]), "ratio", note="time; one layer")
            result.figures[f"{name}_over_slab_{rows}_{positions}"] = found
    return result


def _often(call: Callable[[], Tensor]) -> None:
    for _ in range(CALLS):
        call()


def main() -> None:
    """The command line."""
    given = options(__doc__).parse_args()
    run(repeats=given.repeats).finish(given.out)


if __name__ == "__main__":
    main()
