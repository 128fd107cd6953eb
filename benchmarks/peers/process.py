"""A peer's process: started, asked for rows, stopped while it is not its turn.

The same number of threads as ours has, waiting as ours do where they use the same OpenMP library. Between two calls
the whole process group is stopped by a signal, so that a peer which waits actively takes nothing from the others.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from demo.results import ROOT

HERE = Path(__file__).parent
ENVIRONMENTS = ROOT / ".venv-peers"
END_SECONDS = 10.0


class PeerMissing(Exception):
    """The peer is not installed here; the message gives the reason."""


@dataclass(frozen=True)
class PeerKind:
    """A peer's environment (a folder of ENVIRONMENTS), its script, and libraries to load before all others.

    The libraries are patterns of files in the environment, each of which must match.
    """

    environment: str
    script: str
    preload: Sequence[str] = ()


KINDS = {
    "vllm": PeerKind("vllm", "vllm_cpu.py", preload=("lib/libiomp5.so",)),
    "adapters": PeerKind("adapters", "adapters_library.py"),
    "llama_cpp": PeerKind("llama_cpp", "llama_server.py"),
}


class Peer:
    """One process of a peer. `versions` are those of the packages that matter.

    Raises PeerMissing where the environment is not there or the peer cannot start in it.
    """

    versions: Mapping[str, str]

    def __init__(self, kind: PeerKind, *, environments: Path = ENVIRONMENTS, **start: Any) -> None:
        python, environment = interpreter(kind, environments)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - until `close`
        self._process = subprocess.Popen(
            [python, "-P", HERE / "answering.py", HERE / kind.script],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
        )
        try:
            self.versions = self._ask(start)["versions"]
        except PeerFailed as error:
            self.close()
            raise PeerMissing(f"it does not start: {error}") from error

    def write(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[int, ...]]:
        """The tokens that it generates for each row; raises PeerFailed."""
        self._signal(signal.SIGCONT)
        return [tuple(row) for row in self._ask({"prompts": prompts, "tokens": tokens})["rows"]]

    def score(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[tuple[list[int], list[float]]]:
        """The tokens that it generates for each row, with their log-probabilities; raises PeerFailed."""
        self._signal(signal.SIGCONT)
        request = {"prompts": prompts, "tokens": tokens, "log_probabilities": True}
        return [(row[0], row[1]) for row in self._ask(request)["rows"]]

    def close(self) -> None:
        """End the process and all that it started."""
        self._signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired, BrokenPipeError):
            self._process.communicate(timeout=END_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to one line; the process is stopped after it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed(f"it ended; the end of what it said: {self._log_end()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        self._signal(signal.SIGSTOP)
        return answer

    def _log_end(self) -> str:
        self._log.seek(0)
        return " | ".join(self._log.read().decode(errors="replace").splitlines()[-3:])

    def _signal(self, number: signal.Signals) -> None:
        """To every process of its group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class PeerFailed(Exception):
    """A peer said that a call failed, or ended."""


PeerSpecs = Mapping[str, tuple[str, Mapping[str, Any]]]
"""Of each peer by its name: a name of KINDS, and what it starts with."""

Peers = Mapping[str, Peer | PeerMissing]
"""In the place of a peer that is not there stands the reason."""


@contextmanager
def peers(specs: PeerSpecs, environments: Path = ENVIRONMENTS) -> Iterator[Peers]:
    """All of these while open, one process each."""
    with ExitStack() as stack:
        processes: dict[str, Peer | PeerMissing] = {}
        for name, (kind, start) in specs.items():
            try:
                processes[name] = stack.enter_context(closing(Peer(KINDS[kind], environments=environments, **start)))
            except PeerMissing as missing:
                processes[name] = missing
        yield processes


def interpreter(kind: PeerKind, environments: Path = ENVIRONMENTS) -> tuple[Path, dict[str, str]]:
    """The interpreter of a peer's environment, and the variables that it runs with; raises PeerMissing."""
    folder = environments / kind.environment
    python = folder / "bin" / "python"
    if not python.is_file():
        raise PeerMissing(f"there is no environment {kind.environment} in {environments.name}: make bench-peers")
    return python, _environment(folder, kind.preload)


def _environment(folder: Path, preload: Sequence[str]) -> dict[str, str]:
    """This process's environment with as many threads as it has, nothing from the network, and the libraries.

    Raises PeerMissing for a library that is not there.
    """
    libraries = []
    for pattern in preload:
        files = sorted(folder.glob(pattern))
        if not files:
            raise PeerMissing(f"its environment has no {pattern}: make bench-peers")
        libraries.append(str(files[0]))
    threads = {name: str(torch.get_num_threads()) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_NO_USAGE_STATS": "1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "LD_PRELOAD"))}
    return {**inherited, **threads, **offline, **({"LD_PRELOAD": ":".join(libraries)} if libraries else {})}
