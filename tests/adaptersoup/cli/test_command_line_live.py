"""The command line on a real server: many adapters in one call, what is said of them, and inference by hand."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest

from adaptersoup.cli.adapter_filters import Matching, matching_adapters
from adaptersoup.cli.remote import complete_ref
from adaptersoup.cli.verbs.compare import report
from adaptersoup.cli.verbs.push import sending, sources
from adaptersoup.client.client import SoupClient
from registry.adapters import create
from registry.adapters.weights import save_tensors
from registry.base_model import shape_of
from registry.errors import Cancelled, InvalidName, Unavailable
from registry.formats import WEIGHTS_FILE, AdapterContents, write_directory
from registry.names import sha256_digest
from registry.spec import Card, CookRequest, CosineSpec, HandRecipe, Provenance, SampleSource, WeightedRef
from service.http.answers import waiting
from service.jobs.contract import JobContext
from service.jobs.kinds import KINDS
from tests.adaptersoup.cli.outcome import done, refused
from tests.registry.damaged_files import flip
from tests.registry.random_adapters import lora
from tests.service.http.pages.page_session import PageSession
from tests.service.passages import passages
from tests.service.scripted_server import Server, ok, refusal
from tests.service.servers import Live, Soup, with_template
from tests.texts_file import write_texts

Pushes = Callable[[str], Path]
NAMES = ("anatomy", "botany", "chemistry", "drama")


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A base model that chats."""
    template = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    return {"tiny": with_template(tiny_base_dir, tmp_path_factory.mktemp("base"), template)}


@pytest.fixture(scope="module")
def weights(live: Live) -> list[bytes]:
    """Weights of LoRAs of one configuration."""
    shape = shape_of(live.world.runtime.bases["tiny"].entry, live.world.runtime.settings.cache)
    return [save_tensors(create(lora(), shape, seed=seed).state_dict()) for seed in range(len(NAMES))]


@pytest.fixture
def many(tmp_path: Path, weights: list[bytes]) -> Path:
    """A folder of PEFT's directories, none of which says what domain it is of."""
    for name, data in zip(NAMES, weights, strict=True):
        write_directory(tmp_path / "many" / name, AdapterContents(config=lora(), weights=data, base_model="tiny"))
    return tmp_path / "many"


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def scripted(command: Soup, server: Server) -> Soup:
    """Runs a command line against `server`, which answers what a test tells it to."""
    return lambda *args: command(*args, connect=lambda url, key: server.client())


@pytest.fixture
def patient(command: Soup, live: Live, held_embedding: threading.Event) -> tuple[Soup, list[float]]:
    """Runs a command line whose client lets the server embed at its first pause; the pauses, in seconds."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        held_embedding.set()
        with SoupClient(live.url, live.world.admin) as waiting_client:
            for job in [row for row in waiting_client.jobs(kind="embed") if row["state"] in ("queued", "running")]:
                waiting_client.wait_job(job["id"])

    def connect(*_: Any) -> SoupClient:
        return SoupClient(live.url, live.world.admin, pause=pause)

    return lambda *args: command(*args, connect=connect), pauses


@pytest.fixture
def held_embedding(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """The server embeds no sample until the event is set."""
    gate, kind = threading.Event(), KINDS["embed"]

    def run(context: JobContext) -> dict[str, Any]:
        assert gate.wait(60)
        return kind.run(context)

    monkeypatch.setitem(KINDS, "embed", replace(kind, run=run))
    return gate


def states(output: str) -> dict[str, str]:
    """The state of each push by its name, of what --json gave."""
    return {push["name"]: push["state"] for push in json.loads(output)["pushes"]}


# --- pushing many ---------------------------------------------------------------------------------


def test_the_domain_is_the_folder_s_name_and_a_second_run_sends_nothing(
    soup: Soup, many: Path, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, err = soup("push", *sorted(many.iterdir()), "--namespace", "one", "--tag", "v1")
    assert (code, out.split()) == (0, [f"one/{name}@1" for name in NAMES]), err
    lines = err.splitlines()
    assert lines[0].split() == ["ADAPTER", "STATE", "DOMAIN", "NOTE"]
    assert (lines[1].split()[:3], lines[-1]) == (["one/anatomy@1", "pushed", "anatomy"], "4 pushed.")

    monkeypatch.delattr(SoupClient, "push_patiently")  # so that nothing can be sent
    code, out, err = soup("push", *sorted(many.iterdir()), "--namespace", "one", "--tag", "v1")
    assert (code, out.split()) == (0, [f"one/{name}@1" for name in NAMES])
    assert err.splitlines()[-1] == "4 there already."


def test_what_the_server_finds_damaged_is_sent_again(
    soup: Soup, many: Path, tmp_path: Path, live: Live, weights: list[bytes]
) -> None:
    write_texts(tmp_path / "samples" / "botany.jsonl", passages("court", 30))
    folders = [many / "anatomy", many / "botany", many / "chemistry"]
    assert soup("push", *folders[:1], *folders[2:], "--namespace", "worn")[0] == 0
    file = tmp_path / "one.csv"
    file.write_text("path\nmany/botany\n")
    command = ("push", "--manifest", file, "--samples", tmp_path / "samples", "--namespace", "worn", "--json")
    assert soup(*command)[0] == 0
    sample = json.loads(soup("show", "worn/botany", "--json")[1])["sample"]["digest"]
    for damaged in (sha256_digest(weights[0]), sample):
        flip(live.world.runtime.settings.blobs_dir / damaged[7:9] / damaged[7:])
        assert live.world.client.get(f"/v1/blobs/{damaged}").status_code == 500
    assert states(soup("push", *folders[::2], "--namespace", "worn", "--json")[1]) == {
        "worn/anatomy": "sent again",
        "worn/chemistry": "there already",
    }
    assert states(soup(*command)[1]) == {"worn/botany": "sent again"}
    for digest in (sha256_digest(weights[0]), sample):
        assert live.world.client.get(f"/v1/blobs/{digest}").status_code == 200
    push_states = states(soup("push", *folders[::2], "--namespace", "worn", "--anew", "--json")[1])
    assert set(push_states.values()) == {"sent again"}


def test_one_that_is_refused_keeps_no_other_and_the_status_says_so(soup: Soup, many: Path) -> None:
    (many / "botany" / WEIGHTS_FILE).write_bytes(b"no tensors")
    (many / "README.md").write_text("no folder")
    (many / "drama" / "adapter_config.json").unlink()
    code, out, err = soup("push", *sorted(many.iterdir()), "--namespace", "two", "--json")
    assert code == 1, err
    push_report = json.loads(out)
    assert [row["ref"] for row in push_report["data"]] == ["two/anatomy@1", "two/chemistry@1"]
    assert states(out) == {
        "two/readme.md": "refused",
        "two/anatomy": "pushed",
        "two/botany": "refused",
        "two/chemistry": "pushed",
        "two/drama": "refused",
    }
    messages = {push["name"]: (push["error"] or {}).get("message", "") for push in push_report["pushes"]}
    assert "is not a directory" in messages["two/readme.md"]
    assert "has no adapter_config.json" in messages["two/drama"]
    assert soup("push", *sorted(many.iterdir()), "--namespace", "two")[2].endswith("3 refused, 2 there already.\n")


def test_what_differs_is_sent_and_the_server_says_what_it_keeps(soup: Soup, many: Path, weights: Any) -> None:
    folders = [many / "anatomy", many / "botany"]
    assert soup("push", *folders, "--namespace", "three")[0] == 0
    (many / "anatomy" / WEIGHTS_FILE).write_bytes(weights[2])
    code, out, err = soup("push", *folders, "--namespace", "three", "--tag", "new")
    assert (code, out.split()) == (0, ["three/anatomy@2", "three/botany@1"])
    assert "its card stayed as stored" in " ".join(err.split())
    assert err.splitlines()[-1] == "1 pushed, 1 there already."


def test_the_same_bytes_that_another_torch_made_are_there_already(
    soup: Soup, tmp_path: Path, weights: list[bytes]
) -> None:
    summaries = []
    for number, (torch, steps) in enumerate((("2.1", 7), ("2.2", 7), ("2.2", 8))):
        about = Provenance(training={"steps": steps, "made_with": [{"torch": torch, "threads": 1}]})
        sent = AdapterContents(config=lora(), weights=weights[0], base_model="tiny", provenance=about)
        folders = [tmp_path / str(number) / name for name in ("kept", "also")]
        for folder in folders:
            write_directory(folder, sent)
        _, err = done(soup("push", *folders, "--namespace", "made"))
        summaries.append((err.splitlines()[-1], "stayed as stored" in " ".join(err.split())))
    assert summaries == [("2 pushed.", False), ("2 there already.", False), ("2 there already.", True)]


def test_samples_of_a_folder_and_of_a_file(soup: Soup, many: Path, tmp_path: Path) -> None:
    texts = passages("court", 40)
    for number in range(2):
        write_texts(tmp_path / "corpora" / "botany" / f"{number}.jsonl", texts[number * 15 : number * 15 + 15])
    (tmp_path / "corpora" / "anatomy.txt").write_text("\n\n".join(texts[:30]))
    folders = [many / "anatomy", many / "botany", many / "drama"]
    command = ("push", *folders, "--namespace", "four", "--samples", tmp_path / "corpora", "--json")
    code, out, _ = soup(*command)
    assert (code, states(out)["four/drama"]) == (1, "refused")
    assert "has no sample for" in out
    assert {row["ref"]: row["sample"]["kept"] for row in json.loads(out)["data"]} == {
        "four/anatomy@1": 30,
        "four/botany@1": 30,
    }
    assert list(states(soup(*command)[1]).values()) == ["there already", "there already", "refused"]
    lines = [json.dumps({"domain": "drama", "text": text, "more": 1}) for text in texts]
    (tmp_path / "all.jsonl").write_text("\n".join([*lines, json.dumps({"domain": "other", "text": "x"})]))
    code, out, _ = soup("push", many / "drama", many / "chemistry", "--samples", tmp_path / "all.jsonl", "--json")
    assert [row["sample"]["kept"] for row in json.loads(out)["data"]] == [40]
    write_texts(tmp_path / "corpora" / "drama.jsonl", [f"{texts[0]} {number}" for number in range(520)])
    command = ("push", many / "drama", many / "anatomy", "--namespace", "drawn", *command[-3:])
    assert json.loads(soup(*command)[1])["data"][0]["sample"]["kept"] == 500
    assert set(states(soup(*command)[1]).values()) == {"there already"}, "though the server drew from it"
    (tmp_path / "all.jsonl").write_text('{"text": "x"}')
    err = refused(soup("push", many / "drama", "--samples", tmp_path / "all.jsonl"))
    assert 'line 1, is not an object with strings "domain" and "text"' in err


def test_one_that_does_not_fit_or_cannot_be_read_keeps_no_other(
    soup: Soup, many: Path, tmp_path: Path, weights: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 220)
    write_directory(long, AdapterContents(config=lora(), weights=weights[0], base_model="tiny"))
    read, texts = sources.read_directory, sending.Source.texts

    def unreadable(path: Path) -> Any:
        if path.name == "botany":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    def gone(source: Any) -> Any:
        if source.path.name == "chemistry":
            raise PermissionError(13, "Permission denied", "sample.jsonl")
        return texts(source)

    monkeypatch.setattr(sources, "read_directory", unreadable)
    monkeypatch.setattr(sending.Source, "texts", gone)
    code, out, err = soup("push", *sorted(many.iterdir()), long, "--namespace", "odd", "--json")
    assert code == 1, err
    pushes = {push["name"].partition("/")[2][:9]: push for push in json.loads(out)["pushes"]}
    assert {name: push["state"] for name, push in pushes.items()} == {
        "anatomy": "pushed",
        "botany": "refused",
        "chemistry": "refused",
        "drama": "pushed",
        "x" * 9: "refused",
    }
    assert "botany cannot be read: Permission denied" in pushes["botany"]["error"]["message"]
    assert "sample.jsonl cannot be read" in pushes["chemistry"]["error"]["message"]
    assert "domain" in pushes["x" * 9]["error"]["message"]


def test_a_name_that_is_too_long_for_a_file_is_the_name_of_none(tmp_path: Path) -> None:
    assert sources.Samples(tmp_path).of("x" * 250, "y" * 300) is None


def test_folders_of_one_name_are_not_versions_of_each_other(scripted: Soup, server: Server, many: Path) -> None:
    (many / "Anatomy").mkdir()
    code, out, err = scripted("push", many / "Anatomy", many / "anatomy")
    assert (code, out, server.requests) == (2, "", [])
    assert "many/anatomy would both be default/anatomy" in "".join(err.split("\n"))


def test_a_sample_that_another_push_has_queued_is_waited_for(
    soup: Soup, patient: tuple[Soup, list[float]], many: Path, tmp_path: Path
) -> None:
    for name in ("drama", "botany"):
        write_texts(tmp_path / "samples" / f"{name}.jsonl", passages("court", 25))
    command = ("push", many / "drama", many / "botany", "--namespace", "twice", "--samples", tmp_path / "samples")
    assert soup(*command)[0] == 0
    run, pauses = patient
    out, _ = done(run(*command, "--wait", "--json"))
    assert set(states(out).values()) == {"there already"}
    assert pauses
    assert [row["sample_state"] for row in json.loads(out)["data"]] == ["ready", "ready"]


def test_ctrl_c_while_samples_are_waited_for_still_tells_as_json(
    soup: Soup, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = Mock(side_effect=KeyboardInterrupt)
    (tmp_path / "t.txt").write_text("\n\n".join(passages("court", 25)))
    monkeypatch.setattr(SoupClient, "wait_embedded", interrupted)
    command = ("push", many / "drama", "--name", "ended/drama", "--domain", "d", "--sample", tmp_path / "t.txt")
    code, out, _ = soup(*command, "--wait", "--json")
    assert (code, json.loads(out)["ref"]) == (130, "ended/drama@1")
    monkeypatch.setattr(SoupClient, "push_patiently", interrupted)
    code, out, _ = soup("push", many / "drama", many / "botany", "--namespace", "ended2", "--json")
    assert code == 130
    assert set(states(out).values()) == {"not sent"}, "stdout is JSON however the command ends"


# --- manifest -------------------------------------------------------------------------------------


def write(file: Path, *rows: Sequence[str]) -> Path:
    with file.open("w", newline="") as out:
        csv.writer(out).writerows(rows)
    return file


def test_a_row_of_a_manifest_says_everything(soup: Soup, many: Path, tmp_path: Path) -> None:
    (tmp_path / "law.txt").write_text("\n\n".join(passages("court", 25)))
    file = write(
        tmp_path / "many.csv",
        ("path", "name", "domain", "sample", "tags", "description", "license", "metadata", "base", "owner"),
        (
            "many/anatomy",
            "bones",
            "Bones, all",
            "law.txt",
            "v2, eu",
            "Of bones.",
            "mit",
            "by=ana; n=3",
            "base/tiny",
            "Bone team",
        ),
        ("many/botany", "other/plants", "", "", "", "", "", "", "", ""),
        (),
    )
    flags = ("--namespace", "csv", "--tag", "all", "--owner", "us", "--json")
    bones, plants = json.loads(done(soup("push", "--manifest", file, *flags))[0])["data"]
    assert (bones["ref"], bones["domain"], bones["sample"]["kept"]) == ("csv/bones@1", "Bones, all", 25)
    card = {"description": "Of bones.", "license": "mit", "tags": ["all", "v2", "eu"]}
    assert bones["card"] == {**card, "metadata": {"by": "ana", "n": 3}}
    assert (bones["owner"], plants["owner"]) == ("Bone team", "us")
    assert (plants["ref"], plants["domain"], plants["card"]["tags"]) == ("other/plants@1", "botany", ["all"])


def test_other_owners_of_what_is_there_are_said_and_nothing_is_sent(
    soup: Soup, many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done(soup("push", *sorted(many.iterdir()), "--namespace", "held"))

    monkeypatch.delattr(SoupClient, "push_patiently")  # so that nothing can be sent
    rows = [(f"many/{name}", "" if name == "drama" else f"{name} team") for name in NAMES]
    file = write(tmp_path / "owners.csv", ("path", "owner"), *rows)
    for became in ("owner changed", "there already"):
        out, _ = done(soup("push", "--manifest", file, "--namespace", "held", "--json"))
        assert states(out) == {f"held/{name}": "there already" if name == "drama" else became for name in NAMES}
        rows = json.loads(soup("ls", "--namespace", "held", "--json")[1])["data"]
        assert {row["name"]: row["owner"] for row in rows} == {
            **{name: f"{name} team" for name in NAMES},
            "drama": None,
        }


@pytest.mark.parametrize("folders", [1, 2])
def test_an_empty_owner_is_refused_in_a_sentence(soup: Soup, many: Path, folders: int) -> None:
    flags = ("--domain", "d") if folders == 1 else ()
    code, _, err = soup("push", *sorted(many.iterdir())[:folders], "--namespace", "empty", "--owner", "", *flags)
    assert code != 0
    assert "A push cannot remove an owner" in " ".join(err.split())
    assert "--set-owner" in err


def test_one_row_is_as_one_of_many(soup: Soup, many: Path, tmp_path: Path) -> None:
    """The folder's name is its domain, and all that the row says is in the card."""
    rows = (("path", "description", "license"), ("many/anatomy", "Of bones.", "mit"))
    command = ("push", "--manifest", write(tmp_path / "one.csv", *rows), "--namespace", "row", "--json")
    (row,) = json.loads(done(soup(*command))[0])["data"]
    assert (row["domain"], row["card"]["description"], row["card"]["license"]) == ("anatomy", "Of bones.", "mit")
    assert states(soup(*command)[1]) == {"row/anatomy": "there already"}


def test_two_rows_are_versions_of_one_name_where_both_say_it(soup: Soup, many: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "two.csv", ("path", "name"), ("many/anatomy", "both"), ("many/botany", "both"))
    assert done(soup("push", "--manifest", file, "--namespace", "said"))[0] == "said/both@1\nsaid/both@2\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('path,description\nmany/anatomy,"open\nmany/botany,x\n', "line 3: unexpected end of data"),
        ('path,description\nmany/anatomy,"a"b\nmany/botany,x\n', "line 2: ',' expected after"),
        (f"path,description\nmany/anatomy,{'x' * 140_000}\n", "line 2: field larger than field limit"),
        ("path,nmae\n", "has 'nmae'; columns are path, name, domain, base, owner, sample"),
        ("name\n", "has no column 'path'"),
        ("path,path\n", "has 'path' twice"),
        ("path\nmany/botany,x\n", "line 2: 2 cells under 1 columns"),
        ("path,tags\nmany/botany,No\n,\n", "line 2: tags.0"),
        ("path,name\nmany/botany,No\nmany/drama,v1/x\n", "(2 rows are wrong)"),
        ("path,sample\nmany/botany,none.txt\n", "none.txt does not exist"),
        ("path,metadata\nmany/botany,odd\n", "metadata takes key=value"),
        ("path,name\n,x\n", "line 2: The cell of 'path' is empty."),
        (f"path,domain\nmany/botany,{'x' * 300}\n", "line 2: domain: must have at most 200"),
        (f"path,base\nmany/botany,{'x' * 65}\n", "line 2: base: must have at most 64"),
        ("path,name\nmany/botany,\nmany/../many/botany,\n", "would both be default/botany"),
        ("path,name\nmany/botany,\nmany/drama,botany\n", "would both be default/botany"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    scripted: Soup, server: Server, many: Path, tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "many.csv"
    file.write_text(text)
    code, out, err = scripted("push", "--manifest", file)
    assert (code, out, server.requests) == (1, "", [])
    assert message in err


def test_arguments_that_do_not_go_together(scripted: Soup, many: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "many.csv", ("path",))
    for wrong in (
        [],
        ["--manifest", file],
        ["--manifest", file, many],
        ["--manifest", file, "--name", "a/b"],
        [many / "drama", many / "botany", "--domain", "x"],
        [many / "drama", many / "botany", "--name", "a/b"],
    ):
        assert scripted("push", *wrong)[0] == 2


@pytest.mark.parametrize(("retry_after", "refusals", "waited"), [("7", 8, 56), ("0", 3, 3)])
def test_a_full_queue_is_waited_for_by_one_of_many(
    scripted: Soup, server: Server, many: Path, retry_after: str, refusals: int, waited: int
) -> None:
    busy = refusal(429, "busy", "Full.", headers={"retry-after": retry_after})
    server.on("GET /v1/adapters", ok({"data": []}))
    server.on("POST /v1/adapters", *[busy] * refusals, *[ok({"ref": "a/b@1", "domain": "d"}, 201)] * 2)
    code, _, err = scripted("push", many / "drama", many / "botany", "--parallel", 1)
    assert (code, sum(server.pauses)) == (0, waited), err
    assert max(server.pauses) <= 1.0, "whoever ends the command is heard within a second"


def test_a_pool_is_waited_for_a_second_at_least_or_not_at_all(scripted: Soup, server: Server) -> None:
    pending = refusal(503, "unavailable", "Embedding.", param="pool", headers={"retry-after": "0"})
    request = CookRequest(sample=SampleSource(texts=("a",)))
    server.on("POST /v1/soups", pending, pending, ok({"object": "soup", "model": "base/x"}))
    server.on("POST /v1/selectors", pending)
    server.on("POST /v1/evaluations", pending)
    client = server.client()
    for begin in (lambda: client.cook(request, wait=False), lambda: client.fit(CosineSpec(), wait=False)):
        with pytest.raises(Unavailable, match="Embedding"):
            begin()
    code, _, err = scripted("matrix", "--no-wait")
    assert (code, "Embedding" in err) == (1, True)
    assert server.pauses == []
    client.cook(request)
    assert server.pauses == [1]


# --- right after a push ---------------------------------------------------------------------------


# A pool none of whose samples is embedded yet is waited for, and no fit is begun that would fail.


CALLS = (
    ("near", "ls", "--namespace", "near", "--near"),
    ("selected", "select", "--selector", "cosine", "--pool-namespace", "selected", "--sample"),
    ("fitted", "fit", "--selector", "cosine", "--pool-namespace", "fitted", "--set"),
    ("cooked", "cook", "--no-verify", "--selector", "cosine", "--top", "--pool-namespace", "cooked", "--sample"),
)


@pytest.fixture
def push_with_sample(soup: Soup, many: Path, tmp_path: Path) -> Pushes:
    """Pushes `<namespace>/drama` with a sample; gives the sample's file."""

    def push(namespace: str) -> Path:
        file = tmp_path / "text.txt"
        file.write_text("\n\n".join(passages("court", 25)))
        done(soup("push", many / "drama", "--name", f"{namespace}/drama", "--domain", namespace, "--sample", file))
        return file

    return push


@pytest.mark.parametrize("call", CALLS, ids=[call[0] for call in CALLS])
def test_a_pool_that_is_not_embedded_yet_is_waited_for(
    soup: Soup, patient: tuple[Soup, list[float]], push_with_sample: Pushes, call: tuple[str, ...]
) -> None:
    namespace, *command = call
    file = push_with_sample(namespace)
    run, pauses = patient
    out, _ = done(run(*command, "seed=0" if command[0] == "fit" else file))
    assert pauses[0] == 2, "as the server says in Retry-After"
    assert out.startswith("sel-") if command[0] == "fit" else f"{namespace}/drama@1" in out
    assert json.loads(soup("jobs", "ls", "--state", "failed", "--json")[1])["data"] == []


def test_a_pool_without_any_sample_is_refused_and_no_job(soup: Soup, many: Path, tmp_path: Path) -> None:
    assert soup("push", many / "drama", "--name", "bare/drama", "--domain", "d")[0] == 0
    (tmp_path / "text.txt").write_text("one")
    err = refused(soup("ls", "--near", tmp_path / "text.txt", "--namespace", "bare"))
    assert "push adapters with a sample first" in err
    assert json.loads(soup("jobs", "ls", "--state", "failed", "--json")[1])["data"] == []


def test_a_request_that_waits_is_answered_when_the_sample_is_there(
    live: Live, push_with_sample: Pushes, monkeypatch: pytest.MonkeyPatch, held_embedding: threading.Event
) -> None:
    push_with_sample("curl")
    body = {"texts": ["x"], "pool": {"namespaces": ["curl"]}, "wait": 0}
    refused = live.world.client.post("/v1/adapters/search", json=body)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
    look = waiting._pending

    async def look_and_release(check: waiting.Check) -> Unavailable | None:
        pending = await look(check)
        held_embedding.set()
        return pending

    monkeypatch.setattr(waiting, "CHECK_SECONDS", 0.05)
    monkeypatch.setattr(waiting, "_pending", look_and_release)
    answer = live.world.client.post("/v1/adapters/search", json={**body, "wait": 60})
    assert [match["adapter"]["ref"] for match in answer.json()["data"]] == ["curl/drama@1"]


def test_what_is_refused_anyhow_is_refused_without_waiting(
    live: Live, push_with_sample: Pushes, held_embedding: threading.Event
) -> None:
    push_with_sample("early")
    with SoupClient(live.url, live.world.admin) as client:
        key = client.create_key("early", scopes=["write"], namespaces=["early"])["secret"]
    body = {"sample": {"texts": passages("code", 25)}, "pool": {"namespaces": ["early"]}, "wait": 0.2}
    answers = [
        httpx2.post(f"{live.url}/v1/soups", json=body | more, headers={"authorization": f"Bearer {key}"})
        for more in ({"name": "other/x"}, {"name": "early/x"})
    ]
    held_embedding.set()
    assert [answer.status_code for answer in answers] == [403, 503]


def test_many_requests_of_a_key_look_less_often_each(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    services, check = live.world.runtime.services, Mock(side_effect=Unavailable("Embedding.", param="pool"))
    monkeypatch.setattr(waiting, "CHECK_SECONDS", 0.1)

    async def all_of() -> list[Any]:
        waits = [waiting.until_selectable(services, "k", check, lambda: None, 0.5) for _ in range(100)]
        return await asyncio.gather(*waits, return_exceptions=True)

    assert Counter(type(error) for error in asyncio.run(all_of())) == {Unavailable: 100}
    assert check.call_count <= 300, "the first and the last of each, and few between: alone, each would look six times"


def test_a_name_without_a_namespace_is_in_the_key_s_own(live: Live) -> None:
    with SoupClient(live.url, live.world.admin) as client:
        key = client.create_key("home", scopes=["write", "read"], namespaces=["home"])["secret"]
        for seed, name in enumerate(("one", "two")):
            live.world.push(f"home/{name}", seed=seed, domain=name)
    ingredients = tuple(WeightedRef(ref=f"home/{name}") for name in ("one", "two"))
    with SoupClient(live.url, key) as client:
        cooked = client.cook(CookRequest(recipe=HandRecipe(ingredients=ingredients), name="both"))
        assert cooked["model"] == "home/both@1"
        with pytest.raises(InvalidName):
            client.cook(CookRequest(recipe=HandRecipe(ingredients=ingredients), name="No"))


@pytest.fixture(scope="module")
def bulk(live: Live, weights: list[bytes]) -> None:
    """An adapter of each name in the namespace `bulk`, with the tag `draft`."""
    card = {"tags": ["draft"]}
    for name, data in zip(NAMES, weights, strict=True):
        files = {WEIGHTS_FILE: {"base64": base64.b64encode(data).decode()}}
        live.world.push(f"bulk/{name}", domain=name, config=lora().model_dump(mode="json"), files=files, card=card)


@pytest.mark.usefixtures("bulk")
class TestChangingMany:
    def tags(self, soup: Soup, **filters: str) -> dict[str, list[str]]:
        flags = [word for name, value in filters.items() for word in (f"--{name}", value)]
        rows = json.loads(soup("ls", "--namespace", "bulk", "--json", *flags)[1])["data"]
        return {row["name"]: row["card"]["tags"] for row in rows}

    def test_tags_of_all_that_filters_find(self, soup: Soup) -> None:
        command = ("edit", "--namespace", "bulk", "--tag", "draft", "--remove-tag", "draft", "--add-tag", "v2")
        tags_before = self.tags(soup)
        code, out, err = soup(*command, "--dry-run")
        assert (code, len(out.split()), self.tags(soup)) == (0, 4, tags_before)
        assert "4 versions would be changed." in err
        code, out, err = soup(*command)
        assert (code, out, self.tags(soup)) == (2, "", tags_before), "nobody said yes"
        assert "add --yes to have 4 versions changed" in err
        code, out, _ = soup(*command, "--yes")
        assert (code, sorted(out.split())) == (0, [f"bulk/{name}@1" for name in NAMES])
        assert self.tags(soup) == {name: ["v2"] for name in NAMES}
        assert soup(*command, "--yes")[1] == "", "nothing has the tag any more"
        assert soup("edit", "--namespace", "bulk", "--remove-tag", "v2", "--add-tag", "draft", "--yes")[0] == 0

    def test_who_answers_for_all_that_filters_find(self, soup: Soup, tmp_path: Path) -> None:
        assert "--set-owner" in refused(soup("edit", "--namespace", "bulk", "--set-owner", "a\x1b[31m", "--yes"), 2)
        out, _ = done(soup("edit", "--namespace", "bulk", "--set-owner", "team@acme.example", "--yes"))
        assert sorted(out.split()) == [f"bulk/{name}@1" for name in NAMES]
        assert set(self.tags(soup, owner="team@acme.example")) == {*NAMES}
        assert "team@acme.example" in soup("show", "bulk/drama")[1]
        assert {*soup("models", "--owner", "team@acme.example", "-q")[1].split()} == {f"bulk/{name}" for name in NAMES}
        assert soup("edit", "bulk/drama", "--set-owner", "team@acme.example")[1] == "", "it is so already"
        assert soup("pull", "bulk/drama", tmp_path / "drama")[0] == 0
        copied = json.loads(done(soup("push", tmp_path / "drama", "--name", "pulled/drama", "--json"))[0])
        assert copied["owner"] is None, "who answers for a copy is said with it"
        assert soup("edit", "bulk/drama", "--set-owner", "")[:2] == (0, "bulk/drama@1\n")
        assert set(self.tags(soup, owner="team@acme.example")) == {*NAMES} - {"drama"}

    def test_the_card_of_one(self, soup: Soup) -> None:
        change = ("--description", "Of plays.", "--license", "mit", "--metadata", "n=3", "--set-domain", "plays")
        assert soup("edit", "bulk/drama", *change)[:2] == (0, "bulk/drama@1\n")
        row = json.loads(soup("show", "bulk/drama", "--json")[1])
        assert (row["domain"], row["card"]["description"], row["card"]["license"]) == ("plays", "Of plays.", "mit")
        assert (row["card"]["metadata"], row["card"]["tags"]) == ({"n": 3}, ["draft"])
        assert soup("edit", "bulk/drama", "--license", "", "--remove-metadata", "n", "--set-domain", "drama")[0] == 0
        row = json.loads(soup("show", "bulk/drama", "--json")[1])
        assert (row["domain"], row["card"]["license"], row["card"]["metadata"]) == ("drama", None, {})
        code, out, err = soup("edit", "bulk/drama", "bulk/none", "--add-tag", "x")
        assert (code, out) == (1, "bulk/drama@1\n")
        assert "bulk/none: Error:" in err

    def test_a_dry_run_for_a_name_that_is_not_there_fails(self, soup: Soup) -> None:
        code, _, err = soup("edit", "bulk/none", "--add-tag", "x", "--dry-run")
        assert (code, "bulk/none: Error:" in err) == (1, True)

    @pytest.mark.parametrize("verb", [("rm",), ("edit", "--add-tag", "x")], ids=["rm", "edit"])
    def test_where_nothing_matches_nobody_is_asked(self, soup: Soup, verb: tuple[str, ...]) -> None:
        assert soup(*verb, "--namespace", "bulk", "--tag", "none") == (0, "", "Nothing matches.\n")

    @pytest.mark.parametrize(
        "wrong",
        [
            ["edit", "bulk/drama"],
            ["edit", "--add-tag", "x"],
            ["edit", "bulk/drama", "--tag", "y", "--add-tag", "x"],
            ["edit", "bulk/drama", "--add-tag", "No"],
            ["rm"],
            ["rm", "bulk/drama", "--tag", "draft"],
            ["rm", "--undo", "--tag", "draft"],
            ["rm", "bulk/drama", "--dry-run"],
        ],
    )
    def test_what_does_not_go_together(self, soup: Soup, wrong: list[str]) -> None:
        assert soup(*wrong)[:2] == (2, "")

    def test_what_another_changes_meanwhile_is_not_lost(
        self, soup: Soup, live: Live, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        change = SoupClient.update_adapter

        def slow(client: SoupClient, ref: str, **changes: Any) -> Any:
            card = Card.model_validate(client.adapter(ref)["card"])
            change(client, ref, card=card.model_copy(update={"tags": (*card.tags, "theirs")}))
            return change(client, ref, **changes)

        with monkeypatch.context() as patch:
            patch.setattr(SoupClient, "update_adapter", slow)
            assert soup("edit", "bulk/botany", "--add-tag", "mine")[0] == 1
        assert self.tags(soup)["botany"] == ["draft", "theirs"]
        assert soup("edit", "bulk/botany", "--add-tag", "mine")[0] == 0
        assert self.tags(soup)["botany"] == ["draft", "theirs", "mine"]

    def test_all_that_filters_find_are_retired(self, soup: Soup) -> None:
        command = ("rm", "--namespace", "bulk", "--domain", "anatomy")
        code, out, err = soup(*command, "--dry-run")
        assert (code, out, "1 version would be retired." in err) == (0, "bulk/anatomy@1\n", True)
        assert soup(*command)[0] == 2
        assert soup(*command, "--yes")[:2] == (0, "bulk/anatomy@1\n")
        assert set(self.tags(soup)) == {*NAMES} - {"anatomy"}
        assert soup("rm", "--undo", "bulk/anatomy@1")[0] == 0


@pytest.mark.parametrize(("verb", "empty"), [(("rm",), ""), (("edit", "--add-tag", "x"), " ")], ids=["rm", "edit"])
@pytest.mark.parametrize(
    "flag", ["--matching", "--domain", "--tag", "--name", "--namespace", "--base", "--method", "--tuned-on"]
)
def test_a_filter_that_is_empty_does_not_stand_for_everything(
    scripted: Soup, server: Server, verb: tuple[str, ...], flag: str, empty: str
) -> None:
    code, out, err = scripted(*verb, "--kind", "adapter", flag, empty)
    assert (code, out, server.requests) == (2, "", [])
    assert f"{flag} is empty" in " ".join(err.split())


def test_without_a_filter_nothing_matches_instead_of_everything(server: Server) -> None:
    with server.client() as client, pytest.raises(ValueError, match="every adapter would match"):
        matching_adapters(client, Matching())
    assert server.requests == []


def test_an_empty_search_text_finds_nothing_on_the_server_either(soup: Soup, live: Live) -> None:
    assert live.world.client.get("/v1/adapters", params={"q": ""}).status_code == 400
    assert soup("ls", "")[:2] == (1, "")
    page = live.world.client.get("/models", params={"q": "", "namespace": "x"}, follow_redirects=False)
    assert page.status_code < 400, "a form's empty field asks for nothing"


@pytest.fixture(scope="module")
def law(live: Live) -> None:
    """Two versions of `little/law`."""
    for seed in range(2):
        live.world.push("little/law", seed=seed)


@pytest.mark.usefixtures("law")
class TestLittleVerbs:
    def test_aliases(self, soup: Soup) -> None:
        assert soup("alias", "set", "little/law@1", "prod")[:2] == (0, "little/law@prod\n")
        assert json.loads(soup("show", "little/law@prod", "--json")[1])["version"] == 1
        assert soup("alias", "ls", "little/law")[1].split() == ["ALIAS", "POINTS", "AT", "prod", "little/law@1"]
        err = refused(soup("alias", "set", "little/law@2", "prod", "--instead-of", 2))
        assert "points at version 1, and not at version 2" in err
        assert soup("alias", "set", "little/law", "prod", "--instead-of", 1)[0] == 0
        assert json.loads(soup("show", "little/law@prod", "--json")[1])["version"] == 2
        code, out, err = soup("alias", "rm", "little/law", "none", "prod")
        assert (code, out) == (1, "little/law@prod\n")
        assert "little/law@none: Error:" in err
        assert "has no alias" in soup("alias", "ls", "little/law")[2]
        assert soup("alias", "rm", "little/law@2", "prod")[0] == 1

    def test_models(self, soup: Soup) -> None:
        rows = [line.split() for line in soup("models")[1].splitlines()]
        assert rows[0] == ["MODEL", "KIND", "BASE", "GENERATES", "CONTEXT"]
        assert rows[1] == ["tiny", "base", "tiny", "yes", "64"]
        assert "little/law" in soup("models", "--kind", "adapter", "--quiet")[1].split()
        assert "tiny" not in soup("models", "--kind", "adapter", "--quiet")[1].split()

    def test_embed(self, soup: Soup, live: Live, tmp_path: Path) -> None:
        (tmp_path / "t.txt").write_text("one\n\ntwo")
        lines = soup("embed", "base/tiny", "--texts", tmp_path / "t.txt")[1].splitlines()
        response = live.openai().embeddings.create(model="base/tiny", input=["one", "two"])
        assert [json.loads(line) for line in lines] == [row.embedding for row in response.data]
        assert soup("embed", "base/tiny", "two")[1] == lines[1] + "\n"
        assert soup("embed", "base/tiny")[0] == 2
        assert soup("embed", "little/law", "two")[1] != lines[1] + "\n"
        assert soup("embed", "little/nobody", "two")[0] == 1

    def test_open(self, soup: Soup, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        opened: list[str] = []
        monkeypatch.setattr("webbrowser.open", opened.append)
        address = soup("open", "little/law@1")[1].strip()
        assert address == f"{live.url}/models/little/law@1"
        browser = PageSession(live.world, live.world.admin)
        assert "little/law" in browser.page(address.removeprefix(live.url))
        assert soup("open")[1] == f"{live.url}/models\n"
        assert "little/law" in browser.page("/models")
        assert soup("open", "base/tiny")[0] == soup("open", "little/none")[0] == 1
        assert opened == [], "where the output is no terminal nothing is opened"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        soup("open", "little/law", "--print")
        assert opened == []
        soup("open", "little/law")
        assert opened == [f"{live.url}/models/little/law@2"]


@pytest.mark.usefixtures("law")
class TestCompletion:
    """Completions, requested as the shell's own scripts do it."""

    def test_names_come_from_the_server(self, live: Live, command: Soup, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOUP_URL", live.url)
        monkeypatch.setenv("SOUP_KEY", live.world.admin)
        monkeypatch.setenv("_SOUP_COMPLETE", "complete_bash")
        for words, completion in (
            ("soup show little/", "little/law"),
            ("soup cook --verif", "--verify"),
            ("soup sho", "show"),
        ):
            monkeypatch.setenv("COMP_WORDS", words)
            monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
            assert done(command())[0].split() == [completion]

    def test_nothing_is_offered_where_no_server_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOUP_URL", "http://127.0.0.1:9")
        assert complete_ref("little/") == []


# --- chat -----------------------------------------------------------------------------------------


@pytest.fixture
def sent_messages(monkeypatch: pytest.MonkeyPatch) -> list[list[dict[str, str]]]:
    """The messages of each request."""
    recorded: list[list[dict[str, str]]] = []
    stream = SoupClient.stream_chat

    def noted(client: SoupClient, model: str, messages: Any, **sampling: Any) -> Any:
        recorded.append(list(messages))
        return stream(client, model, messages, **sampling)

    monkeypatch.setattr(SoupClient, "stream_chat", noted)
    return recorded


SHORT = ("base/tiny", "--max-tokens", 3, "--temperature", 0)


def test_lines_of_another_program(
    soup: Soup, sent_messages: list[Any], monkeypatch: pytest.MonkeyPatch, live: Live
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n\n/etc/hosts\n//x\n/exit\n"))
    code, out, err = soup("chat", *SHORT, "--json", "--system", "be")
    assert (code, err) == (0, "")
    answers = [json.loads(line)["content"] for line in out.splitlines()]
    whole = live.openai().chat.completions.create(
        model="base/tiny",
        messages=[{"role": "system", "content": "be"}, {"role": "user", "content": "a"}],
        max_tokens=3,
        temperature=0,
    )
    assert answers[0] == whole.choices[0].message.content
    assert [message["content"] for message in sent_messages[-1]][1::2] == ["a", "/etc/hosts", "//x", "/exit"], (
        "none is a command"
    )
    assert [message["content"] for message in sent_messages[-1]][2::2] == answers[:-1]


def test_what_cannot_be_answered_ends_a_pipe(soup: Soup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\ny\n"))
    assert refused(soup("chat", "a/none", *SHORT[1:])).count("Error:") == 1


def test_on_a_terminal_ctrl_c_ends_the_answer_and_an_error_ends_nothing(
    soup: Soup, sent_messages: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lines: Iterator[Any] = iter(
        [
            "a",
            KeyboardInterrupt(),
            "/model a/none",
            "b",
            "/model base/tiny",
            "/system be",
            "/odd",
            "//c",
            "/show",
            EOFError(),
        ]
    )

    def typed(_: str) -> str:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return str(line)

    def interrupted(text: str) -> None:
        pieces.append(text)
        if len(pieces) == 2:
            raise KeyboardInterrupt

    pieces: list[str] = []
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", typed)
    monkeypatch.setattr("adaptersoup.cli.verbs.chat.write", interrupted)
    _, err = done(soup("chat", *SHORT, "--history", tmp_path / "history"))
    assert "(stopped)" in err
    assert "Error:" in err
    assert sent_messages[-1][0] == {"role": "system", "content": "be"}
    assert sent_messages[-1][2] == {"role": "assistant", "content": "".join(pieces[:2])}, "what there was of it stays"
    assert [message["content"] for message in sent_messages[-1]][1::2] == ["a", "/c"], "what was refused is taken back"
    assert "/odd is none of these" in err
    assert "user: a\nassistant: " in err
    assert (tmp_path / "history").exists()


def test_a_terminal_of_80_columns_loses_columns_and_no_names(
    soup: Soup, live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.world.push("wide-namespace/a-name-of-twenty-four", seed=3, domain="a domain of some words")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    lines = soup("ls", "--namespace", "wide-namespace")[1].splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].startswith("wide-namespace/a-name-of-twenty-four@1  ")
    assert "PARAMETERS" not in lines[0]
    monkeypatch.setenv("COLUMNS", "160")
    assert "PARAMETERS" in soup("ls", "--namespace", "wide-namespace")[1]


@pytest.fixture(scope="module")
def novel(live: Live, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of two domains, and adapters to cook from."""
    root = tmp_path_factory.mktemp("novel")
    with SoupClient(live.url, live.world.admin) as client:
        for seed, domain in enumerate(("kitchen", "court")):
            row = live.world.push(f"cmp/{domain}", seed=seed, domain=domain, sample={"texts": passages(domain, 30)})
            client.wait_job(row["job"])
            (root / domain).mkdir()
            (root / domain / "valid.txt").write_text("\n\n".join(passages(domain, 30, seed=1)))
            (root / domain / "test.txt").write_text("\n\n".join(passages(domain, 4, seed=2)))
    return root


class TestComparing:
    ASKED = ("--pool-namespace", "cmp", "--strategy", "uniform soup", "--strategy", "single, cosine")

    def soups(self, soup: Soup) -> list[str]:
        return soup("ls", "--kind", "soup", "--quiet")[1].split()

    def test_domains_and_draws_in_one_table(self, soup: Soup, novel: Path, tmp_path: Path) -> None:
        command = ("compare", novel / "kitchen", novel / "court", "--draws", 2, "--size", 22, *self.ASKED)
        soups_before = self.soups(soup)
        out, _ = done(soup(*command, "--json", "--plot", tmp_path / "c.svg"))
        assert self.soups(soup) == soups_before, "what was cooked for the comparison is gone"
        comparisons = json.loads(out)["data"]
        rows = list(csv.DictReader(io.StringIO(report.csv_text(comparisons))))
        assert [(row["domain"], row["draw"], row["strategy"]) for row in rows] == [
            (domain, draw, strategy)
            for domain in ("kitchen", "court")
            for draw in ("0", "1")
            for strategy in ("base", "uniform soup", "single, cosine")
        ]
        assert all(name in (tmp_path / "c.svg").read_text() for name in ("kitchen", "court", "uniform soup"))
        lines = report.markdown(comparisons).splitlines()
        assert lines[0] == "| strategy | kitchen | court | all |"
        cells = [float(cell) for cell in lines[2].split("|")[2:-1]]
        mean = {
            d: [float(r["difference"]) for r in rows if (r["domain"], r["strategy"]) == (d, "uniform soup")]
            for d in ("kitchen", "court")
        }
        assert cells[:2] == pytest.approx([sum(mean[d]) / 2 for d in ("kitchen", "court")], abs=1e-4)
        assert cells[2] == pytest.approx(sum(cells[:2]) / 2, abs=1e-4)
        table = report.summary(comparisons).splitlines()
        assert table[0].split()[:3] == ["STRATEGY", "DIFFERENCE", "PERPLEXITY"]
        assert [line.split("  ")[0] for line in table[1:]] == ["uniform soup", "single, cosine"]

    def test_what_was_there_stays_and_what_is_made_goes_also_when_it_is_ended(
        self, soup: Soup, novel: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mixture = soup("cook", "--recipe", "cmp/kitchen=1,cmp/court=2")[1].strip()
        sample = ("--sample", novel / "court" / "valid.txt", "--selector", "uniform", "--no-verify")
        uniform = soup("cook", *sample, "--pool-namespace", "cmp")[1].strip()
        assert {mixture, uniform} <= set(self.soups(soup))
        assert soup("compare", novel / "court", *self.ASKED)[0] == 0
        assert {mixture, uniform} <= set(self.soups(soup))
        assert soup("rm", uniform)[0] == 0

        def interrupted(*_: Any, **__: Any) -> None:
            snapshots.append(self.soups(soup))
            raise KeyboardInterrupt

        snapshots: list[list[str]] = []
        monkeypatch.setattr(SoupClient, "perplexity", interrupted)
        soups_before = self.soups(soup)
        assert soup("compare", novel / "court", *self.ASKED)[0] != 0
        assert len(snapshots[0]) == len(soups_before) + 1, "one was made"
        assert self.soups(soup) == soups_before

    def test_a_soup_that_somebody_else_cooks_meanwhile_stays_theirs(
        self, soup: Soup, live: Live, novel: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two comparisons, and a cook, that come to the same soup at once."""
        score, theirs = SoupClient.perplexity, []
        sample = ("--sample", novel / "court" / "valid.txt", "--selector", "uniform", "--no-verify")

        def meanwhile(client: SoupClient, model: str, texts: Any, **more: Any) -> Any:
            if not theirs:
                theirs.append(soup("cook", *sample, "--pool-namespace", "cmp")[1].strip())
                assert soup("compare", novel / "court", *self.ASKED)[0] == 0
            return score(client, model, texts, **more)

        monkeypatch.setattr(SoupClient, "perplexity", meanwhile)
        soups_before = set(self.soups(soup))
        assert soup("compare", novel / "court", *self.ASKED)[0] == 0, "a run within the other took nothing from it"
        assert set(self.soups(soup)) == soups_before | set(theirs)
        assert soup("generate", theirs[0], "x", "--max-tokens", 1)[0] == 0
        assert soup("rm", theirs[0])[0] == 0

    @pytest.mark.usefixtures("signal_handlers")
    @pytest.mark.parametrize("lost", ["asked", "waiting", "unheard"])
    def test_what_a_job_that_is_given_up_makes_goes_too(
        self, soup: Soup, novel: Path, monkeypatch: pytest.MonkeyPatch, lost: str
    ) -> None:
        """The command ends, or does not hear, when the soup is cooked already: no answer ever named it."""
        wait, begin, soups_before = SoupClient.result_of, SoupClient.begin_cook, self.soups(soup)

        def cooked(client: SoupClient, job: Any, progress: Any = None) -> Any:
            models.append(wait(client, job, progress)["model"])
            raise Unavailable("No answer.") if lost == "unheard" else KeyboardInterrupt

        def begin_interrupted(client: SoupClient, request: Any, **more: Any) -> Any:
            job = begin(client, request, **more)
            models.append(wait(client, job)["model"])
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            with suppress(Cancelled):
                for _ in range(3000):  # until the command has heard it
                    more["progress"](0, 0, "")
                    threading.Event().wait(0.01)
            return job

        models: list[str] = []
        patched = ("begin_cook", begin_interrupted) if lost == "asked" else ("result_of", cooked)
        monkeypatch.setattr(SoupClient, *patched)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background nobody hears it
        assert soup("compare", novel / "court", *self.ASKED[:4])[0] != 0
        assert models
        assert self.soups(soup) == soups_before

    def test_a_picture_that_cannot_be_written_loses_no_comparison(
        self, soup: Soup, novel: Path, tmp_path: Path
    ) -> None:
        (folder := tmp_path / "folder.svg").mkdir()
        code, out, err = soup("compare", novel / "court", *self.ASKED[:4], "--json", "--plot", folder)
        assert code == 1
        assert [row["strategy"] for row in json.loads(out)["rows"]] == ["base", "uniform soup"]
        assert "cannot be written: Is a directory" in err

    def test_what_does_not_go_together(self, scripted: Soup, server: Server, novel: Path) -> None:
        court = novel / "court"
        for wrong in (
            [],
            ["--sample", court / "test.txt"],
            [court, "--sample", court / "test.txt", "--test", court / "test.txt"],
            [court, "--draws", 2],
            [court, "--csv", "--json"],
            [court, "--strategy", "odd"],
            [court, "--draws", 2, "--size", 30],
            [court, "--plot", novel / "none" / "c.svg"],
        ):
            assert scripted("compare", *wrong)[0] == 2, wrong
        assert scripted("compare", novel)[0] == 1
        assert server.requests == []
