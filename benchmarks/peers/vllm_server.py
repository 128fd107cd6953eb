"""vLLM's server for CPUs with the plugin of this checkout, as a peer that gets its adapters from a registry."""

from __future__ import annotations

import os
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from configparser import ConfigParser
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from openai import APIConnectionError, OpenAI

from benchmarks.peers.llama_server import free_port
from benchmarks.peers.process import KINDS, interpreter
from demo.results import ROOT
from demo.server import Server, stop
from registry.adapters.bottleneck_lora import kind_of
from registry.spec import AdapterConfig, BottleneckConfig

BLOCK, CONTEXT = 32, 192
"""Tokens of a block of vLLM's prefix cache, and of a context."""
START_SECONDS = 300.0


def plugin_path(scratch: Path) -> list[str]:
    """Folders in which vLLM's interpreter finds this checkout and its entry points, which an install would give it."""
    points = ConfigParser()
    points.read_dict(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"])
    metadata = scratch / "adaptersoup-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: adaptersoup\nVersion: 0\n")
    with (metadata / "entry_points.txt").open("w") as file:
        points.write(file)
    return [str(ROOT), str(scratch)]


def layers_of(configs: Sequence[AdapterConfig]) -> tuple[list[str], list[str]]:
    """The kinds of bottlenecks, and the names of their layers of zeros."""
    kinds = dict.fromkeys(kind_of(config) for config in configs if isinstance(config, BottleneckConfig))
    return [kind.name for kind in kinds], [layer for kind in kinds for layer in kind.layers(1, 1)]


@dataclass(frozen=True)
class ServedBase:
    """A base model that vLLM serves in fp32 under its id at the registry, and the bottlenecks that go with it."""

    source: str
    name: str
    config: AdapterConfig
    max_rank: int


@contextmanager
def serving_vllm(base: ServedBase, registry: Server, scratch: Path, environments: Path) -> Iterator[OpenAI]:
    """A client of vLLM's server, which resolves names at the registry; its log is in `scratch`."""
    python, variables = interpreter(KINDS["vllm"], environments)
    kinds, layers = layers_of([base.config])
    last_core = int(variables["OMP_NUM_THREADS"]) - 1
    variables |= {
        "PYTHONPATH": os.pathsep.join(plugin_path(scratch)),
        "VLLM_PLUGINS": "adaptersoup",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{last_core}",
        "SOUP_URL": registry.url,
        "SOUP_KEY": registry.key,
        "SOUP_VLLM_BASE": base.name,
        "SOUP_VLLM_BOTTLENECKS": ",".join(kinds),
        "SOUP_VLLM_CACHE": str(scratch / "cache"),
    }
    port = free_port()
    command = [
        str(python),
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        base.source,
        "--served-model-name",
        base.name,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        "float32",
        "--max-model-len",
        str(CONTEXT),
        "--max-num-seqs",
        "4",
        "--enforce-eager",
        "--kv-cache-memory-bytes",
        str(2**28),
        "--block-size",
        str(BLOCK),
        "--enable-lora",
        "--max-loras",
        "4",
        "--max-lora-rank",
        str(base.max_rank),
        "--lora-target-modules",
        *layers,
    ]
    with (scratch / "vllm.log").open("wb") as log:
        process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=120.0)
            wait_until(partial(answers, client, process), START_SECONDS)
            yield client
        finally:
            stop(process)


def answers(client: OpenAI, process: subprocess.Popen[bytes]) -> bool:
    """Return True if a server answers; raises OSError if it has ended."""
    if process.poll() is not None:
        raise OSError(f"vLLM's server ended with exit code {process.returncode}")
    try:
        client.models.list()
    except APIConnectionError:
        return False
    return True


def wait_until(condition: Callable[[], bool], seconds: float) -> float:
    """Seconds until a condition of vLLM's server holds; raises TimeoutError after `seconds`."""
    start = time.perf_counter()
    while not condition():
        if time.perf_counter() - start > seconds:
            raise TimeoutError(f"vLLM's server did not answer as expected within {seconds:.0f} s")
        time.sleep(0.05)
    return time.perf_counter() - start
