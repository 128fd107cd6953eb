"""Cards: what is written is read back, what people and hubs write is read, and no front matter keeps anybody busy."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidManifest
from registry.formats import format_card, parse_card
from registry.formats.card import USE, USE_END, Usage
from registry.spec import Card

PART = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
UNICODE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
CARDS = st.builds(
    Card,
    description=UNICODE | st.sampled_from(["---", "---\nx: 1\n---", "\n", "\n\n", "# x\n", "- a", "\r\n"]),
    license=st.none() | UNICODE.filter(bool) | st.sampled_from(["[a]", "[a, b]", "[[", "5", "null"]),
    tags=st.lists(PART, max_size=3).map(tuple),
    metadata=st.dictionaries(UNICODE, st.none() | st.booleans() | st.integers() | UNICODE, max_size=3),
)


@given(CARDS)
def test_round_trip(card: Card) -> None:
    assert parse_card(format_card(card, base_model="tiny", domain="a\n---\nb")) == card


@given(
    CARDS,
    st.sampled_from(["", f"{USE}\n", f"\n{USE}\n## Use\nof another\n", f"{USE_END}\n", f"\n{USE}\nx\n{USE_END}\n"]),
)
def test_what_a_registry_says_of_the_use_comes_and_goes(card: Card, before: str) -> None:
    """Whatever stands in the description, and were it what a registry says."""
    card = card.model_copy(update={"description": before + card.description})
    written = format_card(card, base_model="tiny", usage=Usage(library="peft", text="Load it."))
    assert written.endswith(f"Load it.\n{USE_END}\n")
    assert 'library_name: "peft"' in written
    assert parse_card(written) == card


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_what_people_write_below_is_kept(ends: str) -> None:
    """Also by an editor that ends lines its own way, in all of the text or where it was changed."""
    card, use = Card(description="Judgements."), Usage(library="peft", text="Load it.\n")
    written = format_card(card, base_model="tiny", usage=use)
    assert parse_card(written.replace("\n", ends)) == card
    assert parse_card(written.removesuffix("\n")) == card
    assert parse_card(written.replace(f"{USE}\n", f"{USE}{ends}")) == card
    whole = parse_card((written + "\nNot for advice.\n").replace("\n", ends))
    assert whole == Card(description="Judgements.\n\nNot for advice.")
    assert parse_card(format_card(whole, base_model="tiny", usage=use)) == whole
    assert "Load it." in parse_card(written.replace(USE_END, "")).description  # nobody can tell where it ends


@pytest.mark.parametrize(
    ("text", "card"),
    [
        (
            "---\n# a comment\nlicense: apache-2.0\nlibrary_name: peft\nwidget:\n- text: hello\n"
            "tags:\n- law\n- us\nmetadata:\n  epochs: 3\n  note: it's fine\n---\n# Title\n\nBody\n",
            Card(
                description="# Title\n\nBody",
                license="apache-2.0",
                tags=("law", "us"),
                metadata={"epochs": 3, "note": "it's fine"},
            ),
        ),
        ("---\r\ntags: law\r\n---\r\n", Card(tags=("law",))),
        (
            "---\nlicense: a\nlicense: b\nmetadata: {k: 1, k: 2}\n---\n",
            Card(license="b", metadata={"k": 2}),
        ),
        (
            "---\n'license': \"apache\\u002d2.0\"  # as the base model's\nmodel-index:\n- name: x\n  results:\n"
            "  - task: {type: text-generation}\ntags: [\n  law,\n  'us', # and\n  \"eu\"\n]\nmetadata:\n"
            "  note: >-\n    two lines\n    of one\n  said: 'it''s 5'\n  five: \"5\"\n  epochs: 5\n  lr: 1e-5\n"
            "  done: true\n  none: null\n  empty:\n---\ntext",
            Card(
                description="text",
                license="apache-2.0",
                tags=("law", "us", "eu"),
                metadata={
                    "note": "two lines of one",
                    "said": "it's 5",
                    "five": "5",
                    "epochs": 5,
                    "lr": 1e-5,
                    "done": True,
                    "none": None,
                    "empty": "",
                },
            ),
        ),
        (  # words that YAML takes for something else
            "---\nlicense: no\nmetadata: {on: 2026-11-22, 1: yes, 2026-01-01: 012, time: '12:30'}\n---\n",
            Card(license="no", metadata={"on": "2026-11-22", "1": "yes", "2026-01-01": "012", "time": "12:30"}),
        ),
        ("---\nlicense: 2\ntags: [on, y]\n---\n", Card(license="2", tags=("on", "y"))),
    ],
)
def test_yaml_as_people_write_it(text: str, card: Card) -> None:
    assert parse_card(text) == card


@pytest.mark.parametrize("text", ["just text", "---\nnot closed", "", "--- \n", "a\n---\nb: 1\n---"])
def test_without_front_matter_all_is_text(text: str) -> None:
    assert parse_card(text) == Card(description=text.removesuffix("\n"))


def test_a_foreign_card_gives_the_tags_and_metadata_it_has() -> None:
    for written in ("5", "true", '{"a": 1}', "", "null", "[5, LLaMA]"):
        assert parse_card(f"---\ntags: {written}\n---\n", foreign=True).tags == ()
    assert parse_card("---\ntags:\n- law\n- base_model:adapter:x\n---\n", foreign=True).tags == ("law",)
    text = "---\nmetadata:\n  a: {b: 1}\n  c:\n  - 1\n  d: 2\n---\n"
    assert parse_card(text, foreign=True).metadata == {"d": 2}
    with pytest.raises(InvalidManifest, match=r"README\.md: metadata\.a"):
        parse_card(text)
    tagged = "---\nmetadata:\n  k: !!python/object/apply:os.system [exit 1]\n  n: !!binary aGk=\n---\n"
    assert parse_card(tagged, foreign=True).metadata == {"n": "aGk="}  # no objects are made


def test_long_and_deep_front_matter_is_read_at_once() -> None:
    body = "b:\n" + "- a\n" * 50_000 + "c:\n" + "".join(f" k{i}: a\n" for i in range(50_000))
    nested = "d: " + "[" * 5000 + "x" + "]" * 5000
    card = parse_card(f"---\n{body}{nested}\nlicense: mit\n---\ntext")
    assert (card.license, card.description) == ("mit", "text")


def test_values_a_card_cannot_hold() -> None:
    with pytest.raises(InvalidManifest, match=r"README\.md: tags"):
        parse_card("---\ntags: ['LLaMA Factory']\n---\n")
    assert len(parse_card("x" * 20_000).description) == 20_000
    with pytest.raises(InvalidManifest, match=r"README\.md has 20001 characters of text.*is 20000"):
        parse_card("---\nlicense: mit\n---\n" + "x" * 20_001)


@pytest.mark.parametrize(
    ("matter", "says"),
    [
        ("metadata:\n  a: &a [x, x]\n  b: &b [*a, *a]\n  c: [*b, *b]", "the alias 'a', and aliases are not taken"),
        ("metadata: &a\n  k: *a", "alias"),
        ("tags: [&a law, *a]", "alias"),
        ("tags: *elsewhere", "alias"),
        ("metadata:\n  <<: *base", "alias"),
        ("tags:\n" + "- a\n" * 6000, "24006 characters, and 20000 are the most"),
        ("tags: " + "[" * 9000 + "x" + "]" * 9000, "nested more than 16 deep"),
        ("metadata: " + "{a: " * 4000, "nested more than 16 deep"),
        ("license: a: b", "mapping values are not allowed here"),
        ("tags: [law", "expected ',' or ']'"),
        ("license: a\x00b", "special characters are not allowed"),
        ("metadata: {[a]: b}", "a key in it is no text"),
    ],
    ids=lambda text: text[:24],
)
def test_what_is_not_parsed(matter: str, says: str) -> None:
    key = matter.partition(":")[0]
    for foreign in (False, True):
        with pytest.raises(InvalidManifest, match=rf"README\.md: {key} cannot be read: .*{re.escape(says)}"):
            parse_card(f"---\n{matter}\n---\ntext", foreign=foreign)


def test_what_a_card_does_not_hold_is_not_parsed_at_all() -> None:
    laughs = "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in pairwise("abcdefghij"))
    card = parse_card(f"---\na: &a [x, x]\n{laughs}broken: [\nlicense: mit\n---\ntext")
    assert card == Card(license="mit", description="text")
