"""What a server answers: the JSON of an answer with the status that is expected, or the sentence of a refusal."""

from __future__ import annotations

from typing import Any


def answered(answer: Any, status: int = 200) -> Any:
    """The JSON of an answer that has this status."""
    assert answer.status_code == status, answer.text
    return answer.json()


def refusal(answer: Any, status: int = 400) -> str:
    """The sentence of a refusal that has this status."""
    return str(answered(answer, status)["error"]["message"])
