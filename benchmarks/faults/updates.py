"""Writers of one card that each add a mark: with `if_match` none may be lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from benchmarks.faults.content import adapter
from benchmarks.faults.server import Killable
from registry.errors import PreconditionFailed
from registry.spec import Card

NAME = "shared/card"


def lost_updates(server: Killable, *, writers: int, each: int) -> int:
    """The number of acknowledged marks that are missing in the end."""
    with server.client() as client:
        client.push(adapter(NAME, 0, sample=False))

    def write(writer: int) -> None:
        with server.client() as client:
            for number in range(each):
                while True:
                    now = client.adapter(NAME)
                    marked = Card(description=f"{now['card']['description']} {writer}-{number}")
                    try:
                        client.update_adapter(NAME, card=marked, if_match=now["etag"])
                        break
                    except PreconditionFailed:
                        continue

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    with server.client() as client:
        return writers * each - len(set(client.adapter(NAME)["card"]["description"].split()))
