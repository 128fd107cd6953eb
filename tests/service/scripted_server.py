"""A server of a few lines for tests of the client and the command line: a table of answers, and what was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2

from adaptersoup.client.client import SoupClient

Answer = httpx2.Response | Callable[[httpx2.Request], httpx2.Response]


class Server:
    """Answers requests from a table of `METHOD path` to a response, or a list of them in turn; keeps the requests."""

    def __init__(self, **answers: Answer | list[Answer]) -> None:
        self.answers: dict[str, Answer | list[Answer]] = dict(answers)
        self.requests: list[httpx2.Request] = []
        self.pauses: list[float] = []

    def on(self, route: str, *answers: Answer) -> Server:
        self.answers[route] = list(answers) if len(answers) > 1 else answers[0]
        return self

    def job_ends(self, state: str = "succeeded", **more: Any) -> Server:
        """Answer that the job `j1` has ended, as its events do."""
        return self.on("GET /v1/jobs/j1/events", events(("done", {}))).on("GET /v1/jobs/j1", ok(job(state, **more)))

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.answers.get(f"{request.method} {request.url.path}")
        if answer is None:
            return refusal(404, "not_found", "There is nothing at this path.")
        if isinstance(answer, list):
            answer = answer.pop(0)
        return answer(request) if callable(answer) else answer

    def client(self, **options: Any) -> SoupClient:
        transport = httpx2.MockTransport(self)
        return SoupClient("http://soup.test", "sk-soup-x", transport=transport, pause=self.pauses.append, **options)

    def routes_called(self) -> list[str]:
        return [f"{request.method} {request.url.path}" for request in self.requests]

    def body(self, index: int = -1) -> Any:
        return json.loads(self.requests[index].content)


def ok(value: Any, status: int = 200, **headers: str) -> httpx2.Response:
    """An answer with this JSON object, whose kind is `answer` unless it names one."""
    return httpx2.Response(status, json={"object": "answer", **value}, headers=headers)


def refusal(status: int, code: str, message: str, **more: Any) -> httpx2.Response:
    headers = more.pop("headers", {})
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code, **more}
    return httpx2.Response(status, json={"error": error}, headers=headers)


def events(*named_values: tuple[str, Any], tail: str = "") -> httpx2.Response:
    text = "".join(f"event: {name}\ndata: {json.dumps(value)}\n\n" for name, value in named_values) + tail
    return httpx2.Response(200, text=text, headers={"content-type": "text/event-stream"})


def job(state: str = "succeeded", **more: Any) -> dict[str, Any]:
    return {"object": "job", "id": "j1", "kind": "cook", "state": state, "result": None, "error": None, **more}
