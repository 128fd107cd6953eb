"""llama.cpp's server, base model only: one request a row, all at once, each in a slot of its own.

The server is `bin/llama-server` of the environment, built from the sources that llama-cpp-python ships.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

START_SECONDS = 120.0


def versions() -> dict[str, str]:
    """That of the package whose sources the server was built from."""
    lines = Path(__file__).with_name("llama_cpp.txt").read_text().split()
    return dict(line.split("==") for line in lines)


def start(*, file: str, dtype: str, rows: int, context: int) -> Callable[..., list[list[int]]]:
    """Start the server over a GGUF file with `rows` slots of `context` tokens; raises OSError where it ends."""
    port, threads = free_port(), os.environ["OMP_NUM_THREADS"]
    cache_type = {"float32": "f32", "bfloat16": "bf16"}[dtype]
    server = subprocess.Popen(
        [
            Path(sys.prefix) / "bin" / "llama-server",
            "--model",
            file,
            "--port",
            str(port),
            "--parallel",
            str(rows),
            "--ctx-size",
            str(rows * context),
            "--threads",
            threads,
            "--threads-batch",
            threads,
            "--threads-http",
            str(rows),
            "--cache-type-k",
            cache_type,
            "--cache-type-v",
            cache_type,
            "--no-warmup",
            "--offline",
        ],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
    )
    url = f"http://127.0.0.1:{port}"
    _wait(server, url)

    def write(prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(partial(_completion, url, tokens=tokens), prompts))

    return write


def _completion(url: str, prompt: Sequence[int], *, tokens: int) -> list[int]:
    body = {
        "prompt": list(prompt),
        "n_predict": tokens,
        "temperature": 0,
        "samplers": ["top_k"],
        "top_k": 1,
        "ignore_eos": True,
        "cache_prompt": False,
        "return_tokens": True,
    }
    token_ids: list[int] = _call(f"{url}/completion", json.dumps(body).encode())["tokens"]
    return token_ids


def _call(url: str, body: bytes | None = None) -> dict[str, Any]:
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        reply: dict[str, Any] = json.load(answer)
        return reply


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    """Until it has loaded the model."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.poll() is None:
        try:
            _call(f"{url}/health")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise OSError(f"llama-server did not answer within {START_SECONDS:.0f} s (exit code {server.poll()})")


def free_port() -> int:
    """A free port of loopback."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
