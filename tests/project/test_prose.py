"""The style of pages, docstrings, messages, templates and help texts: short sentences, no dialect, standard terms."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

import jinja2
import pytest

from adaptersoup.cli.app import VERBS, command_of
from registry.errors import BY_CODE
from tests.repository import REPOSITORY

LONGEST_SENTENCE = 30
"""Words of a sentence, but for one in fifty."""
OPENINGS = ("As", "What", "Those", "Whether", "Whoever", "Whatever")
PARAPHRASES = (
    "if you like",
    "held against",
    "goes on",
    "went on",
    "comes to nothing",
    "says no to",
    "is there already",
    "of its own accord",
    "is of no use",
    "may be repeated",
    "where it is another",
    "it is of",
    "of before",
    "for itself",
    "says so",
    "say so",
    "said so",
    "was said",
    "ones that are there",
    "that is there",
    "that there is",
    "what there is",
    "so many",
    "to be had",
    "come of",
    "came of",
    "comes of",
    "told apart",
    "put right",
    "breaks off",
    "broke off",
    "if need be",
    "by now",
    "for ever",
    "whoever",
    "wherever",
    "in the place of",
    "takes away",
    "nobody",
)
GENERATED = re.compile(r"docs/reference/(api|cli|settings|errors)\.md")
BLOCK = re.compile(r"\x08\n.*?(\n\n|$)", re.DOTALL)
"""A paragraph of a help text that is not wrapped, such as its examples."""
ERRORS = frozenset(error.__name__ for error in BY_CODE.values())


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module, of its definitions and of its values."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield BLOCK.sub("", inspect.cleandoc(node.value.value))


def messages(source: str) -> Iterator[str]:
    """The texts in raised expressions and in calls of our error classes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Raise(exc=ast.expr() as error):
                yield from literals(error)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in ERRORS:
                yield from literals(node)


def literals(node: ast.AST) -> Iterator[str]:
    """The texts in an expression; a field of an f-string counts as a word."""
    match node:
        case ast.JoinedStr(values=values):
            yield "".join(str(value.value) if isinstance(value, ast.Constant) else "X" for value in values)
        case ast.Constant(value=str(text)) if " " in text:
            yield text
        case _:
            for child in ast.iter_child_nodes(node):
                yield from literals(child)


def template_texts(source: str) -> Iterator[str]:
    """The texts of a Jinja template: in its expressions, in attributes, and between tags; an expression is a word."""
    yield from (str(constant.value) for constant in jinja2.Environment().parse(source).find_all(jinja2.nodes.Const))
    html = re.sub(r"\{%-? *(else|elif).*?%\}", "<br>", re.sub(r"\{#.*?#\}", "", source))
    html = re.sub(r"\{\{.*?\}\}", "X", re.sub(r"\{% *set.*?%\}|\{%.*?%\}", "", html))
    yield from re.findall(r'(?:title|alt|placeholder|aria-label)="(.*?)"', html)
    yield from (" ".join(text.split()) for text in re.split(r"<.*?>", re.sub(r"</?(a|b|code|strong)\b.*?>", "", html)))


class Kind(NamedTuple):
    """Files of one kind, the texts of one, and the least number of sentences in all."""

    files: tuple[str, ...]
    texts: Callable[[str], Iterable[str]]
    least: int


PACKAGES = ("adaptersoup", "registry", "service", "training", "plots", "demo", "benchmarks", "docs")
PYTHON = tuple(f"{package}/**/*.py" for package in PACKAGES)
KINDS = {
    "pages": Kind(("*.md", "docs/**/*.md"), lambda text: [text], 1500),
    "docstrings": Kind(PYTHON, docstrings, 9000),
    "messages": Kind(PYTHON, messages, 900),
    "templates": Kind(("service/http/pages/templates/*.html", "docs/site_files/*.html"), template_texts, 400),
}


def sentences_of(text: str) -> Iterator[str]:
    """The sentences of a page, without code, tables, headings, figures and the targets of links."""
    text = re.sub(r"<!-- figures.*?<!-- /figures -->|```.*?```", "\n\n", text, flags=re.DOTALL)
    text = re.sub(r"^(?: {4}|\t| *[|#]).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    text = re.sub(r"^ *(?:[-*]|\d+\.) ", "\n\n", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", text):
        yield from filter(None, re.split(r"(?<=[.!?])\s+(?=[A-Z`\[*])", " ".join(paragraph.split())))


@cache
def sentences(kind: str) -> tuple[tuple[str, str], ...]:
    """The file of every sentence of a kind, and the sentence."""
    files, texts, _ = KINDS[kind]
    names = (path.relative_to(REPOSITORY).as_posix() for pattern in files for path in sorted(REPOSITORY.glob(pattern)))
    return tuple(
        (name, sentence)
        for name in names
        if not GENERATED.match(name)
        for text in texts((REPOSITORY / name).read_text())
        for sentence in sentences_of(text)
    )


def problems_of(sentence: str) -> list[str]:
    """The openings and paraphrases of a sentence that the style refuses."""
    opening = next((word for word in OPENINGS if re.match(rf"{word}\b", sentence) and not sentence.endswith("?")), None)
    paraphrases = [phrase for phrase in PARAPHRASES if re.search(rf"\b{phrase}\b", sentence)]
    return paraphrases + ([] if opening is None else [f"begins with {opening!r}"])


@pytest.mark.parametrize("kind", KINDS)
def test_few_sentences_are_long(kind: str) -> None:
    all_sentences = sentences(kind)
    too_long = [": ".join(place) for place in all_sentences if len(place[1].split()) > LONGEST_SENTENCE]
    assert len(all_sentences) > KINDS[kind].least
    assert len(too_long) <= len(all_sentences) / 50, "\n".join(too_long)


@pytest.mark.parametrize("kind", KINDS)
def test_no_sentence_begins_with_a_clause_for_a_noun_or_paraphrases_a_term(kind: str) -> None:
    assert [f"{name}: {problem}: {text}" for name, text in sentences(kind) for problem in problems_of(text)] == []


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
    ("kind", "source"),
    [
        ("pages", "Cook a soup. What is cooked has a name."),
        ("docstrings", '"""Cook.\n\nWhat is cooked has a name.\n"""'),
        ("docstrings", 'name: str\n"""What is cooked has a name."""'),
        ("messages", 'raise KeyError(f"What is cooked has {a} name.") from None'),
        ("messages", 'problem = errors.Conflict("No.", problems=["What is cooked has a name."])'),
        ("templates", '<p title="What is cooked">{{ name }}</p>'),
        ("templates", "{% if soups > 1 %}<p>Soups{% else %}What is <code>cooked</code>{% endif %}</p>"),
        ("templates", '<p>{{ "What is cooked" if soup else name }}</p>'),
    ],
)
def test_refused_sentences_of_each_kind_are_found(kind: str, source: str) -> None:
    texts = KINDS[kind].texts(source)
    assert [problem for text in texts for sentence in sentences_of(text) for problem in problems_of(sentence)] != []
