"""A registry without a server: real database, blobs in memory, encoders and likelihoods made up from the text.

A passage's first word is its domain: each domain has its own direction, so that selectors tell them apart. The base
model's NLL is 3 nats a token; `gains` says by how much an adapter (by digest) betters or worsens a passage.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from registry.adapters import Init, create, sites_of
from registry.adapters.loadable import LoadableAdapter
from registry.adapters.moments import measured_weights, packed
from registry.adapters.weights import load_tensors, save_tensors, save_unique
from registry.blobs import BlobStore
from registry.catalogue import Database
from registry.catalogue.rows import AdapterRow, AuditRow, SelectorRow
from registry.context import BaseModel, Caller, Registry
from registry.cook.cook import cook
from registry.cook.job import Computations
from registry.encoders import BaseModelEncoder, Encoder
from registry.encoders.contract import Embedded, EmbeddedText
from registry.lifecycle.purge import purge
from registry.names import parse_ref, sha256_digest
from registry.progress import Progress
from registry.push import Pushed, push
from registry.samples.embeddings_file import save_embeddings
from registry.samples.sample import embed
from registry.select.fit import fit
from registry.spec import (
    AdapterConfig,
    BaseEntry,
    BaseShape,
    BottleneckConfig,
    ByLosses,
    Cooked,
    CookRequest,
    Effort,
    LoraConfig,
    LoraModule,
    Manifest,
    MeasuredStatistic,
    PassageScore,
    PoolSpec,
    Provenance,
    Screened,
    SelectorSpec,
    StatisticRequest,
    Tuned,
    TuningRequest,
    Unseen,
    Weighing,
    WeighingRequest,
)
from registry.spec.limits import SizeLimits
from tests.registry.memory_blobs import MemoryBlobs

LINEARS = {
    f"transformer.h.{layer}.{name}": sizes
    for layer in range(2)
    for name, sizes in {"attn.c_attn": (8, 24), "mlp.c_fc": (8, 32), "mlp.c_proj": (32, 8)}.items()
}
SHAPE = BaseShape(
    fingerprint=sha256_digest(b"the base"),
    model_type="gpt2",
    hidden_size=8,
    num_layers=2,
    context=64,
    vocab_size=300,
    linears=LINEARS,
    kv=(2, 4),
)
CONFIG = BottleneckConfig(structure="pfeiffer", bottleneck=2, activation="relu")
OTHER_CONFIG = BottleneckConfig(structure="bapna_firat", bottleneck=2, activation="relu")
LORA = LoraConfig.of({path: LoraModule(2, 4.0) for path in LINEARS if path.endswith("c_attn")})
WIDE_LORA = LoraConfig.of({path: LoraModule(3, 1.0) for path in LINEARS}, rslora=True)
INIT = Provenance(init_hash=sha256_digest(b"one init"), init_source="declared")
OTHER_INIT = Provenance(init_hash=sha256_digest(b"another init"), init_source="declared")
WEIGHTS = "adapter_model.safetensors"
BASE_NLL = 3.0


def passages(domain: str, count: int = 30, *, seed: int = 0) -> list[str]:
    """`count` different passages whose first word is the domain."""
    return [f"{domain} passage {seed} {number}" for number in range(count)]


def sample(*domains: str, count: int = 30) -> dict[str, list[str]]:
    """A sample with equal parts of these domains."""
    return {"texts": [text for domain in domains for text in passages(domain, count, seed=7)]}


def by_hand(*refs: str) -> dict[str, list[dict[str, str]]]:
    """A recipe of these adapters."""
    return {"ingredients": [{"ref": ref} for ref in refs]}


def direction(word: str, size: int) -> np.ndarray:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")).normal(size=size)


def vector(text: str, size: int = SHAPE.hidden_size) -> np.ndarray:
    """Near the direction of the text's first word."""
    unscaled = 10 * direction(text.split()[0], size) + direction(text, size)
    return (unscaled / np.linalg.norm(unscaled)).astype(np.float32)


def embed_texts(texts: Sequence[str], **_options: Any) -> list[EmbeddedText]:
    return [EmbeddedText(vector(text), BASE_NLL * len(text.split()), len(text.split()), False) for text in texts]


class FakeSentences:
    """An encoder that stands for sentence-BERT: one sentence a passage, 6 dimensions, one passage in ten cut."""

    name = "sbert"
    unit = "sentence"
    dimensions = 6
    digest = sha256_digest(b"fake sentences")

    def __init__(self) -> None:
        self.calls = 0

    def encode(self, texts, *, seed=0, max_units=None, scored=True, progress=None) -> Embedded:
        self.calls += 1
        if progress is not None:
            progress(0, 1, "embedding sentences")
        vectors = np.stack([vector(text, self.dimensions) for text in texts])
        return Embedded(vectors, np.arange(len(texts)), "sentence", truncated=len(texts) // 10)


def weights(seed: int, config: AdapterConfig = CONFIG, dtype: torch.dtype = torch.float32) -> bytes:
    generator = torch.Generator().manual_seed(seed)
    init: Init = "linear" if config.prefix_length else "near_identity"  # no base is at hand to start a prefix from
    tensors = create(config, SHAPE, seed=0, init=init).state_dict()
    return save_tensors(
        {name: (tensor + torch.randn(tensor.shape, generator=generator)).to(dtype) for name, tensor in tensors.items()}
    )


def inline(data: bytes) -> dict[str, str]:
    return {"base64": base64.b64encode(data).decode()}


def vectors_of(encoder: Encoder, texts: Sequence[str]) -> dict[str, Any]:
    """A sample as a team sends it that keeps its text."""
    data = save_embeddings(encoder.encode(texts).vectors)
    return {"embeddings": [{"encoder": encoder.digest, "unit": encoder.unit, "file": inline(data)}]}


class FakeBase:
    """A base model of one shape, whose likelihoods are made up from the text."""

    shape = SHAPE
    bos = None

    def __init__(self, encoders: Mapping[str, Encoder], base_id: str = "tiny", source: str = "tiny") -> None:
        self.entry = BaseEntry(id=base_id, source=source)
        self.known_encoders = encoders
        self.gains: dict[str, Callable[[str], float]] = {}
        self.anything_helps = 0.0
        self.scored: list[str | None] = []

    def encoders(self) -> Mapping[str, Encoder]:
        return self.known_encoders

    def score(self, texts: Sequence[str], adapter: LoadableAdapter | None, *, progress: Progress) -> list[PassageScore]:
        self.scored.append(None if adapter is None else adapter.digest)
        if adapter is not None:
            assert adapter.load()
        anyhow = 0.0 if adapter is None else self.anything_helps
        gain = self.gains.get("" if adapter is None else adapter.digest, lambda _: anyhow)
        return [
            PassageScore(nll=(BASE_NLL - gain(text)) * len(text.split()), tokens=len(text.split()), bytes=len(text))
            for text in texts
        ]


def fake_bases(**sources: str) -> dict[str, BaseModel]:
    """Base models of one shape by id, and where each is from."""
    return {base_id: FakeBase({}, base_id, source) for base_id, source in sources.items()}


class ToyRegistry:
    """The verbs over one database and one blob store."""

    def __init__(self, database: Database, blobs: BlobStore | None = None) -> None:
        self.base = BaseModelEncoder(SHAPE.fingerprint, SHAPE.hidden_size, embed_texts)
        self.sentences = FakeSentences()
        self.encoders: Mapping[str, Encoder] = {self.base.digest: self.base, self.sentences.digest: self.sentences}
        self.tiny = FakeBase(self.encoders)
        self.registry = Registry(database, blobs or MemoryBlobs(), {"tiny": self.tiny})
        self.database, self.blobs = self.registry.database, self.registry.blobs
        self.gains, self.scored = self.tiny.gains, self.tiny.scored
        self.fits = 0
        self.helpful: dict[str, float] = {}
        self.overflowing: set[str] = set()
        """Blobs of weights with which a weighing gives no finite value."""
        self.noise_helps = 0.0
        self.weighings: list[WeighingRequest] = []
        self.tunings: list[TuningRequest] = []
        self.measurings: list[StatisticRequest] = []
        self.learns = 0.2
        """Nats per token that each pass of tuning takes off `starts`, what the start has; the base has about 3.1."""
        self.starts = 3.0
        self.computations = Computations(self.fit, self.weigh, self.tune, self.measure)
        self.progress_messages: list[str] = []

    def caller(self, scope: tuple[str, ...] | None = None) -> Caller:
        return Caller("key-1", scope, "req-1")

    def manifest(self, name: str = "acme/law", *, seed: int = 0, **fields: Any) -> Manifest:
        config = fields.pop("config", CONFIG)
        files = fields.pop("files", None)
        values: dict[str, Any] = {
            "name": name,
            "domain": name.rpartition("/")[2],
            "base_model": "tiny",
            "config": config,
            "files": {WEIGHTS: inline(weights(seed, config))} if files is None else files,
            "provenance": INIT,
        }
        return Manifest.model_validate({**values, **fields})

    def push(self, name: str = "acme/law", *, scope: tuple[str, ...] | None = None, **fields: Any) -> Pushed:
        registry = replace(self.registry, limits=fields.pop("limits", SizeLimits()))
        return push(registry, self.caller(scope), self.manifest(name, **fields))

    def push_all(self, *names: str, **fields: Any) -> list[AdapterRow]:
        """Push an adapter for each name, all of different weights."""
        return [self.push(name, seed=seed, **fields).row for seed, name in enumerate(names)]

    def upload(self, data: bytes, namespace: str = "acme") -> str:
        """Store a blob that this namespace uploaded."""
        digest = self.blobs.put_bytes(data)
        with self.database.write() as catalogue:
            catalogue.blobs.record(digest, len(data))
            catalogue.blobs.grant(namespace, digest)
            catalogue.blobs.record_upload("key-1", digest)
        return digest

    def embed(self, row: AdapterRow) -> AdapterRow:
        return embed(self.registry, row.id, progress=self.progress)

    def ready(self, name: str, *, seed: int = 0, text: str = "", **fields: Any) -> AdapterRow:
        """Push an adapter with a sample, and embed it."""
        sample = {"texts": passages(text or name.rpartition("/")[2])}
        return self.embed(self.push(name, seed=seed, sample=sample, **fields).row)

    def ready_all(self, *names: str) -> list[AdapterRow]:
        """Push an adapter with a sample for each name, all of different weights, and embed them."""
        return [self.ready(name, seed=seed) for seed, name in enumerate(names)]

    def progress(self, done: int, total: int, message: str) -> None:
        self.progress_messages.append(message)

    def fit(self, pool: PoolSpec, spec: SelectorSpec, encoder_digest: str | None) -> SelectorRow:
        self.fits += 1
        return fit(self.registry, pool, spec, encoder_digest=encoder_digest, progress=self.progress)

    def cook(
        self,
        *,
        scope: tuple[str, ...] | None = None,
        namespace: str = "acme",
        settled: Effort | None = None,
        **request: Any,
    ) -> Cooked:
        return cook(
            self.registry,
            self.caller(scope),
            CookRequest.model_validate({"verify": False, **request}),
            namespace=namespace,
            computations=self.computations,
            progress=self.progress,
            queued_effort=settled,
        )

    def weigh(self, entry: BaseEntry, request: WeighingRequest) -> Weighing:
        """Candidates whose weights `helpful` names are kept, in its order, with coefficients that fall by site."""
        assert entry.id == "tiny"
        self.weighings.append(request)
        scores = [self.helpful.get(candidate.blob, -0.1) for candidate in request.candidates]
        best = sorted(range(len(scores)), key=lambda at: -scores[at])
        chosen = request.most_that_fit([at for at in best if scores[at] > 0])
        sites = [sorted(sites_of(request.candidates[at].config, SHAPE)) for at in chosen]
        return Weighing(
            screened=tuple(
                None if candidate.blob in self.overflowing else Screened(score=score, standard_error=0.01)
                for candidate, score in zip(request.candidates, scores, strict=True)
            ),
            chosen=chosen,
            coefficients=tuple(
                {site: scores[at] / (1 + number) for number, site in enumerate(names)}
                for at, names in zip(chosen, sites, strict=True)
            ),
            losses=(3.0,),
            screen_tokens=10,
            step_tokens=10,
            by_losses=self._by_losses(scores, best[: request.alone]) if request.alone else None,
            unseen=self._unseen(request.unseen) if request.unseen else None,
        )

    def _by_losses(self, scores: Sequence[float], scored: Sequence[int]) -> ByLosses:
        """Candidates alone take off what the screen says; distributions are mixed by it, and greedy takes two."""
        gains = [max(0.0, scores[at]) for at in scored]
        return ByLosses(
            scored=tuple(scored),
            differences=tuple(-scores[at] for at in scored),
            em=tuple(gain * 0.8 / (sum(gains) or 1.0) for gain in gains),
            greedy=tuple(scored[:2]),
        )

    def _unseen(self, texts: Sequence[str]) -> Unseen:
        """Noise takes `noise_helps` off, give or take."""
        scores = self.tiny.score(texts, None, progress=self.progress)
        return Unseen(
            nll=tuple(
                score.nll - (self.noise_helps + 0.01 * (at % 2)) * score.tokens for at, score in enumerate(scores)
            ),
            tokens=tuple(score.tokens for score in scores),
        )

    def named(self, name: str) -> AdapterRow:
        with self.database.read() as catalogue:
            return catalogue.adapters.resolve(None, parse_ref(name))

    def audit(self, action: str | None = None) -> list[AuditRow]:
        """Audit entries, all or those of an action, oldest first."""
        with self.database.read() as catalogue:
            return list(reversed(catalogue.audit.list(None, action=action, limit=100).rows))

    def retire(self, *ids: int) -> None:
        with self.database.write() as catalogue:
            for id in ids:
                catalogue.adapters.retire(id)

    def row(self, id: int | None) -> AdapterRow:
        with self.database.read() as catalogue:
            return catalogue.adapters.get(id)

    def tune(self, entry: BaseEntry, request: TuningRequest) -> Tuned:
        """Each pass takes `learns` nats per token off every held-out passage; weights are moved by a tenth a pass."""
        assert entry.id == "tiny"
        self.tunings.append(request)
        held_out = tuple(number for fold in request.folds for number in fold)
        nll = tuple(
            tuple(10.0 * (self.starts - self.learns * reached) for _ in held_out)
            for reached in range(request.passes + 1)
        )
        best_pass = min(range(len(nll)), key=lambda reached: (sum(nll[reached]), reached))
        started = load_tensors(self.blobs.read(request.start.blob))
        moved = {name: tensor.float() + 0.1 * best_pass for name, tensor in started.items()}
        return Tuned(
            held_out=held_out,
            tokens=(10,) * len(held_out),
            base_nll=tuple(30.0 + number % 3 for number in held_out),
            nll=nll,
            best_pass=best_pass,
            blob=self.blobs.put_bytes(save_unique(moved)) if best_pass else None,
            trained_tokens=100,
        )

    def measure(self, entry: BaseEntry, request: StatisticRequest) -> MeasuredStatistic:
        """Values that are drawn by the weights and the first text: positive, or moments of twice as many vectors."""
        assert entry.id == "tiny"
        self.measurings.append(request)
        draw = np.random.default_rng(int(sha256_digest((request.adapter.blob + request.texts[0]).encode())[7:15], 16))
        tensors = load_tensors(self.blobs.read(request.adapter.blob))
        if request.kind == "fisher":
            statistic = {name: torch.from_numpy(draw.random(tensor.shape)).float() for name, tensor in tensors.items()}
        else:
            read = {name: tensors[name].shape[1] for name in measured_weights(request.adapter.config, tensors)}
            drawn = {name: torch.from_numpy(draw.normal(size=(2 * size, size))) for name, size in read.items()}
            statistic = {name: packed(vectors.T @ vectors / len(vectors)) for name, vectors in drawn.items()}
        return MeasuredStatistic(
            blob=self.blobs.put_bytes(save_tensors(statistic)), passages=len(request.texts), tokens=99
        )


def purging(verbs: ToyRegistry, monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> None:
    """Purge acme/law when this function is called the next time, before it does anything."""
    real = getattr(where, name)

    def then(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(where, name, real)
        purge(verbs.registry, verbs.caller(), verbs.named("acme/law").id)
        return real(*args, **options)

    monkeypatch.setattr(where, name, then)


def domains_of(cooked: Cooked) -> list[str]:
    """The domains that were selected."""
    return [domain.domain for domain in cooked.evidence.selection.selected]


def reasons(cooked: Cooked) -> dict[str, str]:
    """By domain why it was left out."""
    return {domain.domain: domain.reason for domain in cooked.evidence.selection.left_out}


def assert_rebuilt(verbs: ToyRegistry, cooked: Cooked, **request: Any) -> None:
    """Delete the bytes of a soup and cook it again: the same row, recipe, report and bytes."""
    blob = verbs.row(cooked.soup_id).weights_blob
    data = verbs.blobs.read(blob)
    verbs.blobs.delete(blob)
    rebuilt = verbs.cook(**request)
    assert not rebuilt.cached
    assert (rebuilt.soup_id, rebuilt.digest, rebuilt.report) == (cooked.soup_id, cooked.digest, cooked.report)
    assert rebuilt.recipe_digest == cooked.recipe_digest
    assert verbs.blobs.read(blob) == data
