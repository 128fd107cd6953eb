"""The inference engine: the one thread that runs the base models, and the queue before it.

`request` is what is asked and answered, `scheduler` decides what runs next, `bank` holds adapters ready, `runner`
runs the models, `sampler` draws tokens, `choice`, `text` and `draft` make answers of them, `execute` is one batch,
`engine` the thread, `texts` the blocking calls for verbs.
"""

from service.engine.engine import Engine
from service.engine.request import (
    AdapterHandle,
    Completion,
    Delta,
    GenerateRequest,
    Generation,
    PromptScores,
    SamplingParams,
    ScoreRequest,
    Scores,
    State,
)
from service.engine.scheduler import Ticket

__all__ = [
    "AdapterHandle",
    "Completion",
    "Delta",
    "Engine",
    "GenerateRequest",
    "Generation",
    "PromptScores",
    "SamplingParams",
    "ScoreRequest",
    "Scores",
    "State",
    "Ticket",
]
