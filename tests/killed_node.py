"""A node of a Ray cluster on this machine that dies as a machine does: all at once."""

from __future__ import annotations

from typing import Any


def kill_node(cluster: Any, node: Any) -> None:
    """Kill a node of a `ray.cluster_utils.Cluster` with all that runs on it, which by itself ends a while after it."""
    import psutil

    for process in psutil.Process(node.all_processes["raylet"][0].process.pid).children(recursive=True):
        process.kill()
    cluster.remove_node(node, allow_graceful=False)
