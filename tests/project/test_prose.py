"""The style of pages and help texts: the length of sentences, their first words, paraphrases of standard terms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from adaptersoup.cli.app import VERBS, command_of
from tests.repository import REPOSITORY

GENERATED = re.compile(r"docs/reference/(api|cli|settings|errors)\.md|docs/explanation/\w+-measured\.md")
PAGES = [
    path
    for pattern in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md")
    for path in sorted(REPOSITORY.glob(pattern))
    if not GENERATED.match(path.relative_to(REPOSITORY).as_posix())
]
LONGEST_SENTENCE = 30
"""Words of a sentence, but for one in fifty."""
OPENINGS = ("As", "What", "Those", "Whether", "Whoever", "Whatever")
PARAPHRASES = (
    "if you like", "at most so many", "is held against", "goes on where", "comes to nothing", "says no to",
    "the ones that are there", "all that there is", "is there already", "of its own accord", "is of no use",
    "may be repeated", "where it is another",
)  # fmt: skip

BLOCK = re.compile(r"\x08\n.*?(\n\n|$)", re.DOTALL)
"""A paragraph of a help text that is not wrapped, such as its examples."""


def sentences_of(text: str) -> Iterator[str]:
    """The sentences of a page, without code, tables, headings, figures and the targets of links."""
    text = re.sub(r"<!-- figures.*?<!-- /figures -->|```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^(?: {4}|\t| *[|#]).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"^ *(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from filter(None, re.split(r"(?<=[.!?])\s+(?=[A-Z`\[*])", " ".join(paragraph.split())))


def problems_of(sentence: str) -> list[str]:
    """The openings and paraphrases of a sentence that the style refuses."""
    opening = next((word for word in OPENINGS if re.match(rf"{word}\b", sentence) and not sentence.endswith("?")), None)
    paraphrases = [phrase for phrase in PARAPHRASES if phrase in sentence]
    return paraphrases + ([] if opening is None else [f"begins with {opening!r}"])


def test_few_sentences_are_long() -> None:
    lengths = {
        f"{path.relative_to(REPOSITORY)}: {sentence}": len(sentence.split())
        for path in PAGES
        for sentence in sentences_of(path.read_text())
    }
    too_long = [sentence for sentence, words in lengths.items() if words > LONGEST_SENTENCE]
    assert len(lengths) > 1500
    assert len(too_long) <= len(lengths) / 50, "\n".join(too_long)


def test_no_sentence_begins_with_a_clause_for_a_noun_or_paraphrases_a_term() -> None:
    refused = [
        f"{path.relative_to(REPOSITORY)}: {problem}: {sentence}"
        for path in PAGES
        for sentence in sentences_of(path.read_text())
        for problem in problems_of(sentence)
    ]
    assert refused == []


def commands_of(command: Any) -> Iterator[Any]:
    """A command and those below it."""
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from commands_of(below)


@pytest.mark.parametrize("verb", VERBS)
def test_help_texts_are_short_and_plain(verb: str) -> None:
    for command in commands_of(command_of(verb)):
        texts = [*(parameter.help or "" for parameter in command.params), BLOCK.sub("", command.help)]
        for sentence in (sentence for text in texts for sentence in sentences_of(text)):
            assert problems_of(sentence) == [], sentence
            assert len(sentence.split()) <= LONGEST_SENTENCE + 10, sentence  # some list all values


@pytest.mark.parametrize(
    ("sentence", "count"),
    [
        ("What is cooked has a name.", 1),
        ("What does a cook cost?", 0),
        ("Assets are cached.", 0),
        ("The command goes on where it was, if you like.", 2),
    ],
)
def test_refused_sentences_are_found(sentence: str, count: int) -> None:
    assert len(problems_of(sentence)) == count
