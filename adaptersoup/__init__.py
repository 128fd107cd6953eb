"""AdapterSoup in a Python program or a notebook: a registry in a folder, without a server beside it.

    from adaptersoup import Store

    with Store("my-soups", base="models/SmolLM2-135M") as store:
        for folder in Path("adapters").iterdir():
            store.push(folder, name=f"team/{folder.name}")
        soup = store.cook(texts)  # picks adapters and mixes them, or says that nothing helps
        print(soup)
        print(store.evaluate(soup, other_texts, baseline="base"))

Everything a server does is done here by the same code, in this process: a folder that a `Store` made can be served by
`soup serve --data`, and the other way round, one at a time. Needs the extra `server`.
"""

from __future__ import annotations

from adaptersoup.store import Store
from adaptersoup.values import Adapter, Adapters, Listed, Perplexity, Selection, Soup
from service.plots import Picture

__all__ = ["Adapter", "Adapters", "Listed", "Perplexity", "Picture", "Selection", "Soup", "Store"]
