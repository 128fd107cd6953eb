"""Commands that work as they are shown: how a model of this server is asked, and fetched, from elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastapi import Request

from service.http.pages.cookies import is_secure

HOST = re.compile(r"[A-Za-z0-9._\-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?", re.ASCII)
PROMPT = "Once upon a time"


@dataclass(frozen=True)
class Snippet:
    """One way to ask: what with, and the lines."""

    title: str
    text: str


def origin_of(request: Request) -> str:
    """The address that this browser reaches the server by."""
    settings = request.app.state.runtime.settings
    host = request.headers.get("host", "")
    host = host if HOST.fullmatch(host) else f"{settings.host}:{settings.port}"
    return f"{'https' if is_secure(request.scope, settings) else 'http'}://{host}"


def snippets(origin: str, ref: str, *, speaks: bool) -> list[Snippet]:
    """Ways to ask the model of a ref, where it answers with text, and to fetch it."""
    fetch = Snippet(
        "Fetch its directory (soup)", f"export SOUP_URL={origin} SOUP_KEY=sk-soup-...\nsoup pull {ref} adapter"
    )
    return [*(_asked(origin, ref) if speaks else ()), fetch]


def _asked(origin: str, ref: str) -> list[Snippet]:
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
    soup = f'export SOUP_URL={origin} SOUP_KEY=sk-soup-...\nsoup generate {ref} "{PROMPT}" --max-tokens 40'
    return [Snippet("curl", curl), Snippet("Python (openai)", python), Snippet("Command line (soup)", soup)]
