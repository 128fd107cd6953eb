"""Check, read, write, hash and scale the tensors of adapters.

Called by `push` (files of clients), `cook` and the trainer (files of the server). A blob's digest covers the file's
bytes, an adapter's digest its content (base, configuration, tensors), whatever the file's layout and metadata.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import safetensors.torch
import torch
from torch import Tensor

from registry.adapters import expected_tensors, tensor_problems
from registry.adapters.masks import is_mask, mask_problems, without_masks
from registry.errors import Incompatible, Internal, InvalidWeights, more_problems
from registry.names import canonical_json
from registry.spec import AdapterConfig, BaseShape
from registry.tensor_file import MAX_PROBLEMS, Header, canonical_order, parse, refuse, write

DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MASK_DTYPE = "U8"


@dataclass(frozen=True)
class CheckedWeights:
    """The content of a checked file: the adapter's digest, dtype, number of parameters, and length in bytes.

    Without `has_effect` all values that its output is proportional to are zero.
    """

    digest: str
    dtype: str
    parameters: int
    bytes: int
    has_effect: bool


def check_weights(data: bytes, config: AdapterConfig, shape: BaseShape, *, max_bytes: int) -> CheckedWeights:
    """Check a weights file against its configuration and base.

    Raises TooLarge. Raises InvalidWeights unless the file is valid safetensors of one dtype among F32, F16 and BF16,
    with finite values and the masks that `config` describes. Raises Incompatible if only names or shapes differ from
    those of `config` on this base. `problems` has all of them either way; where names and shapes alone fill it, no
    value is read.
    """
    header = parse(data, max_bytes=max_bytes)
    fit = tensor_problems(expected_tensors(config, shape), {n: entry.shape for n, entry in header.entries.items()})
    broken, tensors = _dtype_problems(header), dict[str, Tensor]()
    if not broken and len(fit) < MAX_PROBLEMS:
        tensors = _read(data)
        broken = _value_problems(tensors) or ([] if fit else mask_problems(config, tensors))
    if broken:
        raise refuse("weights", [*broken, *fit])
    if fit:
        refused = refuse("weights", fit)
        raise Incompatible(
            f"The weights are not those of this configuration's {config.method} adapter on this base: "
            f"{fit[0].rstrip('.')}{more_problems(len(fit))}.",
            param="weights",
            problems=refused.problems,
        )
    digest = adapter_digest(shape.fingerprint, config, tensors)
    parameters = count_parameters(config, tensors)
    return CheckedWeights(digest, dtype_of(tensors), parameters, len(data), _has_effect(config, tensors))


def _has_effect(config: AdapterConfig, tensors: Mapping[str, Tensor]) -> bool:
    if not config.scalable or config.same_tensors is not None or config.head is not None:
        return True
    return any(bool(tensor.any()) for name, tensor in tensors.items() if name.endswith(config.scaled_tensors))


def dtype_of(tensors: Mapping[str, Tensor]) -> str:
    """The one dtype of an adapter's tensors, masks aside, as safetensors names it: F32, F16 or BF16."""
    return _DTYPE_NAMES[next(iter(without_masks(tensors).values())).dtype]


def count_parameters(config: AdapterConfig, tensors: Mapping[str, Tensor]) -> int:
    """The number of values of an adapter's tensors, without masks and without entries that are pruned."""
    stored = sum(tensor.numel() for tensor in without_masks(tensors).values())
    return stored - sum(pruned.masked for pruned in config.prunings().values())


def size_in_bytes(tensors: Mapping[str, Tensor]) -> int:
    """The bytes of an adapter's values in memory."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _dtype_problems(header: Header) -> list[str]:
    dtypes = {name: entry.dtype for name, entry in header.entries.items() if not is_mask(name)}
    problems = [f"Tensor {n[:80]!r} is {d}; F32, F16 and BF16 are read." for n, d in dtypes.items() if d not in DTYPES]
    problems += [
        f"Tensor {name[:80]!r} is {entry.dtype}; masks are read as {_MASK_DTYPE}."
        for name, entry in header.entries.items()
        if is_mask(name) and entry.dtype != _MASK_DTYPE
    ]
    if len(set(dtypes.values())) > 1:
        problems.append(
            f"Its tensors are of several dtypes ({', '.join(sorted(set(dtypes.values())))}): store them in one."
        )
    return problems


def _value_problems(tensors: Mapping[str, Tensor]) -> list[str]:
    problems = []
    for name in canonical_order(without_masks(tensors)):
        bad = int((~torch.isfinite(tensors[name])).sum())
        if bad:
            problems.append(f"Tensor {name[:80]!r} holds {bad} values that are NaN or infinite.")
    return problems


def _read(data: bytes) -> dict[str, Tensor]:
    try:
        return dict(safetensors.torch.load(data))
    except safetensors.SafetensorError as problem:  # stricter than our own reading somewhere
        raise refuse("weights", [str(problem)[:200]]) from None


def load_tensors(data: bytes) -> dict[str, Tensor]:
    """The tensors of a weights file on the CPU in their stored dtype, in canonical order; raises InvalidWeights."""
    header = parse(data, max_bytes=len(data))
    problems = _dtype_problems(header)
    if problems:
        raise refuse("weights", problems)
    tensors = _read(data)
    return {name: tensors[name] for name in canonical_order(tensors)}


def save_tensors(tensors: Mapping[str, Tensor], *, metadata: dict[str, str] | None = None) -> bytes:
    """A safetensors file in canonical order, byte for byte the same for the same tensors and metadata.

    Raises InvalidWeights for a dtype other than fp32, fp16 and bf16, and for masks other than uint8.
    """
    return write(
        (
            (name, _dtype_name(name, tensors[name]), tuple(tensors[name].shape), _bytes(tensors[name]))
            for name in canonical_order(tensors)
        ),
        metadata,
    )


def save_unique(tensors: Mapping[str, Tensor]) -> bytes:
    """A file of tensors with bytes of its own, to hand from one process to another.

    Its blob can be deleted afterwards, because no other file has the same digest.
    """
    return save_tensors(tensors, metadata={"passing": uuid.uuid4().hex})


def _dtype_name(name: str, tensor: Tensor) -> str:
    if is_mask(name):
        if tensor.dtype != torch.uint8:
            raise InvalidWeights(f"Masks are stored as uint8, not {tensor.dtype}.", param="weights")
        return _MASK_DTYPE
    dtype = _DTYPE_NAMES.get(tensor.dtype)
    if dtype is None:
        raise InvalidWeights(f"Adapters are stored as fp32, fp16 or bf16, not {tensor.dtype}.", param="weights")
    return dtype


def _bytes(tensor: Tensor) -> bytes:
    """Row-major little-endian bytes."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def adapter_digest(base_fingerprint: str, config: AdapterConfig, tensors: Mapping[str, Tensor]) -> str:
    """The digest that a `sha256:` ref names: base, configuration and tensors in their stored dtype.

    Independent of the order in which tensors come, of the file's layout and of its metadata; any changed bit of
    any tensor changes it.
    """
    about = {"kind": "adapter", "base_fingerprint": base_fingerprint, "config": config.identity()}
    return _hash(about, tensors)


def init_hash(tensors: Mapping[str, Tensor]) -> str:
    """Hash of all trainable tensors at step 0 as fp32, in canonical order, LayerNorms and biases included.

    Adapters whose hashes are equal started from the same point and may be averaged (AdapterSoup, appendix A.1).
    Computed before pruning, so that a sparse adapter has the hash of the dense one; raises Internal for pruned
    tensors.
    """
    if any(map(is_mask, tensors)):
        raise Internal("An initialisation was hashed after pruning.")
    return _hash({"kind": "init"}, {name: tensor.to(torch.float32) for name, tensor in tensors.items()})


def _hash(about: Mapping[str, object], tensors: Mapping[str, Tensor]) -> str:
    """sha256 over a line of canonical JSON that fixes every length, then the bytes of the tensors."""
    names = canonical_order(tensors)
    table = [[name, _dtype_name(name, tensors[name]), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(canonical_json({**about, "tensors": table}) + b"\n")
    for name in names:
        digest.update(_bytes(tensors[name]))
    return "sha256:" + digest.hexdigest()


def scale_output(tensors: Mapping[str, Tensor], config: AdapterConfig, scale: float) -> dict[str, Tensor]:
    """The adapter whose output is `scale` times as large: U and b_U, or B, are multiplied in fp32."""
    factor = torch.tensor(scale, dtype=torch.float32)
    return {
        name: (tensor.to(torch.float32) * factor).to(tensor.dtype) if name.endswith(config.scaled_tensors) else tensor
        for name, tensor in tensors.items()
    }
