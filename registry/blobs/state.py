"""The state of a store of blobs, a folder or a bucket: the store it has to be, and the fault of its last use."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from registry.spec import StoreMark

log = logging.getLogger("soup.blobs")


@dataclass(frozen=True)
class Fault:
    """A fault of a store: a summary, and a message with advice in which `{}` is the store or the system's error."""

    summary: str
    message: str
    is_transient: bool = False
    """True if it may be over a moment later, so that the request is retried."""


class StoreState:
    """The store id and the fault of a store that is `label` in the log; threads share it."""

    def __init__(self, label: str) -> None:
        self.store: str | None = None
        """The store id that the store's mark has to have; None until a mark was read."""
        self.fault: Fault | None = None
        """The fault of the last use, None if it succeeded."""
        self._label = label
        self._lock = threading.RLock()

    def matches(self, mark: StoreMark | None) -> bool:
        """Return True if this is the mark of the store; the first mark that is read sets the store id."""
        if self.store is None and mark is not None:
            self.store = mark.store
        return self.store == (None if mark is None else mark.store)

    def record_fault(self, fault: Fault, description: str) -> None:
        """Note a fault, and log its description unless the last use had the same fault."""
        with self._lock:
            if self.fault is not fault:
                self.fault = fault
                log.warning("%s %s", self._label, description)

    def clear_fault(self) -> None:
        """Note that the store can be used."""
        with self._lock:
            if self.fault is not None:
                self.fault = None
                log.info("%s can be used again", self._label)
