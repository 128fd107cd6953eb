"""Tests that `soup doctor` names twelve planted faults and accepts sound servers, and how long it takes.

The registry has a LoRA in two versions and the neutral adapters; faults are planted in the LoRA's weights, which the
same engine serves in a namespace that the registry's key does not see, and in base models of further servers.
All neutral adapters are also checked in vLLM for CPUs where it is installed (`make bench-peers`).
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from adaptersoup.client.additions import Additions
from benchmarks.peers.process import ENVIRONMENTS, PeerMissing
from benchmarks.peers.vllm_server import ServedBase, serving_vllm
from benchmarks.report import Result, options
from demo.prepare import convert, neutral_domains
from demo.results import ROOT, Figure
from demo.server import SOUP, Server, running, write_bases
from registry.adapters.lora import LORA_B
from registry.base_model import shape_of
from registry.errors import Internal
from registry.formats import WEIGHTS_FILE, read_directory
from registry.spec import BaseEntry, Verdict

BASE_ID = "smollm2"
FAULTS_GOAL, SECONDS_GOAL = 12, 5.0
VLLM_RANK = 64
"""The least of vLLM's that holds a neutral adapter, which has rank 33 there."""
NOISE = 0.2
"""Of the spread of each tensor, in the older version."""
INT8 = 127
NEUTRAL = ("bbc_news", "dc_law")
"""Neutral adapters that are checked in bf16."""
COLUMNS = ("adapter", "verdict", "error", "effect", "base_error", "factor", "served")
"""Of a diagnosis, those that a row has."""

Weights = dict[str, Tensor]


class Fault(NamedTuple):
    """A fault of a LoRA's weights, and the verdict that names it."""

    verdict: Verdict
    plant: Callable[[Weights], Weights]


# --- faults -------------------------------------------------------------------------------------------------


def changed(weights: Weights, change: Callable[[str, Tensor], Tensor]) -> Weights:
    """The weights with each B changed, which `change` gets with its name."""
    return {name: change(name, tensor) if name.endswith(LORA_B) else tensor for name, tensor in weights.items()}


def scaled(weights: Weights, factor: Callable[[str], float]) -> Weights:
    """The weights with each B multiplied by the factor of its name."""
    return changed(weights, lambda name, b: b * factor(name))


def layer_of(name: str) -> int:
    """The number of the layer of a tensor."""
    return int(name.split(".layers.")[1].split(".")[0])


def transposed(weights: Weights) -> Weights:
    """The weights with the values of each B in the order of its transpose."""
    return changed(weights, lambda _, b: b.reshape(b.shape[::-1]).T.contiguous())


def truncated(weights: Weights) -> Weights:
    """The weights with the first half of the ranks."""
    return changed(weights, lambda _, b: b * (torch.arange(b.shape[1]) < b.shape[1] // 2))


def older(weights: Weights) -> Weights:
    """An older state of the weights: with seeded noise."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: tensor + NOISE * tensor.std() * torch.randn(tensor.shape, generator=generator)
        for name, tensor in weights.items()
    }


FAULTS: dict[str, Fault] = {
    "dropped_targets": Fault("broken", lambda weights: scaled(weights, lambda name: float("self_attn" in name))),
    "half_the_modules": Fault("broken", lambda weights: scaled(weights, lambda name: float(layer_of(name) % 2 == 0))),
    "alpha_ignored": Fault("wrong_scale", lambda weights: scaled(weights, lambda _: 0.5)),
    "rslora_ignored": Fault("wrong_scale", lambda weights: scaled(weights, lambda _: 0.25)),
    "merged_twice": Fault("wrong_scale", lambda weights: scaled(weights, lambda _: 2.0)),
    "b_transposed": Fault("broken", transposed),
    "truncated_rank": Fault("broken", truncated),
}
"""The LoRA has alpha / rank 2 and rank 16: without alpha it is half as large, and a quarter with alpha / rank where
alpha / sqrt(rank) was meant."""


def without_queries(weights: Weights) -> Weights:
    """The weights without the queries' update: a fault of little effect, which is no part of the twelve."""
    return scaled(weights, lambda name: float("q_proj" not in name))


# --- servers ------------------------------------------------------------------------------------------------


def rounded_base(source: Path, target: Path) -> Path:
    """A copy of a base model whose matrices are rounded to 8 bits, a row at a time."""
    shutil.copytree(source, target)
    weights = load_file(source / "model.safetensors")
    for name, tensor in weights.items():
        if tensor.ndim == 2:
            step = tensor.float().abs().amax(1, keepdim=True).clamp_min(1e-12) / INT8
            weights[name] = ((tensor.float() / step).round() * step).to(tensor.dtype)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


@contextmanager
def serving(folder: Path, source: Path, **entry: str | bool) -> Iterator[Server]:
    """A server of the base model in `source`."""
    folder.mkdir()
    base = BaseEntry.model_validate({"id": BASE_ID, "source": str(source.resolve()), **entry})
    bases = write_bases(folder / "bases.toml", base)
    with running(bases, folder / "data") as server:
        yield server


@dataclass(frozen=True)
class Registry:
    """The server that has the adapters, and a key that reads namespace `team` alone."""

    server: Server
    key: str

    def doctor(self, server: Server, *models: str) -> list[dict[str, Any]]:
        """The rows of `soup doctor` on another server of ours, or on the registry's own."""
        return self.doctor_at(server.url, server.key, *models)

    def doctor_at(self, url: str, server_key: str, *models: str) -> list[dict[str, Any]]:
        """The rows of `soup doctor` on a server: one of each model that is named, else of all that it lists."""
        addresses = ["--url", url, "--server-key", server_key, "--registry", self.server.url, "--key", self.key]
        names = [argument for model in models for argument in ("--model", model)]
        command = [*SOUP, "doctor", *addresses, *names, "--json"]
        environment = dict(self.server.environment)
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        if not done.stdout:
            raise Internal(f"`soup doctor` failed: {done.stderr}")
        rows = list(json.loads(done.stdout)["data"])
        if models and len(rows) != len(models):
            raise Internal(f"`soup doctor` told of {len(rows)} of {len(models)} models: {done.stderr}")
        return rows


def push(server: Server, folder: Path, name: str) -> None:
    """Push a directory."""
    with server.client() as client:
        client.push_directory(folder, name=name, more=Additions(domain="doctor", base=BASE_ID))


def doctor_key(server: Server) -> str:
    """A new key that reads namespace `team` alone."""
    with server.client() as client:
        return str(client.create_key("doctor", scopes=["infer"], namespaces=["team"])["secret"])


def with_weights(lora: Path, target: Path, weights: Mapping[str, Tensor]) -> Path:
    """A directory of the LoRA with other weights, and without its sample."""
    target.mkdir()
    shutil.copy(lora / "adapter_config.json", target)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, target / WEIGHTS_FILE)
    return target


# --- measuring ----------------------------------------------------------------------------------------------


@dataclass
class Measurement:
    """One run: its folder, the base model, the LoRA and the neutral adapters, and the result so far."""

    home: Path
    base: Path
    lora: Path
    adapters: Path
    result: Result

    def run(self) -> None:
        """Push to the registry, plant the faults, and check sound servers."""
        weights = {name: tensor.float() for name, tensor in load_file(self.lora / WEIGHTS_FILE).items()}
        with serving(self.home / "registry", self.base, dtype="float32") as server:
            self._push_all(server, weights)
            registry = Registry(server, doctor_key(server))
            seconds = self._check_sound(registry)
            self._check_faults(registry, weights)
            self._check_other_bases(registry)
        self._check_vllm()
        judged = [row for row in self.result.rows if row.get("expected")]
        named = sum(row["fault"] != "none" and row["verdict"] == row["expected"] for row in judged)
        alarms = sum(row["fault"] == "none" and row["verdict"] != row["expected"] for row in judged)
        sound = sum(row["fault"] == "none" for row in judged)
        self.result.figures |= {
            "faults_named": Figure(named, "faults", FAULTS_GOAL, (), "against our own engine"),
            "false_alarms": Figure(alarms, "adapters", 0, (), f"of {sound} that are sound"),
            "seconds_an_adapter": Figure(
                seconds, "s", SECONDS_GOAL, (), "the whole command with the first probes, divided by its adapters"
            ),
        }

    def _push_all(self, server: Server, weights: Weights) -> None:
        """Push every adapter, and the LoRA in two versions."""
        fingerprint = shape_of(BaseEntry(id=BASE_ID, source=str(self.base)), self.home / "cache").fingerprint
        for name in neutral_domains(self.adapters):
            folder = convert(
                self.adapters,
                name,
                self.home / "neutral" / name,
                base_model=BASE_ID,
                base_fingerprint=fingerprint,
                texts=None,
            )
            push(server, folder.path, f"team/{name}")
        push(server, with_weights(self.lora, self.home / "older", older(weights)), "team/lora")
        push(server, with_weights(self.lora, self.home / "lora", weights), "team/lora")

    def _check_sound(self, registry: Registry) -> float:
        """Check every adapter where it is served as it should be; returns seconds an adapter."""
        start = time.perf_counter()
        rows = registry.doctor(registry.server)
        seconds = (time.perf_counter() - start) / len(rows)
        self._add(rows, "none", "same")
        return seconds

    def _check_faults(self, registry: Registry, weights: Weights) -> None:
        for name, fault in FAULTS.items():
            push(registry.server, with_weights(self.lora, self.home / name, fault.plant(weights)), f"faults/{name}")
            self._add(registry.doctor(registry.server, f"faults/{name}=team/lora"), name, fault.verdict)
        name = "without_queries"
        push(registry.server, with_weights(self.lora, self.home / name, without_queries(weights)), f"faults/{name}")
        self._add(registry.doctor(registry.server, f"faults/{name}=team/lora"), name, None)
        for name, model, served in (
            ("old_version", "team/lora@1", "team/lora@1"),
            ("another_adapter", "team/bbc_news", "team/bbc_news@1"),
        ):
            rows = registry.doctor(registry.server, f"{model}=team/lora")
            self._add([row for row in rows if row["served"] == served], name, "other_adapter")
        self._add(registry.doctor(registry.server, f"base/{BASE_ID}=team/lora"), "base_only", "base_only")

    def _check_other_bases(self, registry: Registry) -> None:
        """Check the LoRA on a base model in bf16, on a rounded one, and without a BOS."""
        int8 = rounded_base(self.base, self.home / "int8_base")
        with serving(self.home / "int8", int8, dtype="float32") as server:
            push(server, self.home / "lora", "team/lora")
            self._add(registry.doctor(server, "team/lora"), "quantised_base", "other_dtype")
        with serving(self.home / "no_bos", self.base, dtype="float32", bos=False) as server:
            push(server, self.home / "lora", "team/lora")
            self._add(registry.doctor(server, "team/lora"), "wrong_bos", "broken")
        with serving(self.home / "bfloat16", self.base, dtype="bfloat16") as server:
            for name, folder in (
                ("lora", self.home / "lora"),
                *((name, self.home / "neutral" / name) for name in NEUTRAL),
            ):
                push(server, folder, f"team/{name}")
                self._add(registry.doctor(server, f"team/{name}"), "none", "other_dtype", dtype="bfloat16")
            for name in ("without_queries", "truncated_rank"):
                push(server, self.home / name, f"faults/{name}")
                self._add(registry.doctor(server, f"faults/{name}=team/lora"), name, None, dtype="bfloat16")

    def _check_vllm(self) -> None:
        """Check the neutral adapters in vLLM, which gets them from a registry; neither adds a BOS to text."""
        names = neutral_domains(self.adapters)
        config = read_directory(self.home / "neutral" / names[0]).config
        served = ServedBase(source=str(self.base), name=BASE_ID, config=config, max_rank=VLLM_RANK)
        scratch = self.home / "vllm"
        scratch.mkdir()
        with serving(self.home / "vllm_registry", self.base, dtype="float32", bos=False) as server:
            for name in names:
                push(server, self.home / "neutral" / name, f"team/{name}")
            registry = Registry(server, doctor_key(server))
            try:
                with serving_vllm(served, server, scratch, ENVIRONMENTS) as vllm:
                    url = str(vllm.base_url).removesuffix("/v1/")
                    rows = registry.doctor_at(url, "none", *(f"team/{name}@1" for name in names))
            except PeerMissing as missing:
                self.result.rows.append({"fault": "none", "server": "vllm", "missing": str(missing)})
                return
        self._add(rows, "none", "same", server="vllm")

    def _add(
        self,
        rows: Sequence[Mapping[str, Any]],
        fault: str,
        expected: Verdict | None,
        *,
        dtype: str = "float32",
        server: str = "soup",
    ) -> None:
        """Add diagnoses; no verdict is expected of faults that are not counted."""
        about = {"fault": fault, "server": server, "dtype": dtype, "expected": expected}
        self.result.rows += [{**about, **{name: row[name] for name in COLUMNS}} for row in rows]


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--base-folder", type=Path, default=Path(".demo/models/SmolLM2-135M-Instruct"))
    parser.add_argument("--lora", type=Path, required=True, help="directory of a LoRA of rank 16 and alpha 32")
    parser.add_argument("--adapters", type=Path, default=Path("../shared/adapters/smollm2"), help="neutral adapters")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        result = Result()
        Measurement(Path(home), arguments.base_folder.resolve(), arguments.lora, arguments.adapters, result).run()
        result.finish(arguments.out)


if __name__ == "__main__":
    main()
