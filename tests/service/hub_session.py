"""A process with the real `huggingface_hub` and PEFT, pointed at a server: calls go in, answers come out as JSON lines.

Its own process, for the client reads HF_ENDPOINT when it is imported, and the tests' own is offline. Run as a program
it is that process; `HubSession` is the tests' end of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]


class HubSession:
    """The process, with a cache of its own in `home`; `token` is what it signs in with."""

    def __init__(self, url: str, token: str, home: Path) -> None:
        self.home = home
        environment = {
            **os.environ,
            "HF_ENDPOINT": url,
            "HF_TOKEN": token,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "PYTHONPATH": str(REPOSITORY),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "OMP_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, call: str, **arguments: Any) -> Any:
        """The value of `huggingface_hub.<call>(**arguments)`, or of the call below of that name; raises HubError."""
        self._process.stdin.write(json.dumps([call, arguments]) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise HubError(*answer["error"])
        return answer["value"]

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class HubError(Exception):
    """An error that the client raised: the name of its class, and its message."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


def versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("huggingface_hub", "peft", "transformers", "torch")}


def logits(base: str, adapter: str | None, ids: list[int], **options: Any) -> list[float]:
    """The last logits of a base model, with an adapter that PEFT loads by its name."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(base)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter, **options)
    with torch.inference_mode():
        last_logits: list[float] = model.eval()(input_ids=torch.tensor([ids])).logits[0, -1].tolist()
    return last_logits


def soup(arguments: list[str]) -> tuple[int, str, str]:
    """A command line of ours, in this process: its exit code, stdout and stderr."""
    from adaptersoup.cli.app import run

    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(arguments)
    return code, out.getvalue(), err.getvalue()


OWN = {"versions": versions, "logits": logits, "soup": soup}


def plain(value: Any) -> Any:
    """A result as JSON can have it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: plain(field) for name, field in vars(value).items()}
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, str | int | float | None):
        return value
    return [plain(element) for element in value] if hasattr(value, "__iter__") else str(value)


def main() -> None:
    import huggingface_hub

    for line in sys.stdin:
        call, arguments = json.loads(line)
        try:
            answer = {"value": plain((OWN.get(call) or getattr(huggingface_hub, call))(**arguments))}
        except Exception as error:  # the test says which it expects
            answer = {"error": [type(error).__name__, str(error)]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
