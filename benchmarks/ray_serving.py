"""What Ray Serve costs: the tokens of one replica behind it, over those of the same server without it.

- `ray_vs_direct`: tokens per second of streams at once from a server whose one replica is on Ray, over the same from a
  server with an engine of its own. Both take the same requests in turns.

All processes are on this machine, and share its processors with the clients. The database is PostgreSQL.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from benchmarks.faults.server import BASE, FOLDER
from benchmarks.fleet.asking import completion
from benchmarks.fleet.overhead import streaming
from benchmarks.replicas import Place, place
from benchmarks.report import Result, interleaved, options, ratios, repeated, run_parts
from benchmarks.scale import STREAMS, TOKENS
from demo.server import SOUP, environment
from registry.errors import Internal
from registry.ray_cluster import LocalCluster, ray_cluster

GOAL = 0.85
STORE_BYTES = 100_000_000


def measure_ray(result: Result, *, streams: int, tokens: int, repeats: int, source: Path = FOLDER) -> None:
    """Streams at once, from a server with an engine and from one whose replica is on Ray."""
    with tempfile.TemporaryDirectory() as folder, _cluster() as address, ExitStack() as stack:
        at = stack.enter_context(place(Path(folder), source, settings={"SOUP_ENGINE_ROWS": str(streams)}))
        direct = at.replica()
        _deploy(at, address)
        servers = {"direct": direct, "ray": at.replica(SOUP_RAY_ADDRESS=address)}
        body = completion(f"base/{BASE}", stream=True, max_tokens=tokens)
        body.pop("logprobs")
        calls = {
            way: streaming(stack.enter_context(at.client(server)), body, streams) for way, server in servers.items()
        }
        times = interleaved(calls, repeats=repeats)
    result.rows += [
        {"part": "ray", "way": way, "streams": streams, "tokens": tokens, "wall_s": median(found)}
        for way, found in times.items()
    ]
    result.figures["ray_vs_direct"] = repeated(
        ratios(times["direct"], times["ray"]), "ratio", goal=GOAL,
        note=f"tokens/s of one replica behind Ray Serve over a server's own engine; {streams} streams",
    )  # fmt: skip


@contextmanager
def _cluster() -> Iterator[str]:
    """The address of a cluster of this machine, with a token of its own in the environment."""
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(16)
    with ray_cluster(LocalCluster(cpus=1, store_bytes=STORE_BYTES)):
        import ray

        yield str(ray.get_runtime_context().gcs_address)


def _deploy(at: Place, address: str) -> None:
    done = subprocess.run(
        [*SOUP, "ray", "deploy", "--address", address],
        env=environment(at.folder / "data-ray", **at.settings), capture_output=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Internal(f"`soup ray deploy` failed: {done.stderr.decode(errors='replace')[-2000:]}")


def main() -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--base-folder", type=Path, default=FOLDER, help="base model of the streams")
    run(parser.parse_args())


def run(given: argparse.Namespace) -> None:
    """The one part, in its own place of the file."""

    def part(result: Result) -> None:
        measure_ray(result, streams=STREAMS, tokens=TOKENS, repeats=given.repeats, source=given.base_folder)

    run_parts("scale", {"ray": part}, only=["ray"], out=given.out)


if __name__ == "__main__":
    main()
