"""Checks of a server's answers: the JSON of an answer with the expected status, or the sentence of a refusal."""

from __future__ import annotations

from typing import Any


def answered(answer: Any, status: int = 200) -> Any:
    """The JSON of an answer that has this status."""
    assert answer.status_code == status, answer.text
    return answer.json()


def refusal(answer: Any, status: int = 400) -> str:
    """The sentence of a refusal that has this status."""
    return str(answered(answer, status)["error"]["message"])


def refusal_with_code(answer: Any, status: int, code: str) -> str:
    """The sentence of a refusal that has this status and this code."""
    message = refusal(answer, status)
    assert answer.json()["error"]["code"] == code, answer.text
    return message


def temporary_refusal(answer: Any, status: int = 503) -> str:
    """The sentence of a refusal that passes, which says when to come again."""
    code, type = {429: ("busy", "rate_limit_error"), 503: ("unavailable", "server_error")}[status]
    message = refusal_with_code(answer, status, code)
    assert (answer.json()["error"]["type"], answer.headers["retry-after"]) == (type, "5")
    assert "\n" not in message
    return message
