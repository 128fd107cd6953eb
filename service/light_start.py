"""A start of the server without what its base models never use: torch's compiler, tensors spread over machines, SciPy.

Called by `soup serve`, and run for its processes that train and compute gradients and for those of a sweep (`LIGHTLY`),
before anything imports transformers, whose modules for models import all of these, which takes longer than the rest of
a start. None is gone. The compiler is loaded when something asks for any part of it but what keeps functions from
being compiled. Torch knows of its distributed package as before, only transformers takes this process for one that has
none: a process runs each base model on one device. And SciPy is there for others, only the losses of object detectors
do without (docs/decisions/0028-light-start.md).
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

LIGHTLY = "service.light_start"
"""The module that runs another one's `main` after a light start: `python -m service.light_start MODULE`."""
COMPILER = "torch._dynamo"
UNCOMPILED = ("disable", "assume_constant_result", "allow_in_graph", "graph_break")
"""What tells the compiler what to leave alone: decorators, and a word that optimisers say at each step.

Where nothing is compiled they change nothing.
"""


@contextmanager
def light_start() -> Iterator[None]:
    """While open, imports make no rounds of the garbage collector; what came in is then left out of later ones.

    Nothing may be built meanwhile that is to be given back: a base model that was left out would never be freed.
    """
    gc.disable()
    try:
        import_models()
        yield
    finally:
        gc.enable()
        gc.freeze()


def import_models() -> None:
    """Import what all families of base models share."""
    put_off_compiler()
    without_distributed()
    import transformers.utils

    with _answering_no(transformers.utils, "is_scipy_available"):
        import transformers.modeling_utils


def put_off_compiler() -> None:
    """Let torch's compiler be imported at its first use; nothing where it was imported already."""
    import torch

    spec = importlib.util.find_spec(COMPILER)
    if COMPILER in sys.modules or spec is None:
        return
    module = _PutOff(COMPILER)
    module.__spec__, module.__loader__, module.__path__ = spec, spec.loader, list(spec.submodule_search_locations or ())
    vars(module).update(dict.fromkeys(UNCOMPILED, _unchanged))
    sys.modules[COMPILER] = module
    torch._dynamo = module


def without_distributed() -> None:
    """Let transformers find that torch has no distributed package, an answer that it keeps."""
    import torch.distributed
    from transformers.utils.import_utils import is_torch_distributed_available

    with _answering_no(torch.distributed, "is_available"):
        is_torch_distributed_available()


@contextmanager
def _answering_no(module: ModuleType, question: str) -> Iterator[None]:
    """While open, a function of a module says False."""
    found = getattr(module, question)
    setattr(module, question, lambda: False)
    try:
        yield
    finally:
        setattr(module, question, found)


def _unchanged(function: Any = None, *_args: Any, **_options: Any) -> Any:
    """A decorator, with arguments or without, that gives back what it is put on."""
    return _same if function is None else function


def _same(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


class _PutOff(ModuleType):
    """A package that is imported when an attribute is asked for that it has not; its modules can be imported before."""

    _lock = threading.RLock()
    _begun = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with self._lock:  # others wait for whoever imports; who imports sees what is there so far
            if not self._begun:
                self._begun = True
                spec = self.__spec__
                assert spec is not None
                assert spec.loader is not None
                spec.loader.exec_module(self)
        try:
            return vars(self)[name]
        except KeyError:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}") from None


def main() -> None:
    """Run a program of ours: the module that the first argument names."""
    with light_start():
        program = importlib.import_module(sys.argv[1])
    program.main()


if __name__ == "__main__":
    main()
