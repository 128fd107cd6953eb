"""A sentence-BERT model by transformers alone: a BERT, the mean of its last states, and that at unit length.

Called by `sbert`. What the package sentence-transformers does with such a folder comes out to the bit, and a test holds
it to that; importing the package brought scikit-learn, SciPy, pandas and a trainer into every server that embeds a
sentence (docs/decisions/0028-light-start.md).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import AutoModel, AutoTokenizer

from registry.base_model.build_lock import BUILDING, quiet
from registry.errors import Unavailable

MODULES = ["Transformer", "Pooling", "Normalize"]
"""What the vectors of a folder are made by, in this order."""
LENGTH = "sentence_bert_config.json"
"""How many word pieces are read, and whether the text is put in lower case first."""


class SentenceModel:
    """A model in memory; raises Unavailable where a folder's vectors are made in another way than by a mean of the text
    as it is."""

    def __init__(self, folder: Path) -> None:
        _check_modules(folder)
        self.max_seq_length = _length(folder)
        """Word pieces that are read of a sentence, special ones counted."""
        with BUILDING, quiet():
            self.tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
            self._model: Any = AutoModel.from_pretrained(str(folder), local_files_only=True).eval()

    @torch.inference_mode()
    def encode(self, sentences: Sequence[str]) -> npt.NDArray[np.float32]:
        """Unit vectors (n, d) of all sentences in one batch, the longest first."""
        order = np.argsort([-len(sentence) for sentence in sentences])
        pieces = self.tokenizer(
            [sentences[i] for i in order], padding=True, truncation="longest_first", max_length=self.max_seq_length,
            return_tensors="pt",
        )  # fmt: skip
        states = self._model(**pieces).last_hidden_state
        mask = pieces["attention_mask"].unsqueeze(-1).to(states.dtype)
        mean = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1e-9)
        # Twice, as the model's own module and whoever calls it did: the second time still moves some last bits.
        once = torch.nn.functional.normalize(mean, p=2, dim=1)
        vectors: npt.NDArray[np.float32] = torch.nn.functional.normalize(once, p=2, dim=1).numpy()
        return vectors[np.argsort(order)]


def _length(folder: Path) -> int:
    """Word pieces that are read; raises Unavailable where no number is said, or text is put in lower case first."""
    said = json.loads((folder / LENGTH).read_text("utf-8"))
    if said.get("do_lower_case"):
        raise Unavailable(f"The sentence-BERT model in {folder} puts its text in lower case, which is not done here.")
    length = said.get("max_seq_length")
    if type(length) is not int:  # a bool is an int too
        raise Unavailable(f"The sentence-BERT model in {folder} has the max_seq_length {length} instead of a number.")
    return length


def _check_modules(folder: Path) -> None:
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    if kinds != MODULES:
        raise Unavailable(f"The sentence-BERT model in {folder} is made of {kinds} instead of {MODULES}.")
    pooling = json.loads((folder / modules[1]["path"] / "config.json").read_text("utf-8"))
    modes = [name for name, on in pooling.items() if name.startswith("pooling_mode") and on]
    if modes != ["pooling_mode_mean_tokens"]:
        raise Unavailable(f"The sentence-BERT model in {folder} pools by {modes} instead of the mean of its tokens.")
