"""The laws of a diagnosis: what a server answers is named for what it is, and noise of a dtype is no fault.

The model is a toy: logits of the next token are linear in the scale of an adapter's update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from registry.errors import Unavailable
from registry.probes.diagnosis import EXACT, diagnose
from registry.probes.distance import distance
from registry.probes.scale_fit import SCALES
from registry.probes.texts import WORDS, probe_texts
from registry.spec import (
    PROBE_TEXTS,
    SCALED_TEXTS,
    SERVER_TOKENS,
    STORED_TOKENS,
    AdapterProbe,
    BaseProbe,
    Diagnosis,
    Readings,
    ServerReadings,
)

VOCABULARY = 60
SEEDS = st.integers(0, 10_000)


@dataclass(frozen=True)
class Toy:
    """A base model and an update of it, drawn from a seed."""

    seed: int

    def logits(self, scale: float = 1.0) -> np.ndarray:
        """Logits of every text at a scale of the update."""
        generator = np.random.default_rng(self.seed)
        base = generator.normal(0, 2, (PROBE_TEXTS, VOCABULARY))
        return base + scale * generator.normal(0, 1, base.shape)

    @property
    def base(self) -> BaseProbe:
        without_bos = Toy(self.seed + 20_000).logits(0)
        texts = tuple(map(str, range(PROBE_TEXTS)))
        stored = readings(self.logits(0))
        return BaseProbe(texts=texts, readings=stored, without_bos=readings(without_bos)[:SCALED_TEXTS])

    @property
    def probe(self) -> AdapterProbe:
        scaled = tuple(readings(self.logits(scale))[:SCALED_TEXTS] for scale in SCALES)
        return AdapterProbe(readings=readings(self.logits()), scales=SCALES, scaled=scaled)


def readings(logits: np.ndarray, tokens: int = STORED_TOKENS) -> Readings:
    logprobs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    order = np.argsort(-logprobs, 1)[:, :tokens]
    return tuple({f" t{token}": float(row[token]) for token in best} for row, best in zip(logprobs, order, strict=True))


def answer(model: np.ndarray, base: np.ndarray | None) -> ServerReadings:
    return ServerReadings(
        model=readings(model, SERVER_TOKENS), base=None if base is None else readings(base, SERVER_TOKENS)
    )


def diagnosed_with(
    server: ServerReadings, base: BaseProbe, probe: AdapterProbe, **candidates: AdapterProbe
) -> Diagnosis:
    """The diagnosis where these other probes are stored."""
    readings_by_ref = {ref: candidate.readings for ref, candidate in candidates.items()}
    return diagnose(server, base, probe, other_readings=lambda: readings_by_ref, at_scales=lambda: probe)


def diagnosed(toy: Toy, model: np.ndarray, base: np.ndarray | None, **candidates: AdapterProbe) -> Diagnosis:
    return diagnosed_with(answer(model, base), toy.base, toy.probe, **candidates)


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_the_adapter_itself_is_the_same_whether_the_base_is_read_or_not(seed: int) -> None:
    toy = Toy(seed)
    assert diagnosed(toy, toy.logits(), toy.logits(0)).verdict == "same"
    assert diagnosed(toy, toy.logits(), None).verdict == "same"


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_the_base_model_alone_is_base_only_in_any_dtype(seed: int) -> None:
    toy = Toy(seed)
    rounded = toy.logits(0) + np.random.default_rng(seed).normal(0, 0.1, (PROBE_TEXTS, VOCABULARY))
    for base in (toy.logits(0), rounded):
        assert diagnosed(toy, base, base).verdict == "base_only"


@given(SEEDS, st.floats(0.1, 0.9) | st.floats(1.2, 3.9))
@settings(max_examples=25, deadline=None)
def test_a_wrong_scale_is_named_with_its_factor(seed: int, factor: float) -> None:
    toy = Toy(seed)
    diagnosis = diagnosed(toy, toy.logits(factor), toy.logits(0))
    assert diagnosis.verdict == "wrong_scale"
    assert diagnosis.factor == pytest.approx(factor, rel=0.1)  # the factors that are tried are up to 3 % apart


@given(SEEDS, st.floats(0.02, 0.3))
@settings(max_examples=25, deadline=None)
def test_noise_on_both_models_is_another_dtype_and_no_fault(seed: int, spread: float) -> None:
    toy, generator = Toy(seed), np.random.default_rng(seed)
    noise = [generator.normal(0, spread, (PROBE_TEXTS, VOCABULARY)) for _ in range(2)]
    diagnosis = diagnosed(toy, toy.logits() + noise[0], toy.logits(0) + noise[1])
    assert diagnosis.verdict == "other_dtype"
    assert diagnosis.error < 1.5 * diagnosis.base_error + EXACT


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_another_adapter_is_named_by_its_ref(seed: int) -> None:
    toy, neighbour = Toy(seed), Toy(seed + 10_000)
    assert diagnosed(toy, neighbour.logits(), toy.logits(0), other=neighbour.probe).served == "other"
    assert diagnosed(toy, neighbour.logits(), toy.logits(0)).verdict == "broken"


@given(SEEDS, st.floats(0.3, 0.7))
@settings(max_examples=20, deadline=None)
def test_part_of_an_update_is_broken_and_no_scale(seed: int, share: float) -> None:
    toy = Toy(seed)
    mask = np.random.default_rng(seed).random((PROBE_TEXTS, VOCABULARY)) < share
    assert diagnosed(toy, np.where(mask, toy.logits(), toy.logits(0)), toy.logits(0)).verdict == "broken"


@pytest.mark.parametrize(
    ("served", "base", "words"),
    [
        pytest.param(Toy(20_000).logits(0) + 1, Toy(20_000).logits(0), "no BOS in front", id="without its BOS"),
        pytest.param(Toy(1).logits(), Toy(1).logits(0), "it is another model", id="another"),
    ],
)
def test_what_is_wrong_with_a_base_model_is_named(served: np.ndarray, base: np.ndarray, words: str) -> None:
    diagnosis = diagnosed(Toy(0), served, base)
    assert (diagnosis.verdict, words in diagnosis.sentence) == ("broken", True)


def test_without_the_base_model_the_doubt_is_said() -> None:
    toy = Toy(0)
    diagnosis = diagnosed(toy, toy.logits(0.9), None)
    assert "--base-model" in diagnosis.sentence
    assert diagnosis.base_error is None


def test_an_adapter_without_a_scale_is_never_scaled_wrong() -> None:
    toy = Toy(0)
    probe = AdapterProbe(readings=toy.probe.readings)
    assert diagnosed_with(answer(toy.logits(0.5), toy.logits(0)), toy.base, probe).verdict == "broken"


def test_an_adapter_without_effect_is_sound_in_another_dtype() -> None:
    toy = Toy(0)
    probe = AdapterProbe(readings=toy.base.readings)
    rounded = toy.logits(0) + 0.02 * np.random.default_rng(1).normal(0, 1, (PROBE_TEXTS, VOCABULARY))
    assert diagnosed_with(answer(rounded, rounded), toy.base, probe).verdict == "other_dtype"


def test_tokens_are_compared_however_a_server_spells_their_leading_space() -> None:
    stored = ({" the": -0.5, "a": -1.5, " dog": -2.5},)
    for spelt in ("▁the", "Ġthe", "the", " the"):
        assert distance(({spelt: -0.5, "a": -1.5, "dog": -2.5},), stored) == 0


def test_a_token_that_only_one_side_lists_counts_by_the_least_that_the_other_lists() -> None:
    assert distance(({"x": -1.0},), ({"y": -1.0},)) == 0
    assert distance(({"x": -1.0, "z": -3.0},), ({"y": -2.0, "z": -3.0},)) == pytest.approx(
        np.sqrt((2.0**2 + 0 + 1.0**2) / 3)
    )


# --- texts of a probe -----------------------------------------------------------------------------


TOKENS = [
    "<s>",
    "the",
    "1",
    *(f" w{'ab'[i % 2]}{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(200)),
    " No",
    "é",
]


def encode(text: str) -> list[int]:
    return [TOKENS.index(f" {word}") for word in text.split(" ")]


def decode(ids: Sequence[int]) -> str:
    return "".join(TOKENS[token] for token in ids).removeprefix(" ") if len(ids) > 1 else TOKENS[ids[0]]


def test_texts_are_whole_words_and_the_same_each_time() -> None:
    texts = probe_texts(len(TOKENS), encode, decode)
    assert texts == probe_texts(len(TOKENS), encode, decode)
    assert len(set(texts)) == PROBE_TEXTS
    assert all(len(text.split()) == WORDS and "No" not in text.split() for text in texts)
    assert all(decode(encode(text)) == text for text in texts)


def test_a_vocabulary_of_which_no_text_survives_is_an_error() -> None:
    with pytest.raises(Unavailable, match="0 texts can be made"):
        probe_texts(len(TOKENS), encode, lambda ids: TOKENS[ids[0]])
