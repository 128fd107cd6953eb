"""AdapterSoup in a Python program or a notebook: a client of a server, or a registry in a folder without one.

    from adaptersoup import Client

    with Client("http://127.0.0.1:8000", "sk-soup-...") as soup:
        cooked = soup.cook(texts)  # chooses adapters and mixes them, or abstains
        print(cooked, soup.evaluate(cooked, other_texts))

`AsyncClient` has the same calls as coroutines. Both work with a bare install, without torch.

    from adaptersoup import Store

    with Store("my-soups", base="models/SmolLM2-135M") as store:
        for folder in Path("adapters").iterdir():
            store.push(folder, name=f"team/{folder.name}")
        print(store.evaluate(store.cook(texts), other_texts))

A `Store` runs the server's code in this process: a folder that a `Store` made can be served by `soup serve --data`,
and the other way round, one at a time. It needs the extra `server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaptersoup.asynchronous.client import AsyncClient
from adaptersoup.comparison import Compared, Comparison
from adaptersoup.synchronous.client import Client
from adaptersoup.values import Adapter, Adapters, Listed, Perplexity, Selection, Selector, Soup

if TYPE_CHECKING:
    from adaptersoup.store import Store

__all__ = [
    "Adapter",
    "Adapters",
    "AsyncClient",
    "Client",
    "Compared",
    "Comparison",
    "Listed",
    "Perplexity",
    "Selection",
    "Selector",
    "Soup",
    "Store",
]


def __getattr__(name: str) -> Any:
    """Import `Store` on first access, since it needs torch and the server's packages."""
    if name == "Store":
        from adaptersoup.store import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
