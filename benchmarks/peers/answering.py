"""The loop of a peer's process: a line of JSON in, a line of JSON out.

Run as `python -P answering.py PEER.py` by the interpreter of a peer's environment, so it imports the standard library
only. The first line has the arguments of `start` of PEER.py, which returns the peer's `write`; the answer is its
`versions`. Every further line has the arguments of a call of `write`. Output of libraries goes to stderr.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable
from typing import Any


def main() -> None:
    """Answer until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    spec = importlib.util.spec_from_file_location("peer", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    write: Callable[..., list[list[int]]] | None = None
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        answer: dict[str, Any]
        try:
            if write is None:
                write = peer.start(**request)
                answer = {"versions": peer.versions()}
            else:
                answer = {"rows": write(**request)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
