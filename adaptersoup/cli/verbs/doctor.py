"""`soup doctor`: asks an OpenAI-compatible server for the probes of adapters, and says what each of its models is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Annotated

import typer

from adaptersoup.cli.failures import FAILED, INCOMPATIBLE, Failures
from adaptersoup.cli.output import answer, data_width, progress_bar, talk
from adaptersoup.cli.remote import Address
from adaptersoup.client import SoupClient
from adaptersoup.client.answers import Json
from adaptersoup.client.openai_server import OpenAIServer
from adaptersoup.tables import columns, one_line
from registry.errors import InvalidName, NotFound, SoupError, Unavailable
from registry.names import BaseRef, parse_ref
from registry.spec import Readings, ServerReadings, Verdict

VERDICTS: dict[Verdict, str] = {
    "same": "same",
    "other_dtype": "other dtype or quantisation",
    "base_only": "base only",
    "other_adapter": "another adapter",
    "wrong_scale": "scaled wrong",
    "broken": "broken",
}
SOUND: frozenset[Verdict] = frozenset({"same", "other_dtype"})
"""Verdicts on a model that is the adapter."""


def doctor(
    context: typer.Context,
    url: Annotated[str, typer.Option(help="Address of the server to check.", metavar="URL")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="NAME, or NAME=REF if the server has another name for it; repeatable.", metavar="NAME"),
    ] = None,
    base_model: Annotated[
        str | None, typer.Option(help="Name of the base model on the server; by default its id, if listed.")
    ] = None,
    server_key: Annotated[
        str | None,
        typer.Option(help="API key for that server; by default none.", metavar="KEY"),
    ] = None,
    seconds: Annotated[float, typer.Option(min=1, help="Timeout of a request to the server, in seconds.")] = 120.0,
    registry: Annotated[
        str | None, typer.Option(help="Address of the registry that has the adapters (SOUP_URL).", metavar="URL")
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(
            help="API key for the registry (SOUP_KEY; on this machine by default that of <data>/admin.key).",
            metavar="KEY",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the diagnoses as JSON.")] = False,
) -> None:
    """Check which adapters a server really serves.

    Asks an OpenAI-compatible server (vLLM, SGLang, llama-server, this one) for a few next tokens of each model, and
    compares them with those stored when the adapter was pushed. Without --model, it checks all listed models that have
    the name of an adapter in the registry. Exits with 3 if a model is not the adapter, with 1 if a check failed.

    \b
    Examples:
      soup doctor --url http://gpu1:8000
      soup doctor --url http://gpu1:8000 --model law=team/law@3 --base-model HuggingFaceTB/SmolLM2-135M-Instruct
    """
    server = OpenAIServer(url, server_key, seconds)
    with Address(registry, key).client(context) as client:
        examination = Examination(client, server, base_model)
        failures = Failures()
        diagnoses = examination.run(model or (), failures)
    rows = [(row["model"], row["adapter"], VERDICTS[row["verdict"]], row["sentence"]) for row in diagnoses]
    table = [columns(("model", "adapter", "verdict", "why"), rows, within=data_width())] if rows else []
    answer({"object": "list", "data": diagnoses}, *table, json=json)
    if any(row["verdict"] not in SOUND for row in diagnoses):
        raise typer.Exit(INCOMPATIBLE)
    failures.end()
    if not diagnoses:
        raise typer.Exit(FAILED)


@dataclass(frozen=True)
class Examination:
    """One run: the registry, the server, its name for the base model if one was given, and the readings of base
    models.
    """

    client: SoupClient
    server: OpenAIServer
    base_model: str | None
    bases: dict[str, Readings | Unavailable | None] = field(default_factory=dict)

    def run(self, named: Sequence[str], failures: Failures) -> list[Json]:
        """The diagnoses of the named models, or of all that are the registry's; errors go to `failures`."""
        listed = self._listed(required=not named)
        pairs = [_model_and_ref(text) for text in named] or [(name, name) for name in listed if _is_adapter(name)]
        diagnoses = []
        with progress_bar("checking") as report:
            for number, (model, ref) in enumerate(pairs):
                report(number, len(pairs), model)
                with failures.of(one_line(model)):
                    diagnosis = self._diagnosis(model, ref, listed, skip_unknown=not named)
                    diagnoses += [diagnosis] if diagnosis else []
        if not diagnoses and not failures:
            talk(f"None of the {len(listed)} models of the server is named as an adapter here: use --model.")
        return diagnoses

    def _listed(self, *, required: bool) -> list[str]:
        """The names of the server's models; none if it lists none and they are not `required`."""
        try:
            return self.server.models()
        except SoupError:
            if required:
                raise
            return []

    def _diagnosis(self, model: str, ref: str, listed: Sequence[str], *, skip_unknown: bool) -> Json | None:
        """The diagnosis of one model; None for a name that the registry does not know, if these are skipped."""
        try:
            probe = self.client.json("GET", f"{self.client.named_path(ref)}/probe")
        except NotFound:
            if skip_unknown:
                return None
            raise
        readings = self.server.next_tokens(model, probe["texts"])
        base = self._base(probe, listed)
        body = ServerReadings(model=readings, base=base).model_dump(mode="json")
        diagnosis = self.client.json("POST", f"{self.client.named_path(ref)}/probe", json=body)
        return {"model": model, **diagnosis}

    def _base(self, probe: Json, listed: Sequence[str]) -> Readings | None:
        """The readings of the server's base model, asked once; None if it has none whose name is known."""
        fingerprint = probe["base_fingerprint"]
        if fingerprint not in self.bases:
            try:
                self.bases[fingerprint] = self._read_base(probe, listed)
            except Unavailable as error:
                self.bases[fingerprint] = error
        readings = self.bases[fingerprint]
        if isinstance(readings, Unavailable):
            raise readings
        return readings

    def _read_base(self, probe: Json, listed: Sequence[str]) -> Readings | None:
        """The readings of `base_model`, or of the base model under a name that the server lists."""
        if self.base_model is not None:
            return self.server.next_tokens(self.base_model, probe["texts"])
        ids = (probe["base_model"], f"base/{probe['base_model']}")
        name = next((name for name in ids if name in listed), None)
        if name is not None:
            with suppress(Unavailable):  # a diagnosis without it says so
                return self.server.next_tokens(name, probe["texts"])
        return None


def _model_and_ref(text: str) -> tuple[str, str]:
    """The name of a model on the server, and the ref of the adapter that it should be."""
    name, equals, ref = text.rpartition("=")
    return (name, ref) if equals else (text, text)


def _is_adapter(name: str) -> bool:
    """Return True if a model's name has the form of an adapter's."""
    try:
        return not isinstance(parse_ref(name), BaseRef)
    except InvalidName:
        return False
