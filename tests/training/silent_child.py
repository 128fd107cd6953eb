"""A child process that answers after as many seconds as a request names, and is silent until then; for test_tuning."""

from __future__ import annotations

import time
from typing import Any

from training.process import serve


def answer(request: dict[str, Any], _progress: object) -> dict[str, Any]:
    time.sleep(request["seconds"])
    return {"slept": request["seconds"]}


if __name__ == "__main__":
    serve(lambda _setup: answer, failed="It failed ({}).")
