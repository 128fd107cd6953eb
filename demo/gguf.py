"""A GGUF file of a Llama as an ordinary model folder: bf16 safetensors, configuration, tokenizer and chat template."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from demo.server import DemoFailed

ARCHITECTURES = {"llama": "LlamaForCausalLM"}
"""What is converted: `general.architecture` of the file -> the class of transformers that loads the folder."""


def convert(source: Path, folder: Path) -> None:
    """Write the model in `source` as `folder`, all at once.

    Raises DemoFailed for a file that is no GGUF or holds another architecture, and where the folder cannot be written.
    """
    architecture = _architecture(source)
    if architecture not in ARCHITECTURES:
        raise DemoFailed(f"{source} holds a model of architecture {architecture!r}; only Llama models are converted.")
    beside = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(beside, ignore_errors=True)  # of a run that was killed
    try:
        beside.mkdir(parents=True)
        _write(source, beside, ARCHITECTURES[architecture])
        beside.replace(folder)
    except (OSError, SafetensorError) as problem:
        raise DemoFailed(f"{source} could not be unpacked into {folder}: {problem}") from problem
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _architecture(source: Path) -> str:
    """`general.architecture` of a GGUF file; raises DemoFailed for a file that cannot be read as one."""
    from gguf import GGUFReader

    try:
        field = GGUFReader(source).get_field("general.architecture")
    except (ValueError, IndexError, KeyError, OSError) as problem:
        raise DemoFailed(f"{source} is no whole GGUF file: {problem}.") from None
    return str(field.contents()) if field is not None else "none"


def _write(source: Path, folder: Path, architecture: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32,
        quantization_config=GgufConfig(gguf_file=source.name, dequantize=True),
    )  # fmt: skip
    config = model.config
    config.architectures = [architecture]  # the GGUF configuration has none
    for name in ("quantization_config", "_model_name_or_path"):  # neither is true of the unpacked weights
        if hasattr(config, name):
            delattr(config, name)
    model.to(torch.bfloat16).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
