"""All tasks by the key that options and requests use.

Called by the trainer, the evaluation and `training.request`.
"""

from __future__ import annotations

from training.tasks.answering import QuestionAnswering
from training.tasks.classification import Classification
from training.tasks.contract import Task
from training.tasks.language import LanguageModelling
from training.tasks.summarisation import Summarisation

__all__ = ["LANGUAGE_MODELLING", "TASKS"]

LANGUAGE_MODELLING = LanguageModelling()
TASKS: dict[str, Task] = {
    task.key: task for task in (LANGUAGE_MODELLING, Classification(), QuestionAnswering(), Summarisation())
}
