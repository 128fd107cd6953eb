"""`soup chat`: a conversation with a model, in a terminal or line by line from another program."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptersoup.cli.failures import explain
from adaptersoup.cli.output import as_json, talk, write
from adaptersoup.cli.remote import ModelArgument, Remote, verb
from adaptersoup.cli.sampling_flags import SamplingFlags
from registry.errors import SoupError

HELP = """/system TEXT   say how the model is to behave, from the next message on; without TEXT say no more
/reset         forget the conversation; /system stays
/model MODEL   go on with another model
/show          the conversation so far
/exit          leave, as Ctrl-D does
//...          a message that begins with a stroke
Ctrl-C ends an answer, and what there is of it stays in the conversation."""


@verb
def chat(
    remote: Remote,
    model: ModelArgument,
    system: Annotated[str | None, typer.Option("--system", help="How the model is to behave.")] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of an answer at most; by default the room in the context.")
    ] = None,
    *,
    sampling: SamplingFlags,
    history: Annotated[
        Path | None, typer.Option(help="File that keeps what was typed, for the arrow keys of the next time.")
    ] = None,
) -> None:
    """Chat with a model whose base has a chat template.

    Answers appear as they are generated; /help lists what can be typed. Where the input is no terminal each of its
    lines is a message, whatever it begins with, and the first that cannot be answered ends it. With --json each answer
    is a line.

    \b
    Examples:
      soup chat team/law --system "Answer in one sentence."
      soup chat base/small --temperature 0 < questions.txt
    """
    talking = Talk(remote, model, system or "", {"max_tokens": max_tokens, **sampling.sampling()})
    if not sys.stdin.isatty():
        for line in sys.stdin:
            if line.strip():
                talking.ask(line.strip())
        return
    talk(f"{model}. /help says what can be typed, Ctrl-D leaves.")
    with _remembering(history) as ask:
        while (line := ask()) is not None:
            try:
                if line.strip() and not talking.take(line.strip()):
                    return
            except SoupError as error:
                talk(explain(error))


@dataclass
class Talk:
    """A conversation: messages so far, whom they are with, and what the next line does."""

    remote: Remote
    model: str
    system: str
    sampling: dict[str, Any]
    messages: list[dict[str, str]] = field(default_factory=list)

    def take(self, line: str) -> bool:
        """Do what a line says, False where it ends the conversation. Raises what the server refuses a message for."""
        if not line.startswith("/") or line.startswith("//"):
            self.ask(line.removeprefix("/") if line.startswith("//") else line)
            return True
        word, _, rest = line[1:].partition(" ")
        if word in ("exit", "quit"):
            return False
        does = self._commands().get(word)
        if does is None:
            talk(f"/{word} is none of these:\n{HELP}")
        else:
            does(rest.strip())
        return True

    def _commands(self) -> dict[str, Callable[[str], None]]:
        """What a stroke stands before, and what it does with the rest of the line."""
        return {
            "system": self._behave,
            "reset": self._forget,
            "model": self._turn_to,
            "show": self._show,
            "help": lambda _: talk(HELP),
        }

    def ask(self, text: str) -> None:
        """Send a message and print the answer as it comes; a message that is refused is taken back."""
        said = [{"role": "system", "content": self.system}] if self.system else []
        asked = [*said, *self.messages, {"role": "user", "content": text}]
        parts: list[str] = []
        try:
            with self.remote.client.stream_chat(self.model, asked, **self.sampling) as stream:
                for part in _pieces(stream):
                    parts.append(part)
                    if not self.remote.json:
                        write(part)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            talk("\n(stopped)")
        else:
            self._end(parts)
        if parts:
            answer = {"role": "assistant", "content": "".join(parts)}
            self.messages += [{"role": "user", "content": text}, answer]

    def _end(self, parts: list[str]) -> None:
        if self.remote.json:
            as_json({"model": self.model, "role": "assistant", "content": "".join(parts)}, lines=True)
        else:
            write("\n")

    def _behave(self, text: str) -> None:
        self.system = text
        talk("From the next message on." if text else "Nothing is said of how to behave.")

    def _forget(self, _: str) -> None:
        self.messages.clear()
        talk("A new conversation.")

    def _turn_to(self, model: str) -> None:
        self.model = model or self.model
        talk(f"With {self.model}.")

    def _show(self, _: str) -> None:
        for one in [{"role": "system", "content": self.system}, *self.messages]:
            if one["content"]:
                talk(f"{one['role']}: {one['content']}")


def _pieces(stream: Iterator[dict[str, Any]]) -> Iterator[str]:
    """The text of an answer's chunks."""
    for chunk in stream:
        for choice in chunk.get("choices") or ():
            yield str((choice.get("delta") or {}).get("content") or "")


@contextmanager
def _remembering(file: Path | None) -> Iterator[Callable[[], str | None]]:
    """While open, what is given asks for a line, None at the end; arrow keys find earlier ones, also of the file."""
    try:
        import readline
    except ImportError:  # a Python without it: lines are read, and not edited
        yield _line
        return
    if file is not None and file.exists():
        readline.read_history_file(file)
    try:
        yield _line
    finally:
        if file is not None:
            readline.write_history_file(file)


def _line() -> str | None:
    while True:
        try:
            return input("> " if sys.stdout.isatty() else "")
        except KeyboardInterrupt:
            talk("\n(Ctrl-D leaves)")
        except EOFError:
            talk("")
            return None
