"""The sentence splitter: what is a sentence, and that nothing of the text is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.encoders.sentences import split_sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three? Four", ["One.", "Two!", "Three?", "Four"]),
        ("Dr. Smith met Mrs. Jones, e.g. Anna. They left.", ["Dr. Smith met Mrs. Jones, e.g. Anna.", "They left."]),
        ("J. R. R. Tolkien wrote it. So I said I. Then he left.",
         ["J. R. R. Tolkien wrote it.", "So I said I.", "Then he left."]),
        ("See Fig. 3 and No. 7. He said no. Then he left.", ["See Fig. 3 and No. 7.", "He said no.", "Then he left."]),
        ("It costs 3.50 dollars. Version 2.0 is out.", ["It costs 3.50 dollars.", "Version 2.0 is out."]),
        ('"Stop!" he said. "Why?" She ran.', ['"Stop!" he said.', '"Why?"', "She ran."]),
        ("Wait... What? Really?!", ["Wait...", "What?", "Really?!"]),
        ("Call os.path.join(a, b). Then go.", ["Call os.path.join(a, b).", "Then go."]),
        ("これは文です。次の文です。", ["これは文です。", "次の文です。"]),
        ("The U.S. Senate met. It voted.", ["The U.S. Senate met.", "It voted."]),
        ("A (good.) Thing. ", ["A (good.)", "Thing."]),
        ("no capital. after the stop", ["no capital. after the stop"]),
    ],
)  # fmt: skip
def test_prose(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


def test_wrapped_lines_are_joined_and_paragraphs_are_not() -> None:
    text = (
        "This paragraph was wrapped by an editor at about sixty\n"
        "characters, in the middle of a sentence. And it goes on for\n"
        "a while\n\nNext paragraph without a stop\n\nThe end."
    )
    assert split_sentences(text) == [
        "This paragraph was wrapped by an editor at about sixty characters, in the middle of a sentence.",
        "And it goes on for a while",
        "Next paragraph without a stop",
        "The end.",
    ]


def test_headings_and_items_stand_alone() -> None:
    text = "Ingredients\n- two eggs\n- a cup of milk\n1. Beat the eggs.\n2) Add the milk.\nServe warm"
    assert split_sentences(text) == [
        "Ingredients", "- two eggs", "- a cup of milk", "1. Beat the eggs.", "2) Add the milk.", "Serve warm",
    ]  # fmt: skip


def test_code_is_one_unit_as_it_stands() -> None:
    text = "Call it like this.\n\n    x = f(1); y = x[0]\n    print(x.y, {'a': 1})\n\nThen stop."
    assert split_sentences(text) == [
        "Call it like this.",
        "x = f(1); y = x[0]\n    print(x.y, {'a': 1})",
        "Then stop.",
    ]


def test_fenced_code_keeps_its_blank_lines_together() -> None:
    assert split_sentences("Look. See.\n```python\na = 1\n\nb = 2\n```\nDone.") == [
        "Look.", "See.", "a = 1\n\nb = 2", "Done.",
    ]  # fmt: skip


def test_indented_prose_is_prose() -> None:
    text = "    This line is indented but it is plain prose. It has two sentences"
    assert split_sentences(text) == ["This line is indented but it is plain prose.", "It has two sentences"]


def test_rules_and_ornaments_are_dropped_unless_nothing_else_is_there() -> None:
    assert split_sentences("Title\n\n-----\n\n* * *\n\nText.") == ["Title", "Text."]
    assert split_sentences("***") == ["***"]
    assert split_sentences(" \n\t ") == []
    assert split_sentences("") == []


@pytest.mark.parametrize(
    "text", ["!" * 200_000, ". " * 100_000, '."' * 100_000, " " * 200_000, "A" * 200_000 + ".", "A. " * 60_000]
)
def test_adversarial_text_is_read_once(text: str) -> None:
    assert len(split_sentences(text)) <= 60_000  # quadratic rules would not come back


@given(st.text(alphabet=st.sampled_from("aB1. !?\n\"'(){};:-é。\t…"), max_size=200))
def test_no_letter_is_lost_or_moved(text: str) -> None:
    def letters(value: str) -> str:
        return "".join(character for character in value if character.isalnum())

    pieces = split_sentences(text)
    assert letters("".join(pieces)) == letters(text)
    assert all(piece == piece.strip() and piece for piece in pieces)
    assert bool(pieces) == bool(text.strip()) or "```" in text


@given(st.text(max_size=200))
def test_any_text_has_a_unit_and_the_same_ones_each_time(text: str) -> None:
    pieces = split_sentences(text)
    assert pieces == split_sentences(text)
    assert pieces or not any(character.isalnum() for character in text)
