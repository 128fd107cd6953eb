"""Passages of a sample: texts, or prompts with their answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

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
