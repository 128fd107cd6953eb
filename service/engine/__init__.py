"""The inference engine: one thread that runs the base models, with continuous batching of generations and scores.

`request` has requests and results, `steps` the values that are scheduled. `scheduler` builds steps, within the limits
of `fairness`, `waiting_queue`, `step_times`, `kv_budget` and `prefix_cache`. `executor` runs a step on a `runner`
(`packing`, `kv_cache`, `sampler`, `grammars`) and adds its results to the `draft` of each request. A draft also draws
the seed of a generation without one. `base_cache` and `adapter_cache` load weights, `eviction` frees memory. `engine`
has the thread, `limits` the limits of its memory, and `text_calls` its blocking calls. It knows no HTTP, no catalogue
and no names: adapters are digests with a function that loads them.
"""

from registry.adapters.loadable import LoadableAdapter
from service.engine.limits import EngineLimits
from service.engine.request import (
    Completion,
    Delta,
    GenerateRequest,
    Generation,
    PromptScores,
    SamplingParams,
    ScoreRequest,
    Scores,
)
from service.engine.steps import Ticket

__all__ = [
    "Completion",
    "Delta",
    "EngineLimits",
    "GenerateRequest",
    "Generation",
    "LoadableAdapter",
    "PromptScores",
    "SamplingParams",
    "ScoreRequest",
    "Scores",
    "Ticket",
]
