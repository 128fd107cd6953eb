"""A child process for test_tuning that is silent for as many seconds as a request names, then answers or fails."""

from __future__ import annotations

import os
import time
from typing import Any

from training.process import serve


def answer(request: dict[str, Any], _progress: object) -> dict[str, Any]:
    time.sleep(request.get("seconds", 60))
    if "errno" in request:
        raise OSError(request["errno"], os.strerror(request["errno"]), "/secret/path")
    return {"slept": request.get("seconds", 60)}


if __name__ == "__main__":
    serve(lambda _setup: answer, failed="It failed ({}).")
