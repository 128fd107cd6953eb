"""Every kind of job by its name in the queue. `jobs.runner` runs them."""

from __future__ import annotations

from service.jobs.contract import JobKind
from service.jobs.cook import COOK, SEARCH
from service.jobs.embed import EMBED
from service.jobs.evaluate import EVALUATE
from service.jobs.fit import FIT
from service.jobs.train import TRAIN

KINDS: dict[str, JobKind] = {
    "embed": EMBED,
    "fit": FIT,
    "train": TRAIN,
    "cook": COOK,
    "search": SEARCH,
    "evaluate": EVALUATE,
}
