"""The chat template of a base model: how a conversation becomes text, and which tokens end an answer in it.

Called where a base model's tokenizer is loaded, and by the chat route. A template comes with the model, or it is the
operator's own (`chat_template` of the allowlist), which is trusted and checked when it is loaded. Only a
special token ends a text: an ordinary one would cut every answer that holds it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from registry.errors import Unavailable
from registry.spec import BaseEntry

Message = dict[str, str]

_PROBE = "soup-2b7e"
"""The text of a message that must appear in a rendered template."""


def template_of(tokenizer: Any) -> str | None:
    """The template of a tokenizer, of several the one for ordinary conversations; None where there is none."""
    template = getattr(tokenizer, "chat_template", None)
    template = template.get("default") if isinstance(template, dict) else template
    return template if isinstance(template, str) and template else None


def render(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
    """The text that the template makes of messages, with the head of an answer if asked; raises any error of Jinja."""
    return str(
        tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=add_generation_prompt)
    )


def _render_alone(tokenizer: Any, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
    """The text of messages, after a system message if the template needs one; raises any error of Jinja."""
    try:
        return render(tokenizer, messages, add_generation_prompt=add_generation_prompt)
    except Exception as problem:
        try:
            return render(
                tokenizer, [{"role": "system", "content": "."}, *messages], add_generation_prompt=add_generation_prompt
            )
        except Exception:
            raise problem from None


def use_template(tokenizer: Any, entry: BaseEntry) -> None:
    """Give the tokenizer the template of the allowlist, if there is one, in place of the model's own.

    Raises Unavailable where it cannot be read as a template, or makes no text of a user's message.
    """
    if entry.chat_template is None:
        return
    tokenizer.chat_template = entry.chat_template
    try:
        text = _render_alone(tokenizer, [{"role": "user", "content": _PROBE}])
    except Exception as problem:  # of Jinja, or whatever an expression in it raises
        line = getattr(problem, "lineno", None)
        where = "" if line is None else f" (line {line})"
        message = getattr(problem, "message", None) or problem  # Jinja's, without its excerpt of several lines
        reason = " ".join(str(message).split())
        raise Unavailable(
            f"Base model {entry.id!r}: its chat_template fails on a user's message{where}: "
            f"{type(problem).__name__}: {reason.rstrip('.')}."
        ) from problem
    if _PROBE not in text:
        raise Unavailable(
            f"Base model {entry.id!r}: its chat_template drops the content of the user's message: the result "
            f"is {text[:80]!r}."
        )


def turn_end(tokenizer: Any) -> int | None:
    """The special token that the template puts behind an assistant's message, which ends an answer.

    Often the EOS. None where no such token follows, or there is no template.
    """
    if template_of(tokenizer) is None:
        return None
    try:
        text = _render_alone(
            tokenizer,
            [{"role": "user", "content": "."}, {"role": "assistant", "content": _PROBE}],
            add_generation_prompt=False,
        )
    except Exception:  # it takes no answers, or others: the EOS ends them
        return None
    _, probe, behind = text.rpartition(_PROBE)
    ids = tokenizer.backend_tokenizer.encode(behind.lstrip(), add_special_tokens=False).ids if probe else []
    return int(ids[0]) if ids and is_special(tokenizer, ids[0]) else None


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
