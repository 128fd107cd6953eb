"""The grammar of refs and the canonical weights, laws and attacks; the words that all messages share."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.errors import InvalidName, more_problems
from registry.names import BaseRef, DigestRef, NameRef, check_alias, parse_ref, split_name
from registry.spec import canonical_weights

DIGEST = "sha256:" + "a1" * 32


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        ("base/gpt2", BaseRef(id="gpt2")),
        ("acme/law", NameRef(namespace="acme", name="law")),
        ("acme/law@3", NameRef(namespace="acme", name="law", version=3)),
        ("acme/law@prod", NameRef(namespace="acme", name="law", alias="prod")),
        (DIGEST, DigestRef(digest=DIGEST)),
    ],
)
def test_refs_read_and_print_the_same(text, ref):
    assert parse_ref(text) == ref
    assert str(ref) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "law",
        "acme/",
        "/law",
        "acme/law/x",
        "../law",
        "acme/..%2f",
        "acme/law@",
        "acme/law@0",
        "acme/law@00",
        "acme/Law",
        "acme/law\n",
        "acme/law@1\n",
        "v1/law",
        "docs/law",
        "models/x",
        "base/",
        "base/../x",
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 64 + "\n",
        "acme/" + "a" * 65,
        "acme/l\u0430w",
        "acme/\u0663",
        "acme/law@\u0663",
        "-a/b",
        "a/.b",
        "a b/c",
        "a/b\x00",
    ],
)
def test_everything_else_is_refused(text):
    with pytest.raises(InvalidName):
        parse_ref(text)


@pytest.mark.parametrize("version", ["0", "00", "01", "1000000000"])
def test_a_version_that_is_none_is_not_told_as_an_alias(version):
    with pytest.raises(InvalidName, match=f"'{version}' is no version: versions of acme/law count from 1") as caught:
        parse_ref(f"acme/law@{version}")
    assert "lias" not in caught.value.message


def test_aliases_are_never_all_digits():
    with pytest.raises(InvalidName):
        check_alias("12")
    assert check_alias("v12") == "v12"


@given(st.text(max_size=40))
def test_an_accepted_name_prints_as_it_was_written(text):
    try:
        namespace, name = split_name(text)
    except InvalidName:
        return
    assert f"{namespace}/{name}" == text
    assert text.isascii()


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=30).filter(lambda w: sum(w) > 1e-3))
def test_canonical_weights_sum_to_exactly_one_and_are_fixed_points(weights):
    canonical = [Decimal(w) for w in canonical_weights(weights)]
    assert sum(canonical) == 1
    assert all(w >= 0 for w in canonical)
    assert [Decimal(w) for w in canonical_weights(canonical)] == canonical
    total = sum(Decimal(repr(w)) for w in weights)
    assert all(abs(c - Decimal(repr(w)) / total) <= Decimal("1e-9") for c, w in zip(canonical, weights, strict=True))


@pytest.mark.parametrize("weights", [[], [0.0], [-1.0, 2.0], [float("nan")], [float("inf"), 1.0]])
def test_weights_that_cannot_be_normalised_are_refused(weights):
    with pytest.raises(ValueError, match="finite"):
        canonical_weights(weights)


@pytest.mark.parametrize(
    ("problems", "words"),
    [(0, ""), (1, ""), (2, " (1 more problem)"), (3, " (2 more problems)"), (51, " (50 more problems)")],
)
def test_problems_beyond_the_first_are_counted(problems: int, words: str) -> None:
    assert more_problems(problems) == words
    assert more_problems(problems, stop=".") == words.replace(")", ".)")  # after a whole sentence
