"""Passages of a sample: texts, or prompts with their answers; and their JSON lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Annotated

from registry.errors import InvalidSample
from registry.files import parse_lines
from registry.spec.frozen import Frozen, one_of


class PromptAnswer(Frozen):
    """A prompt and the answer that follows it: only the tokens of the answer count in losses and perplexity.

    The two are one text, without a character in between: an answer begins with the space that it needs.
    """

    prompt: str
    answer: str


Passage = Annotated[str | PromptAnswer, one_of("must be a text, or an object with the texts 'prompt' and 'answer'")]
"""A passage whose tokens all count, or a prompt with its answer."""


def json_of(passage: Passage) -> str | dict[str, str]:
    """A passage as it is sent in JSON."""
    return passage if isinstance(passage, str) else passage.model_dump()


def full_text(passage: Passage) -> str:
    """All text of a passage, which encoders read."""
    return passage if isinstance(passage, str) else passage.prompt + passage.answer


def characters_of(passages: Iterable[Passage]) -> int:
    """The characters of all text of passages."""
    return sum(len(full_text(passage)) for passage in passages)


def scored_text(passage: Passage) -> str:
    """The text of a passage whose tokens count in losses."""
    return passage if isinstance(passage, str) else passage.answer


# --- JSON lines ------------------------------------------------------------------------------------


def encode_lines(passages: Iterable[Passage]) -> bytes:
    """JSON lines of {"text"}, or of {"prompt", "answer"}: the format of a sample on disk, on the wire and as a blob.

    Raises InvalidSample for a lone surrogate, which UTF-8 cannot encode.
    """
    values = ({"text": passage} if isinstance(passage, str) else passage.model_dump() for passage in passages)
    try:
        return b"".join(json.dumps(value, ensure_ascii=False).encode() + b"\n" for value in values)
    except UnicodeEncodeError as error:
        raise InvalidSample(
            f"A text of the sample is not valid Unicode (a lone surrogate at position {error.start}).", param="sample"
        ) from None


def decode_lines(data: bytes | str, *, name: Callable[[int], str] = "Line {} of the sample".format) -> list[Passage]:
    """The passages of JSON lines of {"text"} or {"prompt", "answer"}.

    Raises InvalidSample, whose message calls a line `name(number)`.
    """
    passages: list[Passage] = []
    for number, value in parse_lines(data, name=name, error=_invalid_sample):
        passage = passage_of(value)
        if passage is None:
            raise _invalid_sample(
                f'{name(number)} is not an object with a string "text", or with strings "prompt" and "answer".'
            )
        passages.append(passage)
    return passages


def passage_of(value: object) -> Passage | None:
    """The passage of a JSON value, which may have other keys too; None if it is none."""
    match value:
        case {"text": str(text)}:
            return text
        case {"prompt": str(prompt), "answer": str(answer)}:
            return PromptAnswer(prompt=prompt, answer=answer)
    return None


def _invalid_sample(message: str) -> InvalidSample:
    return InvalidSample(message, param="sample")
