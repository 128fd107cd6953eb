"""Temporary soups of `soup compare`: what an interrupted cook leaves to the next one."""

from __future__ import annotations

from typing import Any, cast

import pytest

from adaptersoup.cli.verbs.compare.cooking import TemporarySoups
from adaptersoup.client import SoupClient
from registry.progress import Progress
from registry.spec import CookRequest, PoolRequest, SampleSource


class InterruptedOnce:
    """A client whose first cook is interrupted while it waits for the pool; the next one waits and is answered."""

    def __init__(self) -> None:
        self.cooks = 0

    def begin_cook(self, request: CookRequest, *, progress: Progress) -> dict[str, Any]:
        self.cooks += 1
        if self.cooks == 1:
            raise KeyboardInterrupt
        progress(0, 1, "no sample is embedded yet")
        return {"object": "soup", "model": f"compare/{request.name}@1", "created": True}


def test_an_interrupted_cook_does_not_end_the_next() -> None:
    soups = TemporarySoups(cast(SoupClient, InterruptedOnce()))
    request = CookRequest(pool=PoolRequest(base_model="tiny"), sample=SampleSource(texts=["a b c"]))
    with pytest.raises(KeyboardInterrupt):
        soups.cook(request)
    answer = soups.cook(request)
    assert isinstance(answer, dict), answer
    assert soups.refs == [answer["model"]]
