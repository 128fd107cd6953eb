"""The sentence-BERT model without its package: the package's vectors to the bit, and no other kind of model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from registry.encoders import SentenceBertEncoder
from registry.encoders.sentence_model import SentenceModel
from registry.errors import Unavailable

SENTENCES = (
    "The court held that the contract was void.",
    "Stir the onions",
    "a",
    "  two\nlines ",
    "Ünïcode, 漢字 and 🙂.",
    "supercalifragilistic " * 300,
    "word " * 252,
    "The court held that the contract was valid.",
)
FOLDER = SentenceBertEncoder().folder


@pytest.fixture(scope="module")
def model() -> SentenceModel:
    return SentenceModel(FOLDER)


def test_vectors_are_those_of_the_package_to_the_bit(model: SentenceModel) -> None:
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(str(FOLDER), device="cpu", local_files_only=True)
    assert theirs.max_seq_length == model.max_seq_length
    for some in (SENTENCES, SENTENCES[:1], SENTENCES[3:5], SENTENCES[::-1]):
        wanted = theirs.encode(list(some), normalize_embeddings=True)
        assert wanted.dtype == np.float32
        assert np.array_equal(model.encode(some), wanted)


def changed(folder: Path, file: str, **values: object) -> Path:
    """A copy of the model's small files, one of them with other values."""
    for path in FOLDER.rglob("*.json"):
        target = folder / path.relative_to(FOLDER)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content[:2] if isinstance(content, list) else content | values))
    return folder


def test_a_model_that_makes_its_vectors_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"is made of \['Transformer', 'Pooling'\] instead of"):
        SentenceModel(changed(tmp_path / "raw", "modules.json"))
    other = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    with pytest.raises(Unavailable, match=r"pools by \['pooling_mode_cls_token'\] instead of the mean"):
        SentenceModel(changed(tmp_path / "cls", "1_Pooling/config.json", **other))
    with pytest.raises(Unavailable, match=r"puts its text in lower case"):
        SentenceModel(changed(tmp_path / "lower", "sentence_bert_config.json", do_lower_case=True))


@pytest.mark.parametrize("length", [None, "256", True])
def test_a_model_without_a_length_is_refused(tmp_path: Path, length: object) -> None:
    with pytest.raises(Unavailable, match=f"has the max_seq_length {length} instead of a number"):
        SentenceModel(changed(tmp_path / "model", "sentence_bert_config.json", max_seq_length=length))
