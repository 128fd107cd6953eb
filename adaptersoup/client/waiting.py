"""How the two kinds of client wait: the async one beside its event loop, the sync one in its thread.

`docs.sync_clients` puts the second name of each pair in the place of the first.
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
"""Run blocking work, such as reading a large file, beside the event loop."""


def directly(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work here."""
    return work(*args, **kwargs)
