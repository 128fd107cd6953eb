"""The demo's text: passages, deduplication, and packages that are parsed and never imported."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from demo import packages
from demo.packages import Shares, docstrings, installed, read_package
from demo.passages import LONGEST, SHORTEST, Seen, cut
from tests.repository import REPOSITORY

LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=900)


@given(st.lists(LINES, max_size=12), st.sampled_from(["\n", "\n\n", "\n \n\n"]))
def test_every_passage_has_its_size_and_its_text(pieces, between):
    text = between.join(pieces)
    squeezed = "".join(text.split())
    at = 0
    for passage in cut(text):
        assert len(passage) <= LONGEST
        found = squeezed.find("".join(passage.split()), at)
        assert found >= 0  # in the text, in order, and nothing twice
        at = found + len("".join(passage.split()))


@given(st.lists(st.integers(1, 400), min_size=1, max_size=30))
def test_a_passage_is_long_enough_and_little_is_lost(sizes):
    text = "\n\n".join("x" * size for size in sizes)
    passages = cut(text)
    assert all(len(p) >= SHORTEST for p in passages)
    lost = len(text) - sum(map(len, passages))
    assert lost <= SHORTEST + 2 * len(sizes)


def test_a_long_paragraph_is_cut_between_its_lines():
    lines = [f"line {i}" + " word" * 12 for i in range(60)]
    passages = cut("\n".join(lines))
    assert len(passages) > 1
    assert [line for p in passages for line in p.split("\n")] == lines


def test_nothing_comes_of_a_short_text():
    assert cut("x" * (SHORTEST - 1)) == []
    assert cut("") == []


def test_a_copy_with_a_few_changed_words_is_no_new_passage():
    seen = Seen()
    words = [f"w{i}" for i in range(100)]
    assert seen.is_new(" ".join(words))
    assert not seen.is_new(" ".join(words))
    words[50] = "other"
    assert not seen.is_new("  ".join(words).upper())
    assert seen.is_new(" ".join(reversed(words)))


def long(word: str, count: int = 80) -> str:
    return " ".join(f"{word}{i}" for i in range(count))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package that explodes when it is imported."""
    root = tmp_path / "fakepkg"
    (root / "tests").mkdir(parents=True)
    (root / "__init__.py").write_text(f'"""{long("init")}"""\nraise RuntimeError("imported")\n')
    for i in range(30):
        (root / f"m{i}.py").write_text(
            f'def f():\n    """{long(f"f{i}x")}"""\n\nclass C:\n    """short"""\n\n'
            f'    async def g(self):\n        """{long(f"g{i}x")}\\d"""\n'
        )
    (root / "copy.py").write_text(f'"""{long("f3x")}"""\n')
    (root / "broken.py").write_text("def f(:\n")
    (root / "latin.py").write_bytes(b'"""\xff"""')
    (root / "tests" / "test_a.py").write_text(f'"""{long("tested")}"""\n')
    monkeypatch.setattr(packages, "installed", lambda name: root if name == "fakepkg" else None)
    return root


def test_docstrings_of_what_parses_and_of_nothing_else(package):
    found = list(docstrings(package / "m1.py"))
    assert len(found) == 2
    assert found[0].startswith("f1x0")
    assert list(docstrings(package / "broken.py")) == []
    assert list(docstrings(package / "latin.py")) == []
    assert list(docstrings(package / "missing.py")) == []


def test_a_module_is_in_one_part_and_tests_in_none(package):
    domain = read_package("fakepkg", Shares({"train": (0.5, 10**6), "valid": (0.5, 10**6)}), Seen())
    parts = {part: " ".join(texts) for part, texts in domain.parts.items()}
    assert all(parts.values())
    for i in range(30):
        assert sum(f"f{i}x0 " in text or f"g{i}x0 " in text for text in parts.values()) == 1
    assert "tested0" not in "".join(parts.values())
    assert domain.skipped == 1  # copy.py, whichever of the two came second


def test_a_part_stops_when_it_is_full_and_the_order_is_fixed(package):
    shares = Shares({"train": (1.0, 2000)})
    first, second = (read_package("fakepkg", shares, Seen()).parts["train"] for _ in range(2))
    assert first == second
    assert 2000 <= sum(map(len, first)) < 2000 + LONGEST


def test_what_was_seen_elsewhere_is_dropped(package):
    seen = Seen()
    held_back = read_package("fakepkg", Shares({"test": (1.0, 10**6)}), seen)
    again = read_package("fakepkg", Shares({"train": (1.0, 10**6)}), seen)
    assert held_back.parts["test"]
    assert again.parts["train"] == []


def test_a_package_that_is_missing_is_named(package):
    with pytest.raises(FileNotFoundError, match="nonesuch is not installed"):
        read_package("nonesuch", Shares({"train": (1.0, 100)}), Seen())


@given(st.text(min_size=1, max_size=30))
def test_parts_by_hash_cover_every_module(module):
    shares = Shares({"a": (0.3, 1), "b": (0.3, 1), "c": (0.4, 1)})
    assert shares.part_of(module) in {"a", "b", "c"}
    assert shares.part_of(module) == shares.part_of(module)


@pytest.mark.slow
def test_the_packages_of_the_demo_are_installed_and_no_import_happens():
    names = [*packages.TRAINING, *packages.NOVEL]
    check = (
        "import sys\nfrom demo.packages import installed\n"
        f"for name in {names!r}:\n    assert installed(name) is not None, name\n"
        "loaded = {'torch', 'transformers', 'sklearn', 'sympy', 'networkx'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert installed("json") is not None
    assert installed("no_such_package_anywhere") is None


def test_the_held_back_packages_are_no_others():
    assert not set(packages.NOVEL) & {*packages.TRAINING, *packages.MIXED}
    assert len(packages.TRAINING) >= 8
    assert len(packages.NOVEL) == 3


def test_the_data_folder_is_written_once_and_again_when_packages_change(tmp_path, package, monkeypatch):
    monkeypatch.setattr(packages, "TRAINING", ("fakepkg",))
    monkeypatch.setattr(packages, "NOVEL", ())
    monkeypatch.setattr(packages, "MIXED", ())
    folder = tmp_path / "text"
    packages.write(folder)
    train = folder / "train" / "fakepkg" / "train.jsonl"
    first = train.read_text()
    assert all(json.loads(line)["text"] for line in first.splitlines())
    assert (folder / "mixed" / packages.CONTROL / "train.jsonl").is_file()
    train.write_text("changed")
    packages.write(folder)
    assert train.read_text() == "changed"
    monkeypatch.setattr(packages, "version", lambda name: "2.0")
    packages.write(folder)
    assert train.read_text() == first
