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
        (
            "J. R. R. Tolkien wrote it. So I said I. Then he left.",
            ["J. R. R. Tolkien wrote it.", "So I said I.", "Then he left."],
        ),
        ("See Fig. 3 and No. 7. He said no. Then he left.", ["See Fig. 3 and No. 7.", "He said no.", "Then he left."]),
        ("It costs 3.50 dollars. Version 2.0 is out.", ["It costs 3.50 dollars.", "Version 2.0 is out."]),
        ('"Stop!" he said. "Why?" She ran.', ['"Stop!" he said.', '"Why?"', "She ran."]),
        ("Wait... What? Really?!", ["Wait...", "What?", "Really?!"]),
        ("Call os.path.join(a, b). Then go.", ["Call os.path.join(a, b).", "Then go."]),
        ("これは文です。次の文です。", ["これは文です。", "次の文です。"]),
        ("The U.S. Senate met. It voted.", ["The U.S. Senate met.", "It voted."]),
        ("A (good.) Thing. ", ["A (good.)", "Thing."]),
        ("no capital. after the stop", ["no capital. after the stop"]),
        # lines of a paragraph that are wrapped
        (
            "It was wrapped by an editor,\nin a sentence. And it goes on for\na while\n\nWithout a stop\n\nThe end.",
            ["It was wrapped by an editor, in a sentence.", "And it goes on for a while", "Without a stop", "The end."],
        ),
        # headings and items
        (
            "Ingredients\n- two eggs\n- a cup of milk\n1. Beat the eggs.\n2) Add the milk.\nServe warm",
            ["Ingredients", "- two eggs", "- a cup of milk", "1. Beat the eggs.", "2) Add the milk.", "Serve warm"],
        ),
        # code, indented and fenced, and prose that is indented
        (
            "Call it like this.\n\n    x = f(1); y = x[0]\n    print(x.y, {'a': 1})\n\nThen stop.",
            ["Call it like this.", "x = f(1); y = x[0]\n    print(x.y, {'a': 1})", "Then stop."],
        ),
        ("Look. See.\n```python\na = 1\n\nb = 2\n```\nDone.", ["Look.", "See.", "a = 1\n\nb = 2", "Done."]),
        (
            "    This line is indented but it is plain prose. It has two sentences",
            ["This line is indented but it is plain prose.", "It has two sentences"],
        ),
        # rules and ornaments, unless nothing else is there
        ("Title\n\n-----\n\n* * *\n\nText.", ["Title", "Text."]),
        ("***", ["***"]),
        (" \n\t ", []),
        ("", []),
    ],
)
def test_units(text: str, expected: list[str]) -> None:
    assert split_sentences(text) == expected


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
