"""The place that somebody asked for by a word: processes of this machine, or `ray[=HOST:PORT]`.

Called by the command line and by `benchmarks`. Ray is imported where it is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import partial

from registry.errors import InvalidParameter
from registry.pieces.contract import Workplace
from registry.pieces.processes import Processes
from registry.ray_cluster import LocalCluster, ray_cluster


@contextmanager
def place_of_work(on: str | None, *, at_once: int | None, cores: int | None = None) -> Iterator[Workplace]:
    """Open the place: so many processes (by default one), or with `on` a Ray cluster, with cores for each piece.

    The cluster is the one whose head is named, or one of this machine that ends with the work. Raises
    InvalidParameter for a word that names no place, and Unavailable or Unauthenticated as `ray_cluster` does.
    """
    if on is None:
        if cores is not None:
            raise InvalidParameter("--cores is of pieces on Ray: give --on ray as well.", param="cores")
        with Processes(at_once or 1) as processes:
            yield processes
        return
    name, equals, address = on.partition("=")
    if name != "ray" or bool(equals) != bool(address):
        raise InvalidParameter(f"--on takes ray, or ray=HOST:PORT of a cluster's head, not {on[:200]!r}.", param="on")
    with (
        redirect_stdout(sys.stderr),  # Ray prints what befalls its machines
        ray_cluster(address or LocalCluster()),
    ):
        from registry.pieces.on_ray import OnRay

        yield OnRay(cores=cores or 1, at_once=at_once, tell=partial(print, file=sys.stderr))
