"""The inference engine: the one thread that runs the base models, and the queue before it.

`request` is what is asked and answered, `steps` what of it one pass computes, `scheduler` decides what runs next,
with `pace` (how much beside streams), `space` (whose keys and values fit) and `kept_texts` (what stays of ended
sequences); `residence` holds base models, `bank` adapters, `kv` keys and values;
`trial` tries a base model that was loaded, `runner` runs the models on sequences that `packing` keeps apart,
`sampler` draws tokens, `grammars` says which may follow where an answer is to be JSON of a `json_schema`, `choice`
and `draft` make answers of them, `execute` is one step, `tally` counts what each adapter's requests took,
`engine` is the thread, `texts` the blocking calls for verbs.
"""

from registry.adapters.loadable import LoadableAdapter
from service.engine.engine import Engine
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
    "Engine",
    "GenerateRequest",
    "Generation",
    "LoadableAdapter",
    "PromptScores",
    "SamplingParams",
    "ScoreRequest",
    "Scores",
    "Ticket",
]
