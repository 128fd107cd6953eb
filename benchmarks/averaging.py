"""What a soup costs to make: mixing tensors, and publishing a soup end to end on the embedded default.

The peer is the plain loop anybody would write (`torch.stack(...).mean(0)`), on the same tensors in the same run; the
results are compared too. peft's `add_weighted_adapter` is no peer: it mixes LoRA, and these are bottlenecks.

Publishing is `registry.cook` with a recipe by hand on a local blob folder and SQLite: the plan, reading and checking
each ingredient's bytes, mixing, digests, bytes to disk (fsync), one transaction. Each repeat cooks another recipe;
`again` asks for it once more.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

import migrations
from benchmarks.report import Result, interleaved, options, ratios, repeated, seconds
from demo.results import Row
from registry.adapters import create, paper_config
from registry.adapters.weights import adapter_digest, save_tensors
from registry.blobs import LocalBlobs
from registry.catalogue.database import Database
from registry.cook import Gradients, cook
from registry.encoders import Encoder
from registry.errors import Internal
from registry.names import sha256_digest
from registry.push import push
from registry.registry import Caller, Limits, Registry
from registry.soup.average import mix
from registry.soup.compat import SoupPart
from registry.spec import (
    AverageMixing,
    BaseEntry,
    BaseShape,
    BottleneckConfig,
    Cooked,
    CookRequest,
    FileSource,
    Manifest,
    Provenance,
    canonical_weights,
)

CALLER = Caller(key_id="benchmark", namespaces=None, request_id="benchmark")
INIT = Provenance(init_hash=sha256_digest(b"one initialisation"), init_source="declared")
BASE_ID = "base"


@dataclass(frozen=True)
class Size:
    """A base model's shape and the bottleneck adapters on it (Bapna-Firat)."""

    name: str
    layers: int
    hidden: int
    bottleneck: int

    @property
    def shape(self) -> BaseShape:
        """The shape that adapters are checked against; no model of it is needed to average."""
        return BaseShape(
            fingerprint=sha256_digest(self.name.encode()),
            model_type="gpt2",
            hidden_size=self.hidden,
            num_layers=self.layers,
            context=1024,
            vocab_size=50257,
        )

    @property
    def config(self) -> BottleneckConfig:
        """The structure of its adapters."""
        return paper_config("bapna_firat", bottleneck=self.bottleneck)

    def adapter(self, seed: int) -> dict[str, Tensor]:
        """Tensors of one adapter."""
        generator = torch.Generator().manual_seed(seed)
        module = create(self.config, self.shape, seed=seed)
        return {name: torch.randn(tensor.shape, generator=generator) for name, tensor in module.state_dict().items()}


SIZES = (
    Size("demo", layers=2, hidden=128, bottleneck=48),
    Size("gpt2_small", layers=12, hidden=768, bottleneck=64),
)
COUNTS = (5, 21)


# --- mixing tensors -------------------------------------------------------------------------------


def plain_mean(adapters: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """What ours is measured against: stack and mean."""
    return {name: torch.stack([adapter[name] for adapter in adapters]).mean(0) for name in adapters[0]}


def ours(size: Size, adapters: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """`registry.soup.average.mix` at equal weights."""
    weights = canonical_weights([1.0] * len(adapters))
    parts = []
    for number, (adapter, weight) in enumerate(zip(adapters, weights, strict=True)):
        part = SoupPart(
            adapter_id=number, ref=f"team/a{number}@1", digest=f"sha256:{number:064x}", weight=weight,
            base_fingerprint=size.shape.fingerprint, config=size.config, provenance=INIT, dtype="F32",
            load=partial(dict, adapter),
        )  # fmt: skip
        parts.append(part)
    return mix(parts, AverageMixing())


def measure_mixing(result: Result, size: Size, adapters: Sequence[Mapping[str, Tensor]], *, repeats: int) -> Row:
    """Time ours and the peer on the same tensors; the row says how far apart their results are."""
    key = f"{size.name}_{len(adapters)}"
    times = interleaved({"ours": lambda: ours(size, adapters), "mean": lambda: plain_mean(adapters)}, repeats=repeats)
    mine, peers = ours(size, adapters), plain_mean(adapters)
    result.figures[f"mix_{key}_ms"] = repeated([1000 * one for one in times["ours"]], "ms")
    result.figures[f"stack_mean_{key}_ms"] = repeated([1000 * one for one in times["mean"]], "ms")
    result.figures[f"mix_over_stack_mean_{key}"] = repeated(ratios(times["ours"], times["mean"]), "ratio")
    return {
        "size": size.name,
        "adapters": len(adapters),
        "parameters": sum(tensor.numel() for tensor in mine.values()),
        "mix_ms": 1000 * median(times["ours"]),
        "stack_mean_ms": 1000 * median(times["mean"]),
        "largest_difference": max(float((mine[name] - peers[name]).abs().max()) for name in mine),
    }


# --- publishing -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Store:
    """A catalogue and a blob folder with adapters in them."""

    size: Size
    registry: Registry

    def push(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Push one adapter, inline."""
        data = base64.b64encode(save_tensors(tensors)).decode()
        manifest = Manifest(
            name=name, domain=name.split("/")[1], base_model=BASE_ID, config=self.size.config, provenance=INIT,
            files={"adapter_model.safetensors": FileSource(base64=data)},
        )  # fmt: skip
        push(self.registry, CALLER, manifest)

    def cook(self, weights: Mapping[str, float]) -> Cooked:
        """Cook a recipe by hand."""
        request = CookRequest.model_validate(
            {"recipe": {"ingredients": [{"ref": ref, "weight": weight} for ref, weight in weights.items()]}}
        )
        return cook(
            self.registry, CALLER, request, namespace="default", fit=_no_model,
            gradients=Gradients(_no_model, _no_model, _no_model), progress=lambda *_: None,
        )  # fmt: skip


class Base:
    """The base model, of which nothing is run: a recipe by hand without a sample needs its shape only."""

    bos = None

    def __init__(self, shape: BaseShape) -> None:
        self.entry = BaseEntry(id=BASE_ID, source=BASE_ID)
        self.shape = shape

    def encoders(self) -> Mapping[str, Encoder]:
        """There are none."""
        return {}

    def score(self, *_: object, **__: object) -> Any:
        """Raises Internal."""
        return _no_model()


def _no_model(*_: object) -> Any:
    raise Internal("a recipe by hand without a sample runs no model")


def measure_publishing(result: Result, store: Store, names: Sequence[str], *, repeats: int) -> Row:
    """Seconds from recipe to a stored soup, and of asking again for one that is stored."""
    fresh = count()

    def recipe(number: int) -> dict[str, float]:
        return {name: 1.0 + (number + 1) * 0.001 * place for place, name in enumerate(names)}

    first, again = [], []
    store.cook(recipe(next(fresh)))
    for _ in range(repeats):
        weights = recipe(next(fresh))
        first.append(seconds(partial(store.cook, weights)))
        again.append(seconds(partial(store.cook, weights)))
        if not store.cook(weights).cached:
            raise Internal("a recipe cooked twice was not recognised")
    key = f"{store.size.name}_{len(names)}"
    result.figures[f"publish_{key}_ms"] = repeated([1000 * one for one in first], "ms")
    result.figures[f"publish_again_{key}_ms"] = repeated([1000 * one for one in again], "ms")
    return {"publish_ms": 1000 * median(first), "publish_again_ms": 1000 * median(again)}


def run(repeats: int) -> Result:
    """Every size with every number of ingredients."""
    result = Result("averaging")
    for size in SIZES:
        adapters = [size.adapter(seed) for seed in range(max(COUNTS))]
        digests = {adapter_digest(size.shape.fingerprint, size.config, adapter) for adapter in adapters}
        if len(digests) != len(adapters):
            raise Internal("the adapters are not different")
        with tempfile.TemporaryDirectory() as folder, closing(_database(Path(folder))) as database:
            limits = Limits(inline_bytes=2**30)
            store = Store(
                size, Registry(database, LocalBlobs(Path(folder) / "blobs"), {BASE_ID: Base(size.shape)}, limits)
            )
            names = [f"team/a{number}" for number in range(len(adapters))]
            for name, adapter in zip(names, adapters, strict=True):
                store.push(name, adapter)
            for some in COUNTS:
                row = measure_mixing(result, size, adapters[:some], repeats=repeats)
                result.rows.append(row | measure_publishing(result, store, names[:some], repeats=repeats))
    return result


def _database(folder: Path) -> Database:
    database = Database(f"sqlite:///{folder / 'soup.db'}")
    migrations.upgrade(database.engine)
    return database


def main() -> None:
    """The command line."""
    arguments = options(__doc__).parse_args()
    run(arguments.repeats).finish(arguments.out)


if __name__ == "__main__":
    main()
