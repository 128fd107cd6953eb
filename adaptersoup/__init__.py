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

A `Store` runs the server's code in this process. `Store` and `soup serve --data` can use the same folder, one at a
time. It needs the extra `server`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from adaptersoup.asynchronous.client import AsyncClient
    from adaptersoup.comparison import Compared, Comparison
    from adaptersoup.store import Store
    from adaptersoup.synchronous.client import Client
    from adaptersoup.values import Adapter, Adapters, Listed, Perplexity, Selection, Selector, Soup

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

_MODULES = dict.fromkeys(__all__, "values") | {
    "AsyncClient": "asynchronous.client",
    "Client": "synchronous.client",
    "Compared": "comparison",
    "Comparison": "comparison",
    "Store": "store",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first access: the command line needs none of them, and `Store` needs torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
