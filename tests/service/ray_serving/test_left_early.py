"""A replica whose client leaves before the engine has its request."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from service.engine import SamplingParams, Ticket
from service.ray_serving.plan import ReplicaPlan, plan_of
from service.ray_serving.replica import Replica
from service.ray_serving.wire import Asked
from service.settings import Settings
from tests.service.servers import write_bases

LONG = SamplingParams(max_tokens=60, n=64, temperature=0.5)


@pytest.fixture
def plan(tiny_base_dir: Path, tmp_path: Path) -> ReplicaPlan:
    bases = write_bases(tmp_path / "bases.toml", {"tiny": tiny_base_dir})
    found = plan_of(Settings(data=tmp_path / "data", bases=bases, threads=1))
    found.blobs.folder.mkdir(parents=True)
    return found


def test_what_is_submitted_for_nobody_is_cancelled(plan: ReplicaPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is gone while a thread checks its request: the engine drops what that thread hands it."""

    async def check() -> None:
        replica = Replica(plan)
        submit, there, gone = replica._engine.submit, threading.Event(), threading.Event()
        tickets: list[Ticket] = []

        def late(request: object) -> Ticket:
            there.set()
            assert gone.wait(20)
            tickets.append(submit(request))  # type: ignore[arg-type]
            return tickets[-1]

        monkeypatch.setattr(replica._engine, "submit", late)
        try:
            asked = Asked("tiny", replica._bases.text("tiny").shape.fingerprint, (1, 2, 3), LONG, None, None)

            async def listen() -> None:
                async for _ in replica.generate(asked):
                    pass

            listening = asyncio.create_task(listen())
            assert await asyncio.to_thread(there.wait, 20)
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening
            gone.set()
            for _ in range(1000):
                if tickets and not replica._engine.counters()["requests"]:
                    break
                await asyncio.sleep(0.01)
            counts = replica._engine.counters()
            assert (counts["requests_cancelled_total"], counts["requests_finished_total"]) == (1, 0)
        finally:
            replica.stop()

    asyncio.run(check())
