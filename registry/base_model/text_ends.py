"""Special tokens that end a text, by the tokenizer and by generation_config.json.

Called where a base model's text side is loaded. An ordinary token never ends a text: it would cut every answer that
holds it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def is_special(tokenizer: Any, token: object) -> bool:
    """Return True if `token` is the id of a special token; booleans and anything but whole numbers are not."""
    added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
    return type(token) is int and token in added and bool(added[token].special)


def generation_ends(folder: Path, tokenizer: Any) -> tuple[int, ...]:
    """The special tokens that end a text by the model's generation_config.json, none where it has no such file.

    A file that transformers made of the model's configuration (`_from_model_config`) is ignored: it holds the
    defaults of a class, which this tokenizer may use for ordinary text. Raises ValueError unless the file holds a JSON
    object.
    """
    file = folder / "generation_config.json"
    if not file.is_file():
        return ()
    saved = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(saved, dict):
        raise ValueError(f"{file.name} holds a {type(saved).__name__} where an object belongs")
    if saved.get("_from_model_config"):
        return ()
    ends = saved.get("eos_token_id")
    candidates: list[Any] = ends if isinstance(ends, list) else [ends]
    return tuple(token for token in candidates if is_special(tokenizer, token))
