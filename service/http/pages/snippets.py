"""Commands that call or fetch a model of this server, ready to be copied."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastapi import Request

from service.http.pages.cookies import is_secure

HOST = re.compile(r"[A-Za-z0-9._\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?", re.ASCII)
PROMPT = "Once upon a time"


@dataclass(frozen=True)
class Snippet:
    """A command with its title, which names the tool."""

    title: str
    text: str


def server_origin(request: Request) -> str:
    """The scheme and host by which this browser reaches the server."""
    settings = request.app.state.runtime.settings
    host = request.headers.get("host", "")
    host = host if HOST.fullmatch(host) else f"{settings.host}:{settings.port}"
    return f"{'https' if is_secure(request.scope, settings) else 'http'}://{host}"


def snippets(origin: str, ref: str, *, answers_text: bool) -> list[Snippet]:
    """Commands to call the model `ref`, if it answers with text, and to fetch it."""
    environment = f"export SOUP_URL={origin} SOUP_KEY=sk-soup-..."
    fetch = Snippet("Fetch its directory (soup)", f"{environment}\nsoup pull {ref} adapter")
    if not answers_text:
        return [fetch]
    curl = (
        f"curl {origin}/v1/completions \\\n"
        '  -H "authorization: Bearer $SOUP_KEY" -H "content-type: application/json" \\\n'
        f'  -d \'{{"model": "{ref}", "prompt": "{PROMPT}", "max_tokens": 40}}\''
    )
    python = (
        "import os\n\nfrom openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{origin}/v1", api_key=os.environ["SOUP_KEY"])\n'
        f'answer = client.completions.create(model="{ref}", prompt="{PROMPT}", max_tokens=40)\n'
        "print(answer.choices[0].text)"
    )
    soup = f'{environment}\nsoup generate {ref} "{PROMPT}" --max-tokens 40'
    return [
        Snippet("curl", curl),
        Snippet("Python (openai)", python),
        Snippet("Command line (soup)", soup),
        fetch,
    ]
