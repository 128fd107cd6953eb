"""One lock around everything that has transformers build a model, and silence meanwhile.

While it loads weights, transformers replaces functions of its own classes and of torch for the whole process, and puts
back what it found. Two loads at once can put back each other's replacements: from then on no model of the process
would tie or initialise its weights. Held by `loading`, `architecture` and the sentence-BERT encoder.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging

BUILDING = threading.RLock()
"""Held while transformers builds a model, for as long as that takes."""


@contextmanager
def quiet(*, reports: bool = True) -> Iterator[None]:
    """Without transformers' progress bars while open, and without its reports on tensors unless `reports`.

    An encoder's files hold heads that are not loaded, which is nothing to warn of; what is missing is refused.
    """
    shown, told = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if not reports:
        transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers_logging.set_verbosity(told)
        if shown:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
