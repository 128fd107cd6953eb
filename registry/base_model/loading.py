"""Load a base model of the allowlist, its text side alone, or only its shape and size.

Model code from the hub is never run, and weights are safetensors only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx2
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import XetDownloadError
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from registry.base_model.architecture import (
    count_parameters,
    shape_from,
    tokenizer_problem,
    usable_config,
    without_pooler,
)
from registry.base_model.build_lock import BUILDING, quiet
from registry.base_model.chat_template import generation_ends, turn_end, use_template
from registry.base_model.checks import check_loaded
from registry.base_model.fingerprint import CONFIG, TOKENIZER, check_unchanged, fingerprint
from registry.base_model.likelihood import without_bos
from registry.errors import InvalidParameter, SoupError, Unavailable
from registry.spec import BaseEntry, BaseKind, BaseShape, Passage, full_text

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_HUB_FILES = ["*.json", "model*.safetensors", "*.jinja", "*.txt", "*.model"]
_NOT_HUB_FILES = ["*/*"]  # other formats of the same weights lie in folders
LONG = 1000
"""Characters from which a text is tokenised as a batch of one: other threads run meanwhile, and no offsets are
computed. For a shorter text, waiting for the interpreter's lock again would cost more."""


def position_bytes(entry: BaseEntry, shape: BaseShape) -> int:
    """Bytes of the keys and values of one position in all layers of a base model."""
    heads, width = shape.kv or (1, shape.hidden_size)
    return shape.num_layers * 2 * heads * width * (4 if entry.dtype == "float32" else 2)


@dataclass(frozen=True, kw_only=True)
class BaseText:
    """The text side of a base model: its tokenizer and its shape, without weights.

    `bos_id` and `eos_id` are the tokenizer's, or None; of an encoder they are its CLS and SEP tokens. `end_ids` are
    special tokens besides the EOS that end a generated text, as its generation_config.json lists them; `turn_id` is
    the token that its chat template puts behind an answer.
    """

    entry: BaseEntry
    tokenizer: Any
    shape: BaseShape
    bos_id: int | None
    eos_id: int | None
    end_ids: tuple[int, ...] = ()
    turn_id: int | None = None

    def tokenize(self, text: str, *, bos: bool | None = None) -> list[int]:
        """Token ids of `text`, with the BOS in front if `bos` is True (default: the allowlist entry's setting).

        Text that begins with the BOS token gets no other, and nothing is truncated. Raises InvalidParameter
        for text that is not valid Unicode (lone surrogates), and for a special token without an embedding.
        """
        try:
            text.encode()
        except UnicodeEncodeError as problem:
            raise InvalidParameter(
                f"The text is not valid Unicode at character {problem.start}: a surrogate without its other half.",
                param="text",
            ) from None
        backend = self.tokenizer.backend_tokenizer
        if len(text) < LONG:
            encoding = backend.encode(text, add_special_tokens=False)
        else:
            [encoding] = backend.encode_batch_fast([text], add_special_tokens=False)
        ids = list(encoding.ids)
        self.check_embedded(ids)
        return self.with_bos(ids, bos=bos)

    def check_embedded(self, ids: list[int]) -> None:
        """Raise InvalidParameter for a token of a text that has no embedding."""
        highest = max(ids, default=0)
        if highest >= self.shape.vocab_size:
            token = self.tokenizer.convert_ids_to_tokens(highest)
            raise InvalidParameter(
                f"The text has the special token {token!r}, for which the base model has no embedding."
            )

    def tokenize_passage(self, passage: Passage) -> tuple[list[int], int]:
        """Token ids of a passage without a BOS, and how many of them, at the beginning, are those of its prompt.

        A token that holds the end of the prompt and the beginning of the answer is the answer's.
        """
        ids = self.tokenize(full_text(passage), bos=False)
        if isinstance(passage, str):
            return ids, 0
        prompt = self.tokenize(passage.prompt, bos=False)
        pairs = zip(ids, prompt, strict=False)
        return ids, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def with_bos(self, ids: list[int], *, bos: bool | None = None) -> list[int]:
        """Token ids of a text with the BOS in front as `tokenize` puts it: once, and only if `bos` is True."""
        has_bos = self.entry.bos if bos is None else bos
        return [self.bos_id, *without_bos(ids, self.bos_id)] if has_bos and self.bos_id is not None else ids


@dataclass(frozen=True, kw_only=True)
class LoadedBase(BaseText):
    """A frozen base model in eval mode with its tokenizer."""

    model: Any


def shape_of(entry: BaseEntry, cache_dir: Path | None = None) -> BaseShape:
    """The shape of a base model, read from its files; with a cached fingerprint the weights are not read either.

    Raises Unavailable where the files are missing or not what a base model needs.
    """
    return _shape(source_folder(entry), entry, cache_dir)


def load_text(entry: BaseEntry, *, cache_dir: Path | None = None) -> BaseText:
    """Tokenizer and shape of a base model, without its weights; raises Unavailable."""
    folder = source_folder(entry)
    shape = _shape(folder, entry, cache_dir)
    with _loading(entry):
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    first, last = tokenizer.bos_token_id, tokenizer.eos_token_id
    if entry.kind == "encoder":
        problem = tokenizer_problem(tokenizer)
        if problem is not None:
            raise Unavailable(f"Base model {entry.id!r} {problem}.")
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    use_template(tokenizer, entry)
    with _loading(entry):
        ends = generation_ends(folder, tokenizer)
    return BaseText(
        entry=entry,
        tokenizer=tokenizer,
        shape=shape,
        bos_id=first,
        eos_id=last,
        end_ids=ends,
        turn_id=turn_end(tokenizer),
    )


def load_base(entry: BaseEntry, *, cache_dir: Path | None = None, text: BaseText | None = None) -> LoadedBase:
    """The base model in eval mode, without gradients, on its device, checked on a few tokens; raises Unavailable.

    `cache_dir` caches fingerprints by the size and time of the files they were computed from. `text` is its text side
    where that is in memory; Unavailable is also raised if the files were replaced since it was read.
    """
    if text is None:
        text = load_text(entry, cache_dir=cache_dir)
    else:
        current = fingerprint(source_folder(entry), cache_dir=cache_dir)
        check_unchanged(entry, current, first=text.shape.fingerprint)
    with BUILDING, _loading(entry), quiet(reports=entry.kind == "causal"):
        model, report = _from_pretrained(source_folder(entry), entry)
        model.to(torch.device(entry.device)).eval().requires_grad_(False)
    if entry.kind == "causal":
        model.config.pad_token_id = None  # else transformers takes a BOS with this id for padding, and warns
    needed, missing = (text.bos_id, text.eos_id), sorted(report["missing_keys"])
    check_loaded(model, text.tokenizer, needed=needed, missing=missing, entry=entry)
    text_fields = {field.name: getattr(text, field.name) for field in fields(BaseText)}
    return LoadedBase(**text_fields, model=model)


@contextmanager
def _loading(entry: BaseEntry) -> Iterator[None]:
    """Turn an error of a library that loads files into an Unavailable that names the base model."""
    try:
        yield
    except SoupError:
        raise
    except Exception as problem:  # transformers, tokenizers and torch raise any error for damaged files or no GPU
        raise Unavailable(f"Base model {entry.id!r} cannot be loaded from {entry.source}: {problem}") from problem


def _from_pretrained(folder: Path, entry: BaseEntry) -> tuple[Any, dict[str, Any]]:
    """The model on the CPU, and transformers' report on missing and unexpected tensors."""
    builder: Any = AutoModelForCausalLM
    options: dict[str, Any] = {}
    if entry.kind == "encoder":
        config = usable_config(folder, entry)
        builder, options = AutoModel, {"config": config, **without_pooler(config)}
    model: Any = builder.from_pretrained(
        folder,
        **options,
        dtype=_DTYPES[entry.dtype],
        use_safetensors=True,
        local_files_only=True,
        trust_remote_code=False,
        output_loading_info=True,
        adapter_kwargs={"subfolder": CONFIG},  # a file: no adapter beside the weights is looked for
    )
    if hasattr(model[0], "peft_config"):
        raise Unavailable(
            f"Base model {entry.id!r}: this version of transformers applies the adapter of adapter_config.json in "
            f"{folder} to it. Move this file elsewhere, or install a later version."
        )
    return model[0], model[1]


def source_folder(entry: BaseEntry) -> Path:
    """The local folder of an entry: its own, or the hub's snapshot of the pinned revision (downloaded once)."""
    local = Path(entry.source)
    if local.is_absolute():
        if not local.is_dir():
            raise Unavailable(f"Base model {entry.id!r}: the folder {local} is gone.")
        return local
    if not entry.revision:
        raise Unavailable(f"Base model {entry.id!r}: {entry.source} is no absolute folder and no revision is pinned.")
    try:
        return Path(
            snapshot_download(
                entry.source, revision=entry.revision, allow_patterns=_HUB_FILES, ignore_patterns=_NOT_HUB_FILES
            )
        )
    except (httpx2.HTTPError, XetDownloadError, OSError, ValueError) as problem:  # the hub's own errors are among these
        raise Unavailable(
            f"Base model {entry.id!r}: {entry.source} at revision {entry.revision} is not in the local cache and "
            f"cannot be fetched ({type(problem).__name__})."
        ) from problem


_shapes: dict[tuple[str, BaseKind], BaseShape] = {}
"""By fingerprint and kind: to read one, its model is built, which takes a second of processor time for 30 layers."""


def _shape(folder: Path, entry: BaseEntry, cache_dir: Path | None) -> BaseShape:
    missing = [name for name in (CONFIG, TOKENIZER) if not (folder / name).is_file()]
    if missing:
        raise Unavailable(f"Base model {entry.id!r}: {folder} has no {' and no '.join(missing)}.")
    config = usable_config(folder, entry)
    key = fingerprint(folder, cache_dir=cache_dir), entry.kind
    if key not in _shapes:
        _shapes[key] = shape_from(config, key[0], entry.id, entry.kind)
    return _shapes[key].model_copy(deep=True)


def weight_bytes(entry: BaseEntry, *, untie_output: bool = False) -> int:
    """Bytes that the weights take in memory in the entry's dtype, without loading them.

    Masks in the files, heads that are not loaded and tied embeddings stored twice take none. With `untie_output` an
    output layer that is tied to the embedding counts by itself. Raises Unavailable where the configuration cannot be
    used.
    """
    config = usable_config(source_folder(entry), entry)
    count = count_parameters(config, entry.id, entry.kind, untie_output=untie_output)
    return _DTYPES[entry.dtype].itemsize * count
