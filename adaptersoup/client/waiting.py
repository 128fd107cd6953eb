"""Pauses and blocking work in the two kinds of client: beside the event loop, or in the calling thread.

`docs.sync_clients` replaces the first name of each pair by the second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

AsyncPause = Callable[[float], Awaitable[object]]
Pause = Callable[[float], object]

async_sleep = asyncio.sleep
sleep = time.sleep

in_thread = asyncio.to_thread
"""Run blocking work, such as reading a large file, in a thread beside the event loop."""


def directly(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in the calling thread."""
    return work(*args, **kwargs)
