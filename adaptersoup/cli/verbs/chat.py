"""`soup chat`: a conversation with a model, in a terminal or line by line from another program."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from adaptersoup.cli.failures import explain
from adaptersoup.cli.output import as_json, talk, write
from adaptersoup.cli.remote import PromptedModel, Remote, verb
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
    model: PromptedModel,
    system: Annotated[str | None, typer.Option("--system", help="System message.")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of tokens of an answer; by default the rest of the context."),
    ] = None,
    *,
    sampling: SamplingFlags,
    history: Annotated[
        Path | None, typer.Option(help="File for typed lines, which the arrow keys recall in later sessions.")
    ] = None,
) -> None:
    """Chat with a model whose base has a chat template.

    Prints answers while they are generated. /help lists the commands. If the input is not a terminal, each line is a
    message, also with a slash in front, and the first message that fails ends the chat. With --json each answer is a
    line.

    \b
    Examples:
      soup chat team/law --system "Answer in one sentence."
      soup chat base/small --temperature 0 < questions.txt
    """
    conversation = Conversation(remote, model, system or "", {"max_tokens": max_tokens, **sampling.fields()})
    if not sys.stdin.isatty():
        for line in sys.stdin:
            if line.strip():
                conversation.send(line.strip())
        return
    talk(f"{model}. /help says what can be typed, Ctrl-D leaves.")
    with _line_history(history):
        while (typed := _read_line()) is not None:
            try:
                if typed.strip() and not conversation.handle(typed.strip()):
                    return
            except SoupError as error:
                talk(explain(error))


@dataclass
class Conversation:
    """A conversation with a model, and the commands that change it."""

    remote: Remote
    model: str
    system: str
    sampling: dict[str, Any]
    messages: list[dict[str, str]] = field(default_factory=list)

    def handle(self, line: str) -> bool:
        """Run the command of a line, or send it as a message; return False if it ends the conversation.

        Raises the error of a message that the server refuses.
        """
        if not line.startswith("/") or line.startswith("//"):
            self.send(line.removeprefix("/") if line.startswith("//") else line)
            return True
        word, _, argument = line[1:].partition(" ")
        argument = argument.strip()
        match word:
            case "exit" | "quit":
                return False
            case "system":
                self.system = argument
                talk("From the next message on." if argument else "Nothing is said of how to behave.")
            case "reset":
                self.messages.clear()
                talk("A new conversation.")
            case "model":
                self.model = argument or self.model
                talk(f"With {self.model}.")
            case "show":
                for message in self._with_system():
                    if message["content"]:
                        talk(f"{message['role']}: {message['content']}")
            case "help":
                talk(HELP)
            case _:
                talk(f"/{word} is none of these:\n{HELP}")
        return True

    def send(self, text: str) -> None:
        """Send a message and print the answer as it arrives; a refused message is not kept."""
        message = {"role": "user", "content": text}
        tokens: list[str] = []
        try:
            with self.remote.client.stream_chat(self.model, [*self._with_system(), message], **self.sampling) as stream:
                for token in _texts(stream):
                    tokens.append(token)
                    if not self.remote.json:
                        write(token)
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            talk("\n(stopped)")
        else:
            if self.remote.json:
                as_json({"model": self.model, "role": "assistant", "content": "".join(tokens)}, lines=True)
            else:
                write("\n")
        if tokens:
            self.messages += [message, {"role": "assistant", "content": "".join(tokens)}]

    def _with_system(self) -> list[dict[str, str]]:
        """The messages so far, after the system's if there is one."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.messages]


def _texts(stream: Iterator[dict[str, Any]]) -> Iterator[str]:
    """The texts of an answer's chunks."""
    for chunk in stream:
        for choice in chunk.get("choices") or ():
            yield str((choice.get("delta") or {}).get("content") or "")


@contextmanager
def _line_history(file: Path | None) -> Iterator[None]:
    """Let arrow keys edit and recall lines until `with` ends; reads the history from `file`, and saves it there."""
    try:
        import readline
    except ImportError:  # a Python without it: lines cannot be edited
        yield
        return
    if file is not None and file.exists():
        readline.read_history_file(file)
    try:
        yield
    finally:
        if file is not None:
            readline.write_history_file(file)


def _read_line() -> str | None:
    """The next line that is typed; None at the end of the input."""
    while True:
        try:
            return input("> " if sys.stdout.isatty() else "")
        except KeyboardInterrupt:
            talk("\n(Ctrl-D leaves)")
        except EOFError:
            talk("")
            return None
