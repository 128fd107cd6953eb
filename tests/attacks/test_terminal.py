"""Text that a registry, or somebody in it, sends to the terminal of whoever asks: shown as text, and as one line.

Every answer of these servers is hostile; whatever command shows it, no control character reaches the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from adaptersoup.cli import app as cli
from tests.attacks.attack import each
from tests.service.scripted_server import Server, job, ok, refusal

DIGEST = "sha256:" + "c" * 64
MOMENT = "2026-01-02T03:04:05Z"
RED, CLEAR, TITLE, COPY = "\x1b[31m", "\x1b[2J\x1b[H", "\x1b]0;owned\x07", "\x1b]52;c;ZXZpbA==\x07"
BIDI, LINE, RETURN, EIGHT_BIT, BACK = "\u202e", "\nforged: yes", "\rforged: yes", "\x9b31m", "safe\b\b\b\bevil"
ADAPTER: dict[str, Any] = {
    "object": "adapter",
    "ref": "team/law@1",
    "namespace": "team",
    "name": "law",
    "version": 1,
    "kind": "adapter",
    "digest": DIGEST,
    "base_model": "tiny",
    "base_fingerprint": DIGEST,
    "domain": "law",
    "config": {
        "method": "lora",
        "groups": [{"targets": ["a"], "rank": 1, "alpha": 1, "layers": None}],
        "rslora": False,
    },
    "card": {"tags": [], "description": "", "metadata": {}},
    "parameters": 1,
    "dtype": "F32",
    "size_bytes": 9,
    "sample": {"kept": 20, "received": 21, "notes": []},
    "sample_state": "ready",
    "created_at": MOMENT,
    "retired_at": None,
    "etag": "e",
    "warnings": [],
}
KEY = {
    "id": "k1",
    "name": "ci",
    "prefix": "sk-soup-abcd",
    "namespaces": None,
    "scopes": ["read"],
    "created_at": MOMENT,
    "revoked_at": None,
    "expires_at": None,
    "last_used_at": None,
}
ENTRY = {"at": MOMENT, "action": "key.create", "subject": "k1", "key_id": None, "request_id": "r", "detail": {}}


@dataclass(frozen=True)
class Display:
    """A hostile answer, and the command that shows it."""

    name: str
    tries: str
    command: tuple[str, ...]
    answer: Callable[[], Server]
    shows: str
    """What of it is shown, without the harm."""
    code: int = 0


def adapter_display(name: str, tries: str, shows: str, *, code: int = 0, **changes: Any) -> Display:
    """An adapter with other fields, at `soup show`."""
    row = {**ADAPTER, **changes}
    lineage = {"parents": [], "children": []}

    def server() -> Server:
        return (
            Server()
            .on("GET /v1/adapters/team/law", ok(row))
            .on("GET /v1/adapters/team/law@1", ok(row))
            .on("GET /v1/adapters/team/law@1/lineage", ok(lineage))
        )

    return Display(name, tries, ("show", "team/law"), server, shows, code)


def answer_display(name: str, tries: str, command: tuple[str, ...], path: str, value: Any, shows: str) -> Display:
    """An answer to one request."""
    return Display(name, tries, command, lambda: Server().on(path, ok(value)), shows)


def refused(name: str, tries: str, text: str, shows: str, **more: Any) -> Display:
    """A refusal with a sentence."""
    return Display(
        name, tries, ("ls",), lambda: Server().on("GET /v1/adapters", refusal(400, "invalid", text, **more)), shows, 1
    )


def card(**fields: Any) -> dict[str, Any]:
    return {"tags": [], "description": "", "metadata": {}, **fields}


LIST, JOBS, KEYS, AUDIT = "GET /v1/adapters", "GET /v1/jobs", "GET /v1/keys", "GET /v1/audit"
ATTACKS = (
    adapter_display(
        "colours in a description", "Colours the terminal red.", "x?[31mred", card=card(description=f"x{RED}red")
    ),
    adapter_display(
        "cleared screen", "Clears what was on the screen before.", "gone", card=card(description=f"{CLEAR}gone")
    ),
    adapter_display("title of the window", "Renames the window.", "t", card=card(description=f"{TITLE}t")),
    adapter_display("clipboard", "Puts a command into the clipboard.", "c", card=card(description=f"{COPY}c")),
    adapter_display("text from right to left", "Shows a name backwards.", "?txt", card=card(description=f"{BIDI}txt")),
    adapter_display(
        "key of metadata",
        "Hides a sequence in the name of a field.",
        "forged",
        card=card(metadata={f"{CLEAR}forged": 1}),
    ),
    adapter_display(
        "forged line of metadata",
        "Adds a line that looks like the command's own.",
        "license",
        card=card(metadata={f"a{LINE}": "license"}),
    ),
    adapter_display(
        "value of metadata", "Hides a sequence in a value.", "v", card=card(metadata={"k": f"{EIGHT_BIT}v"})
    ),
    adapter_display(
        "overwritten line", "Goes back to the beginning of the line and writes over it.", "d", domain=f"d{RETURN}"
    ),
    adapter_display("letters taken back", "Writes over what it wrote.", "safe", domain=BACK),
    adapter_display(
        "ref of an answer",
        "Hides a sequence in a name, which no server of ours would send.",
        "is not valid",
        code=1,
        ref=f"team/{RED}law@1",
    ),
    adapter_display(
        "note of a sample",
        "Hides a sequence in a note.",
        "20",
        sample={"kept": 20, "received": 21, "notes": [f"{CLEAR}few"]},
    ),
    adapter_display(
        "target of a LoRA",
        "Hides a sequence in the name of a module.",
        "rank",
        config={
            "method": "lora",
            "rslora": False,
            "groups": [{"targets": [f"a{RED}"], "rank": 1, "alpha": 1, "layers": None}],
        },
    ),
    answer_display(
        "names in a list",
        "Hides a sequence in a list of adapters.",
        ("ls",),
        LIST,
        {"data": [{**ADAPTER, "domain": f"{CLEAR}{BIDI}law"}]},
        "law",
    ),
    answer_display(
        "names alone",
        "Hides a sequence where a list has names and nothing else.",
        ("ls", "--quiet"),
        LIST,
        {"data": [{**ADAPTER, "ref": f"team/{RED}law{LINE}"}]},
        "law",
    ),
    answer_display(
        "message of a job",
        "Hides a sequence in what a job says.",
        ("jobs", "ls"),
        JOBS,
        {
            "data": [
                {
                    **job("running"),
                    "owner": f"{RED}me",
                    "created_at": MOMENT,
                    "updated_at": MOMENT,
                    "progress": {"done": 1, "total": 2, "message": f"{CLEAR}half"},
                }
            ]
        },
        "cook",
    ),
    answer_display(
        "name of a key",
        "Hides a sequence in the name of a key.",
        ("keys", "ls"),
        KEYS,
        {"data": [{**KEY, "name": f"{RED}ci{LINE}"}]},
        "ci",
    ),
    answer_display(
        "subject of the audit",
        "Forges a line of the audit.",
        ("audit",),
        AUDIT,
        {"data": [{**ENTRY, "subject": f"k1{LINE}"}]},
        "k1",
    ),
    answer_display(
        "detail of the audit",
        "Hides a sequence in what was changed.",
        ("audit",),
        AUDIT,
        {"data": [{**ENTRY, "detail": {f"{RED}name": f"{CLEAR}x"}}]},
        "name",
    ),
    answer_display(
        "text that an adapter writes",
        "Has an adapter that was trained for it write sequences.",
        ("generate", "team/law", "hi"),
        "POST /v1/completions",
        {"choices": [{"text": f"a{TITLE}b\n\tc"}]},
        "b\n\tc",
    ),
    answer_display(
        "JSON for a program",
        "Hides sequences in what `--json` prints.",
        ("ls", "--json"),
        LIST,
        {"data": [{**ADAPTER, "domain": f"{EIGHT_BIT}{BIDI}law"}]},
        "\\u009b31m\\u202elaw",
    ),
    refused("colours in a refusal", "Hides a sequence in a refusal.", f"It is {RED}red.", "red."),
    refused(
        "forged line of a refusal",
        "Adds lines to a refusal, which look like the command's own.",
        f"No.{LINE}{RETURN}",
        "No.",
    ),
    refused("list of problems", "Hides a sequence in the list of a refusal.", "Two.", "one", problems=[f"{CLEAR}one"]),
)


@each(ATTACKS)
def test_it_is_shown_as_text(
    attack: Display, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    server = attack.answer()
    code = cli.run(list(attack.command), connect=lambda url, key: server.client())
    captured = capsys.readouterr()
    out = captured.out + captured.err
    assert code == attack.code, out
    assert attack.shows in out
    assert [c for c in out if not c.isprintable() and c not in "\n\t"] == []
    assert not [line for line in out.splitlines() if line.strip().startswith("forged")]
