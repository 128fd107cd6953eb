"""The cost of selection in large pools (a fit, one more adapter, a selection), and of recompressing a LoRA soup.

Pools are Gaussian domains of 100 embeddings with 576 dimensions; `posterior` first, then `cosine`.

- `fit_growth_<kind>`: exponent of the time of a whole fit from the small to the large pool; 1 is linear.
- `add_one_<kind>_s`: from one more adapter's embeddings to a state that can select, in the large pool.
- `remove_one_<kind>_s`: the same for one that goes.
- `select_<kind>_ms`: from a sample's 100 embeddings to the selection, in the large pool, the selector being in memory.
- `lora_svd_vs_peft`: PEFT's `svd` of a LoRA soup over our `recompress`, on the linear modules of SmolLM2's layers;
  both find the nearest update of the rank, which is checked.
"""

from __future__ import annotations

import gc
import hashlib
import math
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.peft_mixing import PeftMixer, error, mixed, parts_of, updates
from benchmarks.report import Result, interleaved, options, ratios, repeated, run_parts
from demo.results import Figure
from registry.base_model.architecture import shape_from
from registry.errors import Internal
from registry.names import sha256_digest
from registry.selectors import SELECTORS
from registry.selectors.contract import Domain
from registry.selectors.state import dump_state
from registry.selectors.updating import proof_members
from registry.spec import CosineSpec, LoraConfig, LoraModule, PosteriorSpec, RecompressMixing

POOLS = (1_000, 10_000)
UNITS, DIMENSIONS = 100, 576
SPECS: Mapping[str, Any] = {"posterior": PosteriorSpec(), "cosine": CosineSpec(encoder="base")}
LAYERS, RANK, WEIGHTS, SAME = 30, 8, (0.3, 0.25, 0.2, 0.15, 0.1), 1e-4
APART = 0.7
"""Standard deviation of the domains' centres, where that of a domain's units is 1."""


def gaussian_domain(number: int, *, units: int = UNITS, dimensions: int = DIMENSIONS) -> Domain:
    """The domain of this number; the same number, the same vectors."""
    draw = np.random.default_rng(number)
    centre = APART * draw.standard_normal(dimensions, dtype=np.float32)
    vectors = centre + draw.standard_normal((units, dimensions), dtype=np.float32)
    digest = "sha256:" + hashlib.sha256(str(number).encode()).hexdigest()
    return Domain(ref=f"team/a{number}@1", digest=digest, domain=f"a{number:06}", vectors=vectors)


def measure_pools(
    result: Result, *, pools: Sequence[int], units: int, dimensions: int, repeats: int, specs: Mapping[str, Any] = SPECS
) -> None:
    """Fits at each size, and at the largest what changes and what a selection takes."""
    domains = [gaussian_domain(number, units=units, dimensions=dimensions) for number in range(max(pools) + 1)]
    *every, new = domains
    for kind, spec in specs.items():
        times: dict[int, float] = {}
        selector: Any = None
        for size in sorted(pools):
            selector = None  # the smaller pool's is not to count in the peak
            gc.collect()
            began = time.perf_counter()
            selector = SELECTORS[kind](spec).fit(every[:size])
            times[size] = time.perf_counter() - began
            row = {"selector": kind, "adapters": size, "fit_s": times[size], "peak_gib": _peak_gib()}
            result.rows.append(row | {"held_out_accuracy": selector.report_["held_out_accuracy"]})
        _growth(result, kind, times)
        _changes(result, kind, selector, new, every, repeats)


def _growth(result: Result, kind: str, times: Mapping[int, float]) -> None:
    small, large = min(times), max(times)
    exponent = math.log(times[large] / times[small]) / math.log(large / small)
    note = f"from {small} to {large} adapters; {times[small]:.3g} s and {times[large]:.3g} s, once each"
    result.figures[f"fit_growth_{kind}"] = Figure(exponent, "exponent", 1.2, note=note)


def _changes(result: Result, kind: str, selector: Any, new: Domain, every: Sequence[Domain], repeats: int) -> None:
    """One more, one less, one selection."""
    proved_on = {selector.members_[number].digest for number in proof_members(selector.members_)}
    free = [one for one in every if one.digest not in proved_on]
    if not free:
        raise Internal(f"{len(every)} domains are a small pool, where every change is a whole fit")
    old = free[0]

    def change(added: Sequence[Domain], removed: Sequence[Domain]) -> int:
        updated = selector.updated(added, removed)
        if updated is None:
            raise Internal("the pool was to be updated, and a whole fit is due")
        return len(dump_state(*updated.to_state()))

    sample = np.concatenate([every[0].vectors[:60], every[1].vectors[:40]])
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: change([new], []),
        "remove": lambda: change([], [old]),
        "select": lambda: selector.rank(sample).selection(),
    }
    times = interleaved(calls, repeats=repeats)
    result.figures[f"add_one_{kind}_s"] = repeated(times["add"], "s", goal=1.0, note="the state's bytes included")
    result.figures[f"remove_one_{kind}_s"] = repeated(times["remove"], "s")
    result.figures[f"select_{kind}_ms"] = repeated([1000 * one for one in times["select"]], "ms", goal=20.0)
    result.figures[f"state_{kind}_mib"] = Figure(change([new], []) / 2**20, "MiB")
    result.figures[f"peak_{kind}_gib"] = Figure(
        _peak_gib(), "GiB", note="of the whole process until here; the embeddings of the pool are in it"
    )
    result.rows.append(
        {"selector": kind, "adapters": len(every), "add_one_s": median(times["add"]),
         "select_ms": 1000 * median(times["select"]), "domains": [selector.rank(sample).ranked[0].member.domain]}
    )  # fmt: skip


def _peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure_recompression(result: Result, *, layers: int = LAYERS, repeats: int) -> None:
    """A soup of LoRAs as narrow as one of them, by PEFT and by us; raises Internal where the two differ."""
    base: Any = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_attention_heads=9, num_key_value_heads=3,
        num_hidden_layers=layers, vocab_size=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    shape = shape_from(base, sha256_digest(b"selection"), "llama")
    config = LoraConfig.of({path: LoraModule(RANK, RANK) for path in shape.linears if ".layers." in path})
    drawn = parts_of(config, shape, WEIGHTS)
    loaded = [part.load() for part in drawn]  # in memory for both
    parts = [replace(part, load=partial(dict, tensors)) for part, tensors in zip(drawn, loaded, strict=True)]
    peft = PeftMixer(LlamaForCausalLM(base), config, loaded)
    theirs = partial(peft.mix, WEIGHTS, combination_type="svd", svd_rank=RANK)
    ours = partial(mixed, parts, RecompressMixing())
    times = interleaved({"peft": theirs, "ours": ours}, repeats=repeats)
    soup, tensors = ours()
    apart = error(updates(soup, tensors, 1.0), peft.updates())
    if apart > SAME:
        raise Internal(f"ours and PEFT's truncated soups differ by {apart:.2g} of their size")
    note = f"{len(WEIGHTS)} LoRAs of rank {RANK} on {len(config.modules())} modules; they differ by {apart:.1g}"
    result.figures["lora_svd_vs_peft"] = repeated(ratios(times["peft"], times["ours"]), "ratio", goal=50.0, note=note)
    result.rows.append(
        {"modules": len(config.modules()), **{f"{name}_s": median(found) for name, found in times.items()}}
    )


def parts(
    *,
    pools: Sequence[int] = POOLS,
    units: int = UNITS,
    dimensions: int = DIMENSIONS,
    layers: int = LAYERS,
    repeats: int,
) -> dict[str, Callable[[Result], None]]:
    """Everything, by the names that `--only` has for it."""
    return {
        "recompression": partial(measure_recompression, layers=layers, repeats=repeats),
        "pools": partial(measure_pools, pools=pools, units=units, dimensions=dimensions, repeats=repeats),
    }


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--only", nargs="+", choices=sorted(parts(repeats=1)), help="the other parts stay as they are")
    given = parser.parse_args()
    run_parts("selection", parts(repeats=given.repeats), only=given.only, out=given.out)


if __name__ == "__main__":
    main()
