"""The tasks there are, by the key that options and requests use.

Called by the trainer, the evaluation and whoever describes a training.
"""

from __future__ import annotations

from training.task import Task
from training.tasks.language import LanguageModelling

__all__ = ["LANGUAGE_MODELLING", "TASKS"]

LANGUAGE_MODELLING = LanguageModelling()
TASKS: dict[str, Task] = {task.key: task for task in (LANGUAGE_MODELLING,)}
