"""A Ray cluster of several nodes on this machine, in a process of its own: Ray and its warnings stay out of the tests.

Run as a script it starts the nodes, prints the head's address, and does what lines on its standard input say: `add`
starts a node, `kill N` kills the N-th with all that runs on it. It ends with its standard input.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.killed_node import kill_node

TOKEN = "token-of-the-tests-" + "0" * 32


@dataclass
class Nodes:
    """The process of a cluster, and the address of its head."""

    address: str
    process: subprocess.Popen[str]

    def tell(self, line: str) -> None:
        """Have it do something; returns once that is done."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == f"did {line}"


def with_token(**more: str) -> dict[str, str]:
    """The environment of a process that may use the cluster."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**environment, "RAY_AUTH_TOKEN": TOKEN, **more}


@contextmanager
def ray_nodes(count: int) -> Iterator[Nodes]:
    """A head that runs nothing, and so many nodes of one CPU each."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.service.ray_serving.ray_nodes", str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=with_token(RAY_prestart_worker_first_driver="0"),  # a replica has variables of its own, and takes none
    )
    try:
        yield Nodes(process.stdout.readline().strip(), process)
    finally:
        process.communicate(timeout=60)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(count: int) -> None:
    """The process of the cluster."""
    from registry.tasks.ray_connection import prepare_environment

    prepare_environment()
    from ray.cluster_utils import Cluster

    common: dict[str, Any] = {
        "object_store_memory": 80_000_000,
        "include_dashboard": False,
        "node_ip_address": "127.0.0.2",
        "include_log_monitor": False,
    }
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **common})
    nodes = [cluster.add_node(wait=False, num_cpus=1, **common) for _ in range(count)]
    cluster.wait_for_nodes()
    say(cluster.address)
    for line in sys.stdin:
        action, _, number = line.strip().partition(" ")
        if action == "add":
            nodes.append(cluster.add_node(num_cpus=1, **common))
        else:
            kill_node(cluster, nodes[int(number)])
        say(f"did {line.strip()}")
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
