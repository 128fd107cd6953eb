"""One lock around every call that has transformers build a model, and a context without its output.

While it loads weights, transformers replaces functions of its own classes and of torch for the whole process, and puts
them back afterwards. Two loads at once can restore each other's replacements, after which no model of the process
would tie or initialise its weights. Held by `loading`, `architecture` and the sentence-BERT encoder.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging

_logging: Any = logging  # without types
BUILDING = threading.RLock()
"""Held while transformers builds a model, for as long as that takes."""


@contextmanager
def quiet(*, reports: bool = True) -> Iterator[None]:
    """Silence transformers' progress bars while open, and its reports on tensors unless `reports`.

    An encoder's files hold heads that are not loaded, which needs no warning; missing tensors are refused elsewhere.
    """
    has_progress_bars, verbosity = _logging.is_progress_bar_enabled(), _logging.get_verbosity()
    _logging.disable_progress_bar()
    if not reports:
        _logging.set_verbosity_error()
    try:
        yield
    finally:
        _logging.set_verbosity(verbosity)
        if has_progress_bars:
            _logging.enable_progress_bar()
