"""Regular expressions as Python's `re` reads them, or not at all; none keeps the server busy."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.formats.peft import expressions
from registry.formats.peft.expressions import Pattern, UnsupportedPatternError

ATOMS = st.sampled_from(["a", "b", ".", r"\.", r"\d", r"\w", "[ab]", "[^a.]", "^", "$", "0"])
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"({'|'.join(parts)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])).map(
            lambda t: f"(?:{t[0]}){t[1]}"
        ),
    ),
    max_leaves=6,
)


@given(EXPRESSIONS, st.text("ab0._", max_size=8))
def test_as_pythons_own(source: str, text: str) -> None:
    try:
        whole, tail = Pattern(source), Pattern(source, after_dot=True)
    except UnsupportedPatternError:
        return
    assert whole.matches(text) == (re.fullmatch(source, text) is not None)
    assert tail.matches(text) == (re.match(rf"(.*\.)?({source})\Z", text) is not None)


@pytest.mark.parametrize(
    "source", ["(a+)+b", "(a|a)*b", "(a?){30}a{30}", "(.*.*)*b", "((a*)*)*b", "a?" * 60 + "a" * 60]
)
def test_what_keeps_pythons_own_busy_is_over_at_once(source: str) -> None:
    assert Pattern(source).matches("a" * 80) == source.startswith("a?")


@pytest.mark.parametrize(
    "source",
    [
        "(",
        ")",
        "a)",
        "a)|(b",
        "(?=a)",
        "(?<!a)b",
        r"(a)\1",
        "*",
        "[b-a]",
        "é",
        "\ud800",
        "a" * 2001,
        "a\\",
        "a{2,1}",
        "((a{64}){64}){64}",
        ".{1000}" * 60,
    ],
)
def test_what_is_not_read(source: str) -> None:
    for after_dot in (False, True):
        with pytest.raises(UnsupportedPatternError):
            Pattern(source, after_dot=after_dot)


@pytest.mark.parametrize(
    "source",
    [
        "a{,3}",
        "a{01}",
        "a{1,02}",
        "[[:alpha:]]",
        r"\z",
        r"\Z",
        r"\pN",
        r"\Qa.\E",
        r"\C",
        r"(a)\12",
        r"\x{41}",
        "a++",
        "a*+",
        "a{2}+",
        "(?i)a",
        "(?U)a",
        "(?P<x>a)",
        "(?<x>a)",
        "(?>a)",
        "(?#a)",
    ],
)
def test_what_re2_reads_otherwise_than_python_is_not_read(source: str) -> None:
    with pytest.raises(UnsupportedPatternError):
        Pattern(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a{99}", "a" * 99),
        ("((((((a))))))", "a"),
        (r"\bmodel\.\b.*\D", "model.x"),
        (r"q\_proj\-\/", "q_proj-/"),
        ("[]a]{2}", "]a"),
        (r"[^\W\d_]+", "abc"),
        (r"\Aa$", "a"),
        (r"a\\b\{,3}", r"a\b{,3}"),
    ],
)
def test_what_both_read_alike(source: str, text: str) -> None:
    assert Pattern(source).matches(text)
    assert re.fullmatch(source, text)
    assert not Pattern(source).matches(f"{text}0")


@pytest.mark.parametrize("source", ["^" * 500, "|" * 500, "()" * 500, "(?:(?:$){30}){30}", "(|){64}" * 9])
def test_what_reads_no_character_counts_as_work_too(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expressions, "MAX_STEPS", 1_200_000)
    pattern = Pattern(source, after_dot=True)
    with pytest.raises(UnsupportedPatternError, match="too long"):
        for _ in range(5000):
            pattern.matches("")
