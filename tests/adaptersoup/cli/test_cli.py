"""The command line against a scripted server: what is printed where, exit codes, usage, what leaves this machine."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
import typer

from adaptersoup.cli import app as cli
from adaptersoup.cli.failures import Failures, exit_code, explain, not_installed
from adaptersoup.cli.flags import ParsedFlags, key_values
from adaptersoup.cli.remote import connect
from adaptersoup.cli.selection_flags import SELECTION as FLAGS
from adaptersoup.cli.selection_flags import selector_of
from adaptersoup.cli.verbs.compare.strategies import STRATEGIES
from adaptersoup.cli.verbs.push.sending import AT_ONCE
from adaptersoup.cli.verbs.serve import is_loopback
from adaptersoup.cli.verbs.train.progress import EvaluationLines, training_progress
from adaptersoup.cli.verbs.train.training_flags import TRAINING
from adaptersoup.tables import columns
from registry.errors import Busy, Forbidden, Incompatible, InvalidParameter, SoupError, Unauthenticated
from registry.formats import AdapterContents, write_directory
from registry.spec import BottleneckConfig
from tests.adaptersoup.cli.outcome import done, refused
from tests.service.scripted_server import Server, events, job, ok, refusal
from tests.service.servers import Soup
from tests.texts_file import write_texts
from training.hyperparameters import Hyperparameters

CONFIG = BottleneckConfig(structure="bapna_firat", bottleneck=4, activation="relu")
DIGEST = "sha256:" + "c" * 64
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
    "domain": "US law",
    "config": CONFIG.model_dump(),
    "card": {"tags": ["a"], "description": "x\x1b[31mred", "metadata": {"\x1b[2J\u202eforged\nlicense": "m\x1b"}},
    "parameters": 1234,
    "dtype": "F32",
    "size_bytes": 99,
    "sample": {"kept": 20, "received": 21, "notes": ["few"]},
    "sample_state": "ready",
    "created_at": "2026-01-02T03:04:05Z",
    "retired_at": None,
    "etag": "e",
    "warnings": [],
}
SELECTION: dict[str, Any] = {
    "selected": [
        {"ref": "team/law@1", "digest": DIGEST, "domain": "US law", "weight": "1", "score": 0.75, "stability": 0.985}
    ],
    "left_out": [{"ref": "team/tax@1", "digest": DIGEST, "domain": "tax", "reason": "below 0.1", "score": 0.05}],
    "abstained": False,
    "reason": "",
    "units": 25,
    "counts": {"0": 3},
    "novelty": 40.0,
    "warnings": ["few units"],
}
SOUP: dict[str, Any] = {
    "object": "soup",
    "abstained": False,
    "reason": "",
    "model": "team/soup@1",
    "digest": None,
    "soup": None,
    "cached": False,
    "created": True,
    "recipe": None,
    "recipe_digest": None,
    "report": None,
    "selection": SELECTION,
    "sample": None,
    "selector": "sel-1",
    "fitted_at": None,
    "not_yet_included": [],
    "verification": {
        "base_nll": 3.1,
        "soup_nll": 3.0,
        "difference": -0.1,
        "standard_error": 0.01,
        "interval": [-0.118, -0.082],
        "passages": 20,
        "tokens": 400,
        "helps": True,
        "held_out": False,
    },
    "search": None,
    "spent": None,
    "beyond": [],
}


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def soup(server: Server, command: Soup) -> Soup:
    """Runs a command line against the scripted server."""
    return lambda *args: command(*args, connect=lambda url, key: server.client())


@pytest.fixture
def cook(soup: Soup, server: Server) -> Soup:
    """Runs `soup cook` over a server that answers with SOUP, but for the fields that are given."""

    def run(*flags: object, **fields: Any) -> tuple[int, str, str]:
        server.on("POST /v1/soups", ok({**SOUP, **fields}, 201))
        return soup("cook", *flags)

    return run


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    return write_texts(tmp_path / "sample.jsonl", [f"passage {i}" for i in range(3)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_directory(
        tmp_path / "My Law", AdapterContents(config=CONFIG, domain="law", weights=b"w", base_model="tiny", texts=["a"])
    )
    return tmp_path / "My Law"


# --- help -----------------------------------------------------------------------------------------


MANY_DIGITS = 5000 * "9"  # more than Python reads as a number
SUBMIT = ("train", "submit", "--texts", "SAMPLE", "--name", "team/law", "--base", "tiny")


@pytest.mark.parametrize("name", cli.VERBS)
def test_every_verb_has_examples_json_and_its_summary(soup: Soup, name: str) -> None:
    out, _ = done(soup(name, "--help"))
    below = getattr(cli.command_of(name), "commands", [])
    assert bool(below) == (name in ("train", "alias", "ray", "keys", "namespaces", "limits", "jobs", "blobs"))
    for page in [soup(name, verb, "--help")[1] for verb in below if name != "train"] or [out]:
        assert "Examples:" in page
        assert f"soup {name}" in page
        assert "--json" in page or name == "train"
    assert cli.VERBS[name].rstrip(".") in " ".join(out.split())


def test_a_verb_that_is_none(soup: Soup) -> None:
    assert "Did you mean 'push'?" in refused(soup("psh"), 2)


@pytest.mark.parametrize(
    "args",
    [
        ["pull", "a/b"],
        ["ls", "--kind", "odd"],
        ["ls", "--limit", "0"],
        ["generate", "m"],
        ["cook"],
        ["ppl", "m"],
        ["keys", "create", "x", "--scope", "root"],
        ["jobs", "ls", "--state", "odd"],
        ["ls", "--odd"],
        ["namespaces", "set", "a", "--tuning", "odd"],
        ["namespaces", "set", "a"],
        ["namespaces", "set", "a", "--unnamed-soup-days", "few"],
        ["keys", "set", "k"],
        ["limits", "set", "--of-key", "k"],
        ["keys", "set", "k", "--expires", "soon"],
        ["keys", "rotate", "k", "--grace", "long"],
        ["keys", "set", "k", "--expires", MANY_DIGITS + "d"],
        ["keys", "rotate", "k", "--grace", MANY_DIGITS + "d"],
        ["limits", "set", "--of-key", "k", "--jobs", MANY_DIGITS],
        ["generate", "m", "p", "--temperature", "inf"],
        *(["generate", "m", "p", "--top-p", share] for share in ("-1", "0")),
        ["usage", "--csv", "--limit", "5"],
        ["usage", "--csv", "--json"],
        ["audit", "--csv", "--json"],
        ["matrix", "--show", "--passages", "10"],
        ["matrix", "--show", "--no-wait"],
        ["ray", "deploy", "--replicas", "3", "--max-replicas", "1"],
        ["ls", "--encoder", "base"],
        ["ls", "--near", "SAMPLE", "--namespace", "A B"],
        *(
            ["ls", "--near", "SAMPLE", *flags]
            for flags in (["law"], ["--kind", "soup"], ["--tag", "a", "--tag", "b"], ["--name", "x"])
        ),
        ["select", "--sample", "SAMPLE", "--selector", "uniform", "--paper"],
        ["select", "--sample", "SAMPLE", "--selector", "gmm", "--encoder", "sbert"],
        ["select", "--sample", "SAMPLE", "--set", "odd=1"],
        ["select", "--sample", "SAMPLE", "--paper", "--encoder", "base"],
        ["select", "--sample", "SAMPLE", "--set", "covariance=odd"],
        ["select", "--sample", "SAMPLE", "--set", "x"],
        ["select", "--sample", "SAMPLE", "--pool-tag", "Not A Tag"],
        *(["cook", "--recipe", recipe] for recipe in ("", ",", "a=x", "a=-1", "a=nan", "a=inf", "a=")),
        ["keys", "ls", "--limit", "0"],
        *(["keys", "create", "guest", "--expires", end] for end in ("soon", "d", "-3d", "99999999999d", "2031-13-01")),
        ["audit", "--until", "soon"],
        *([*SUBMIT, "--method", "lora", "--targets", targets] for targets in ("", " ,")),
        *([*verb, ""] for verb in (["push"], ["cook", "--sample"], ["serve", "--data"], ["migrate", "--data"])),
    ],
)
def test_usage_errors_are_2_and_send_nothing(soup: Soup, server: Server, sample: Path, args: list[str]) -> None:
    assert "Error" in refused(soup(*(sample if arg == "SAMPLE" else arg for arg in args)), 2)
    assert server.requests == []


@pytest.mark.parametrize(
    ("verb", "flag"),
    [
        *(("select --sample", flag) for flag in ("--pool-namespace", "--pool-tag", "--set covariance")),
        ("ls --near", "--namespace"),
    ],
)
def test_an_invalid_value_of_a_selection_names_its_flag(soup: Soup, sample: Path, verb: str, flag: str) -> None:
    name, _, parameter = flag.partition(" ")
    value = f"{parameter}=a/b" if parameter else "a/b"
    assert f"{flag}:" in refused(soup(*verb.split(), sample, name, value), 2)


# --- failures -------------------------------------------------------------------------------------


def test_an_error_of_the_server_s_own_has_the_id_that_its_log_knows(soup: Soup, server: Server) -> None:
    server.on("GET /v1/adapters", refusal(500, "internal", "Something.", headers={"x-request-id": "0a1b"}))
    assert "request id 0a1b" in soup("ls")[2]


def test_a_setting_that_is_none(command: Soup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOUP_TIMEOUT", "soon")
    assert "SOUP_TIMEOUT" in refused(command("ls"))


def test_a_setting_that_is_none_where_no_server_is_needed(
    command: Soup, sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOUP_PORT", "many")
    assert "SOUP_PORT" in refused(command("evaluate", "folder", "--data", sample))


def test_an_argument_that_is_no_utf_8_is_one_sentence(soup: Soup) -> None:
    assert "surrogates not allowed" in refused(soup("ls", "--owner", "caf\udce9"))


@pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:1", "odd://127.0.0.1", "http://[::"])
def test_a_proxy_that_cannot_be_used_is_one_sentence(
    command: Soup, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    monkeypatch.setenv("ALL_PROXY", proxy)
    assert "ALL_PROXY" in refused(command("ls", "--url", "http://example.org"))


@pytest.mark.parametrize(("args", "closed"), [(("chat", "m"), "<&-"), (("open", "--print"), ">&- 2>&-")])
def test_a_standard_stream_may_be_closed(args: tuple[str, ...], closed: str) -> None:
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "adaptersoup.cli", *args]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_disk_that_refuses_is_one_sentence(soup: Soup, server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    server.on("GET /v1/adapters/team/law", ok(ADAPTER))
    listed = [{"name": name, "digest": DIGEST} for name in ("adapter_config.json", "adapter_model.safetensors")]
    server.on("GET /v1/adapters/team/law@1/files", ok({"data": listed}))
    assert str(tmp_path / "file") in refused(soup("pull", "team/law", tmp_path / "file" / "under"))


# --- serving --------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org"])
def test_without_keys_only_this_machine_is_served(
    soup: Soup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("SOUP_NO_AUTH", "true")
    err = refused(soup("serve", "--data", tmp_path / "data", "--host", host))
    assert host in err
    assert "--no-auth" in err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("flag", "value"), [("--bases", "nowhere.toml"), ("--host", "256.0.0.1"), ("--host", "soup..example.org")]
)
def test_what_it_cannot_serve_is_one_sentence(soup: Soup, tmp_path: Path, flag: str, value: str) -> None:
    assert value in refused(soup("serve", "--data", tmp_path / "data", flag, value))


def test_addresses_of_this_machine() -> None:
    assert all(is_loopback(host) for host in ("localhost", "127.0.0.1", "127.8.0.1", "::1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "", "localhost.example.org"))


def header(client: Any) -> Any:
    with client:
        return client._http.headers.get("authorization")


def test_flags_win_over_the_environment_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOUP_KEY", raising=False)
    monkeypatch.setenv("SOUP_DATA", str(tmp_path))
    monkeypatch.setenv("SOUP_URL", "http://from-env:1")
    assert header(connect("http://localhost:1", None)) is None
    (tmp_path / "admin.key").write_text("sk-soup-file\n")
    assert header(connect("http://localhost:1", None)) == "Bearer sk-soup-file"
    assert header(connect(None, None)) is None
    monkeypatch.setenv("SOUP_KEY", "sk-soup-env")
    assert header(connect(None, None)) == "Bearer sk-soup-env"
    client = connect("http://from-flag:2", "sk-soup-flag")
    assert client.base_url == "http://from-flag:2"
    assert header(client) == "Bearer sk-soup-flag"
    with connect(None, None) as client:
        assert client.base_url == "http://from-env:1"


# --- push -----------------------------------------------------------------------------------------


def test_the_name_is_the_data(soup: Soup, server: Server, folder: Path) -> None:
    server.on("POST /v1/adapters", ok({**ADAPTER, "warnings": ["few passages"]}, 201))
    code, out, err = soup(
        "push", folder, "--name", "team/law", "--tag", "v2", "--metadata", "epochs=3", "--base", "base/tiny"
    )
    assert (code, out) == (0, "team/law@1\n")
    assert "few passages" in err
    assert server.body()["base_model"] == "tiny"
    card = server.body()["card"]
    assert (card["tags"], card["metadata"]) == (["v2"], {"epochs": 3})


@pytest.mark.parametrize(("ref", "merge"), [("team/law-bank@2", "team/law"), ("team/experts@1", "team/experts-merge")])
def test_a_bank_is_said_to_want_its_merge(soup: Soup, server: Server, folder: Path, ref: str, merge: str) -> None:
    server.on("POST /v1/adapters", ok({**ADAPTER, "ref": ref, "config": {"method": "adamix"}}, 201))
    assert f"`soup cook --recipe {ref} --name {merge}` makes the merge" in soup("push", folder)[2]


def test_several_are_sent_at_once_and_told_in_their_order(
    soup: Soup, server: Server, folder: Path, tmp_path: Path
) -> None:
    together = threading.Barrier(AT_ONCE)

    def answer(request: httpx2.Request) -> httpx2.Response:
        together.wait(30)  # until so many are here
        return ok({**ADAPTER, "ref": json.loads(request.content)["name"] + "@1"}, 201)

    server.on("GET /v1/adapters", ok({"data": []})).on("POST /v1/adapters", answer)
    folders = [shutil.copytree(folder, tmp_path / f"law-{number}") for number in range(2 * AT_ONCE)]
    out, _ = done(soup("push", *folders, "--namespace", "team"))
    assert out.split() == [f"team/law-{number}@1" for number in range(2 * AT_ONCE)]


def test_what_is_interrupted_begins_nothing_more(soup: Soup, server: Server, folder: Path, tmp_path: Path) -> None:
    server.on("GET /v1/adapters", ok({"data": []})).on("POST /v1/adapters", Mock(side_effect=KeyboardInterrupt))
    folders = [shutil.copytree(folder, tmp_path / f"law-{number}") for number in range(40)]
    code, _, err = soup("push", *folders, "--namespace", "team")
    assert code != 0
    assert len(server.requests) < len(folders)
    assert " not sent" in err
    assert "goes on where this ended" in err


@pytest.mark.parametrize(
    ("extra", "code"),
    [
        (["--name", "no-namespace"], 1),
        (["--namespace", "../x"], 1),
        (["--metadata", "novalue"], 2),
        (["--tag", "Not A Tag"], 2),
        (["--namespace", ""], 1),
    ],
)
def test_bad_names_and_extras_are_found_here(
    soup: Soup, server: Server, folder: Path, extra: list[str], code: int
) -> None:
    assert soup("push", folder, *extra)[0] == code
    assert "POST /v1/adapters" not in server.routes_called()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--name", "team/law", "--namespace", "other"), "--name includes the namespace"),
        (("--name", "team/law", "--namespace", "default"), "--name includes the namespace"),
        (("--sample", "SAMPLE", "--samples", "SAMPLE"), "both name the sample"),
    ],
)
def test_push_options_that_exclude_each_other_are_refused(
    soup: Soup, server: Server, folder: Path, sample: Path, options: tuple[str, ...], sentence: str
) -> None:
    arguments = [sample if option == "SAMPLE" else option for option in options]
    assert sentence in " ".join(refused(soup("push", folder, *arguments), 2).split())
    assert server.requests == []


def test_a_sample_that_fails_hides_nothing_that_was_pushed(soup: Soup, server: Server, folder: Path) -> None:
    pending = {**ADAPTER, "sample_state": "pending"}
    server.on("GET /v1/adapters", ok({"data": []})).on(
        "POST /v1/adapters",
        ok({**pending, "job": "j1"}, 201),
        ok({**pending, "ref": "team/tax@1", "job": "j2"}, 201),
    )
    server.on("GET /v1/jobs/j1/events", events(("done", {}))).on("GET /v1/jobs/j2/events", events(("done", {})))
    error = {"code": "invalid_sample", "message": "A passage has no token."}
    server.on("GET /v1/jobs/j1", ok(job("failed", error=error))).on("GET /v1/jobs/j2", ok(job()))
    server.on("GET /v1/adapters/team/tax@1", ok({**ADAPTER, "ref": "team/tax@1"}))
    another = shutil.copytree(folder, folder.parent / "another")
    code, out, err = soup("push", folder, another, "--parallel", 1, "--namespace", "team", "--wait")
    assert (code, out) == (1, "team/law@1\nteam/tax@1\n")
    assert "team/law@1: Error: A passage has no token." in err


def test_without_a_sample_it_says_so(soup: Soup, server: Server, folder: Path) -> None:
    server.on("POST /v1/adapters", ok({**ADAPTER, "sample_state": "none"}, 201))
    assert "not selected" in soup("push", folder)[2]


def test_a_job_that_is_waited_for_is_named(soup: Soup, server: Server, sample: Path) -> None:
    blob = f"sha256:{hashlib.sha256(sample.read_bytes()).hexdigest()}"
    server.on(f"HEAD /v1/blobs/{blob}", ok({}, etag=f'"{blob}"')).on(
        "POST /v1/trainings", ok(job("queued", kind="train"), 202)
    )
    server.job_ends(result={"adapter": "team/law@1", "warnings": []})
    command = ("train", "submit", "--texts", sample, "--name", "team/law", "--base", "tiny")
    code, out, err = soup(*command)
    assert (code, out) == (0, "team/law@1\n")
    assert "soup jobs cancel j1" in err
    assert soup(*command, "--no-wait") == (0, "j1\n", "")


# --- looking --------------------------------------------------------------------------------------


def test_ls(soup: Soup, server: Server) -> None:
    server.on("GET /v1/adapters", ok({"data": [ADAPTER], "next_cursor": None}))
    code, out, err = soup("ls", "law", "--kind", "adapter", "--base", "base/tiny")
    assert (code, err) == (0, "")
    assert dict(server.requests[0].url.params) == {"q": "law", "kind": "adapter", "base_model": "tiny"}
    header, row = out.splitlines()
    assert header.split()[:2] == ["NAME", "KIND"]
    assert row.startswith("team/law@1  adapter  US law")
    digest = "sha256:" + "0" * 64
    soup("ls", "--tuned-on", digest)
    assert dict(server.requests[-1].url.params) == {"tuned_on": digest}
    assert soup("ls", "-q")[1] == "team/law@1\n"
    assert json.loads(soup("ls", "--json")[1])["data"] == [ADAPTER]


def test_ls_by_several_tags_and_by_name(soup: Soup, server: Server) -> None:
    server.on("GET /v1/adapters", ok({"data": [ADAPTER], "next_cursor": None}))
    soup("ls", "--tag", "v2", "--tag", "eu", "--name", "team/law", "--namespace", "team")
    params = server.requests[0].url.params
    assert params.get_list("tag") == ["v2", "eu"]
    assert (params["name"], params["namespace"]) == ("team/law", "team")


def test_ls_near_a_text(soup: Soup, server: Server, tmp_path: Path) -> None:
    near = {
        "object": "nearest",
        "data": [{"similarity": 0.5, "adapter": ADAPTER}],
        "not_yet_included": ["team/new@1"],
    }
    server.on("POST /v1/adapters/search", ok(near))
    text = tmp_path / "text.txt"
    text.write_text("The court held.")
    out, err = done(soup("ls", "--near", text, "--tag", "eu", "--namespace", "team", "--encoder", "sbert"))
    pool = {"namespaces": ["team"], "tag": "eu", "include_soups": False}
    body = {"texts": ["The court held."], "limit": 10, "encoder": "sbert", "pool": pool, "wait": 0}
    assert json.loads(server.requests[0].content) == body
    assert out.splitlines()[0].split()[:2] == ["SIMILARITY", "NAME"]
    assert out.splitlines()[1].startswith("0.5000      team/law@1")
    assert "team/new@1" in err
    assert soup("ls", "--near", text, "-q")[1] == "team/law@1\n"
    assert json.loads(soup("ls", "--near", text, "--json")[1]) == near


def test_ls_says_what_is_in_a_union(soup: Soup, server: Server) -> None:
    members = [{"method": "prefix"}, {"method": "bottleneck", "structure": "parallel"}]
    row = {**ADAPTER, "config": {"method": "union", "members": members}}
    server.on("GET /v1/adapters", ok({"data": [row], "next_cursor": None}))
    assert "  prefix + parallel  " in soup("ls")[1]


def test_ls_of_nothing(soup: Soup, server: Server) -> None:
    server.on("GET /v1/adapters", ok({"data": []}))
    code, out, err = soup("ls")
    assert (code, out) == (0, "")
    assert "soup push" in err


def test_show(soup: Soup, server: Server) -> None:
    server.on("GET /v1/adapters/team/law", ok(ADAPTER))
    parents = [{"ref": None, "digest": DIGEST, "weight": "0.5", "retired": True}]
    lineage = {"parents": parents, "children": [{"ref": "team/s@1", "digest": DIGEST}]}
    server.on("GET /v1/adapters/team/law@1/lineage", ok(lineage))
    out, _ = done(soup("show", "team/law"))
    for text in (
        "1234",
        "20 of 21 passages",
        "bottleneck: structure bapna_firat, bottleneck 4, activation relu",
        "team/s@1",
        "retired",
        "metadata",
        "?[2J?forged?license=m?",
    ):
        assert text in out
    assert not {"\x1b", "\u202e"} & set(out), "foreign text does not reach the terminal's control sequences"


def test_a_structure_with_others_in_it_is_shown_without_braces(soup: Soup, server: Server) -> None:
    pruned = CONFIG.model_dump() | {"pruned": {"score": "snip", "sparsity": 0.4}}
    labels = {"method": "head", "task": "classification", "labels": ["yes", "no"]}
    union = {**ADAPTER, "config": {"method": "union", "members": [pruned, labels]}}
    server.on("GET /v1/adapters/team/law", ok(union)).on("GET /v1/adapters/team/law@1/lineage", ok({}))
    out = " ".join(soup("show", "team/law")[1].split())
    assert "pruned (score snip, sparsity 0.4) + head: task classification, labels yes/no parameters" in out


def test_rm(soup: Soup, server: Server) -> None:
    server.on("DELETE /v1/adapters/team/law", ok({"data": [ADAPTER, {**ADAPTER, "ref": "team/law@2"}]}))
    code, out, err = soup("rm", "team/law", "team/unknown")
    assert (code, out) == (1, "team/law@1\nteam/law@2\n")
    assert err.startswith("team/unknown: Error:")


def test_rm_asks_whoever_can_answer(soup: Soup, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, about names too; a script's stdin is none, whatever it holds."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    server.on("DELETE /v1/adapters/team/law", ok({"data": [ADAPTER]}))
    for typed, flags, retired in (("n\n", [], False), ("y\n", [], True), ("", ["--yes"], True)):
        requests_before = len(server.requests)
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        code, out, err = soup("rm", "team/law", *flags)
        assert (code, out.strip()) == ((0, "team/law@1") if retired else (1, ""))  # the space of the prompt
        assert ("Retire team/law?" in err) == (not flags)
        assert len(server.requests) - requests_before == retired
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    assert soup("rm", "team/law")[:2] == (0, "team/law@1\n")


def test_edit_changes_the_others_if_a_card_is_full_or_of_a_newer_server(soup: Soup, server: Server) -> None:
    cards = {"full": {"tags": [f"t{number}" for number in range(64)]}, "newer": {"colour": "red"}, "law": {}}
    for name, card in cards.items():
        server.on(f"GET /v1/adapters/team/{name}", ok({**ADAPTER, "ref": f"team/{name}", "card": card}))
    server.on("PATCH /v1/adapters/team/law", ok({**ADAPTER, "card": {"tags": ["x"]}}))
    code, out, err = soup("edit", *(f"team/{name}" for name in cards), "--add-tag", "x")
    assert (code, out) == (1, "team/law@1\n")
    assert err.startswith("team/full: Error: --add-tag: must have at most 64 items, and has 65.\nteam/newer: Error:")
    server.on("PATCH /v1/adapters/team/newer", ok({**ADAPTER, "ref": "team/newer@1"}))
    assert done(soup("edit", "team/newer", "--set-owner", "us", "--set-domain", "Laws"))[0] == "team/newer@1\n"
    assert server.body() == {"owner": "us", "domain": "Laws"}


# --- choosing -------------------------------------------------------------------------------------


def test_edit_by_filters_of_versions_that_need_no_change_asks_nothing(soup: Soup, server: Server) -> None:
    server.on("GET /v1/adapters", ok({"data": [ADAPTER]}))
    assert soup("edit", "--namespace", "team", "--add-tag", "a") == (0, "", "No version needs a change.\n")


def test_only_flags_that_were_given_are_in_the_value() -> None:
    values = {"encoder": None, "paper": True, "pool_namespace": [], "base": "tiny", "max_ingredients": 0}
    flags = ParsedFlags(FLAGS, {**values, "set": ["x=1"]})
    assert flags.nested() == {
        "selector": {"mode": "paper"},
        "options": {"max_ingredients": 0},
        "pool": {"base_model": "tiny"},
    }
    assert flags.present("encoder", "paper", "pool_namespace", "max_ingredients", "set") == [
        "--paper",
        "--max-ingredients",
        "--set",
    ]


@pytest.mark.parametrize(
    ("place", "flag"),
    [
        (("adapter", "lora", "rank"), "--rank"),
        (("adapter", "lora", "targets", 0), "--targets"),
        (("recipe", "learning_rate"), "--lr"),
        (("adapter", "lora", "new"), "adapter.new"),
        ((), ""),
    ],
)
def test_a_place_in_the_value_is_told_by_its_flag(place: tuple[str | int, ...], flag: str) -> None:
    assert TRAINING.flag_at(place) == flag


def test_flags_become_a_selector() -> None:
    def selector(**flags: Any) -> Any:
        return selector_of(ParsedFlags(FLAGS, flags))

    assert selector() is None
    assert selector(selector="gmm", paper=True).model_dump()["mode"] == "paper"
    assert selector(encoder="base").model_dump()["encoder"] == "base"
    spec = selector(selector="gmm", set=["covariance=diag", "dimensions=16"])
    assert (spec.covariance, spec.dimensions) == ("diag", 16)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1.5", 1.5),
        ("true", True),
        ("null", None),
        ("NaN", "NaN"),
        ("a=b", "a=b"),
        ("[1]", "[1]"),
        ("", ""),
        ("-1e999", "-1e999"),
        pytest.param(100_000 * "[", 100_000 * "[", id="nested"),
    ],
)
def test_values_of_repeated_flags(text: str, value: object) -> None:
    assert key_values([f"k={text}"], "--x") == {"k": value}


def selected(selection: dict[str, Any], *notes: str) -> dict[str, Any]:
    return {
        "object": "selection",
        "selection": selection,
        "selector": "s",
        "fitted_at": "2026-01-02T03:04:05Z",
        "sample": {"digest": DIGEST, "received": 3, "kept": 3, "notes": notes},
        "not_yet_included": [],
    }


def test_select_counts_whom_it_does_not_list(soup: Soup, server: Server, sample: Path) -> None:
    more = {"A posterior below 0.02.": 9000, "retired since the fit": 2}
    server.on("POST /v1/select", ok(selected({**SELECTION, "more_left_out": more})))
    _, out, _ = soup("select", "--sample", sample, "--list-all")
    assert out.splitlines()[-2:] == [
        "9000 more were left out: A posterior below 0.02.",
        "2 more were left out: retired since the fit",
    ]
    assert server.body()["list_all"] is True


def test_select_explains_itself(soup: Soup, server: Server, sample: Path) -> None:
    server.on("POST /v1/select", ok(selected(SELECTION, "3 sequences")))
    narrowed = ("--pool-tag", "v2", "--pool-method", "lora")
    out, err = done(soup("select", "--sample", sample, "--paper", "--max-ingredients", "2", *narrowed))
    assert "below 0.1" in out
    assert out.splitlines()[1].split()[-2:] == ["98", "%"]
    assert "few units" in err
    assert "percentile" in err
    body = server.body()
    assert (body["selector"]["mode"], body["options"]["max_ingredients"]) == ("paper", 2)
    assert body["pool"] == {"tag": "v2", "method": "lora", "include_soups": False}
    assert body["sample"]["texts"] == ["passage 0", "passage 1", "passage 2"]


# --- cook -----------------------------------------------------------------------------------------


def test_the_model_is_the_data(cook: Soup, server: Server, sample: Path) -> None:
    code, out, err = cook("--sample", sample, "--no-verify", "--name", "team/soup", "--single")
    assert (code, out) == (0, "team/soup@1\n")
    assert "US law" in err
    assert "-0.1000 (standard error 0.0100, 90 % interval -0.1180 to -0.0820)" in err
    body = server.body()
    assert (body["verify"], body["name"], body["options"]["single"]) == (False, "team/soup", True)
    assert "selector" not in body


def test_who_was_selected_is_told_of_a_tuned_soup_too(cook: Soup, sample: Path) -> None:
    """Tuning weighs no candidates, so that no other table says of whom the soup is made."""
    trial = {"way": "tuned", "members": 1, "width": 4, "difference": -0.2, "standard_error": 0.01}
    search = {
        "effort": "tune",
        "candidates": [],
        "trials": [trial],
        "tuning": {"passes": 1, "kept": 1, "rate": "0.003", "losses": [3.0, 2.8], "trainings": 1},
        "decided_on": 16,
        "held_out": 4,
        "tokens": 900,
        "seconds": 2.0,
    }
    _, err = done(cook("--sample", sample, "--effort", "tune", search=search))
    assert "US law" in err
    assert "3.0000, 2.8000; lowest after pass 1" in err


def test_higher_efforts_have_their_cost_and_the_gain_of_past_cooks(cook: Soup, sample: Path) -> None:
    efforts = [
        {"effort": "quick", "passes": 9.0, "seconds": 9.0, "gain": 0.12, "cooks": 1},
        {"effort": "tune", "passes": 7.0, "seconds": 7.0, "gain": None, "cooks": 0},
    ]
    spent = {"seconds": 2.0, "forward_seconds": 1.0, "passes": 2.0}
    _, err = done(cook("--sample", sample, spent=spent, beyond=efforts))
    gain = "lowered the NLL by 0.120 nats per token in the median of 1 past cook"
    assert f"quick about 9 s ({gain}), tune about 7 s." in " ".join(err.split())


def test_the_model_of_a_server_of_another_version_is_there_without_its_notes(
    soup: Soup, server: Server, sample: Path
) -> None:
    server.on("POST /v1/soups", ok({name: value for name, value in SOUP.items() if name != "beyond"}, 201))
    code, out, err = soup("cook", "--sample", sample)
    assert (code, out) == (0, "team/soup@1\n")
    assert "first beyond" in err


def test_abstaining_is_an_answer(cook: Soup, sample: Path) -> None:
    code, out, err = cook("--sample", sample, abstained=True, model="base/tiny", reason="It does not help.")
    assert (code, out) == (0, "base/tiny\n")
    assert "It does not help." in err


def test_cook_by_hand(cook: Soup, server: Server) -> None:
    flags = ("--recipe", f"team/a@2=0.25, team/b, {DIGEST}=2", "--assume-same-init", "--scale", "1.50")
    done(cook(*flags, selection=None, verification=None))
    body = server.body()
    weights = {"team/a@2": 0.25, "team/b": 1.0, DIGEST: 2.0}
    assert body["recipe"]["ingredients"] == [{"ref": ref, "weight": weight} for ref, weight in weights.items()]
    assert body["mixing"] == {"method": "auto", "scale": "1.5", "assume_same_init": True}


def test_how_to_mix(cook: Soup, server: Server) -> None:
    report = {
        "method": "concat",
        "members": 2,
        "weights": ["0.5", "0.5"],
        "parameters": 64,
        "size_bytes": 256,
        "relative_cost": 1.2,
        "width_out": 16,
        "residual": 3e-8,
        "notes": [],
    }
    flags = ("--recipe", "team/a,team/b", "--mixing", "concat", "--max-width", "16")
    _, err = done(cook(*flags, reason="2 adapters by concat.", report=report))
    assert (server.body()["mixing"], server.body()["max_width"]) == ({"method": "concat", "scale": "1"}, 16)
    _, alone = done(cook("--recipe", "team/a", reason="team/a@1 alone.", report={**report, "members": 1}))
    assert alone.splitlines()[-1] == "team/a@1 alone."
    assert "2 adapters by concat. (1.20 times the cost of one adapter, width 16, 3e-08 from the exact" in err


@pytest.mark.parametrize(
    ("flags", "mixing"),
    [
        (
            ("--mixing", "recompress", "--width", "8", "--seed", "3", "--max-width", "9"),
            {"method": "recompress", "scale": "1", "width": 8, "seed": 3},
        ),
        (
            ("--mixing", "recompress", "--by-inputs"),
            {"method": "recompress", "scale": "1", "seed": 0, "by_inputs": True},
        ),
        (
            ("--mixing", "dare", "--density", "0.10", "--seed", "3"),
            {"method": "dare", "scale": "1", "density": "0.1", "seed": 3, "assume_same_init": False},
        ),
        (
            ("--mixing", "task_arithmetic", "--scale", "1.2", "--init-seed", "3", "--max-width", "9"),
            {"method": "task_arithmetic", "scale": "1.2", "init_seed": 3},
        ),
        (
            ("--mixing", "regmean", "--off-diagonal", "0.10"),
            {"method": "regmean", "scale": "1", "off_diagonal": "0.1", "assume_same_init": False},
        ),
        (
            ("--masks", "intersect"),
            {"method": "average", "scale": "1", "assume_same_init": False, "masks": "intersect"},
        ),
    ],
)
def test_ways_to_mix(cook: Soup, server: Server, flags: tuple[str, ...], mixing: dict[str, object]) -> None:
    done(cook("--recipe", "team/a,team/b", *flags, selection=None, verification=None))
    assert server.body()["mixing"] == mixing


@pytest.mark.parametrize(
    ("flags", "about"),
    [
        (("--mixing", "concat", "--assume-same-init"), "--assume-same-init"),
        (("--mixing", "average", "--max-width", "9"), "--max-width"),
        (("--max-width", "0"), "--max-width"),
        (("--mixing", "blend"), "--mixing"),
        (("--mixing", "concat", "--masks", "union"), "--masks"),
        (("--masks", "xor"), "--masks"),
        (("--mixing", "recompress", "--assume-same-init"), "--assume-same-init"),
        (("--mixing", "concat", "--width", "8"), "--width"),
        (("--seed", "1"), "--seed"),
        (("--mixing", "recompress", "--width", "0"), "--width"),
        (("--mixing", "align", "--assume-same-init"), "--assume-same-init"),
        (("--mixing", "slerp", "--density", "0.5"), "--density"),
        (("--mixing", "ties", "--density", "0"), "--density"),
        (("--mixing", "dare", "--max-width", "9"), "--max-width"),
        (("--mixing", "task_arithmetic", "--assume-same-init"), "--assume-same-init"),
        (("--mixing", "average", "--init-seed", "1"), "--init-seed"),
        (("--mixing", "fisher", "--max-width", "9"), "--max-width"),
        (("--mixing", "fisher", "--by-inputs"), "--by-inputs"),
        (("--mixing", "average", "--off-diagonal", "1"), "--off-diagonal"),
        (("--scale", "wide"), "must be a number"),
        (("--pool-method", "lora"), "--recipe"),
        (("--paper",), "--recipe"),
    ],
)
def test_ways_to_mix_that_are_none(soup: Soup, server: Server, flags: tuple[str, ...], about: str) -> None:
    assert about in refused(soup("cook", "--recipe", "team/a,team/b", *flags), 2)
    assert server.requests == []


def test_cook_without_waiting(soup: Soup, server: Server, sample: Path) -> None:
    server.on("POST /v1/soups", ok(job("queued"), 202))
    code, out, err = soup("cook", "--sample", sample, "--no-wait")
    assert server.body()["wait"] == 0
    assert (code, out) == (0, "j1\n")
    assert "soup jobs watch j1" in err


def test_the_job_is_told_before_it_is_waited_for(soup: Soup, server: Server, sample: Path) -> None:
    server.on("POST /v1/soups", ok(job("queued"), 202)).on("POST /v1/evaluations", ok(job("queued"), 202))
    for words in (("cook", "--sample", sample), ("matrix",)):
        assert "`soup jobs cancel j1` stops it" in soup(*words)[2]


def test_a_fit_is_told_in_figures_and_tables_of_a_hundred_columns(soup: Soup, server: Server) -> None:
    names = [f"a-domain-called-{number}" for number in range(12)]
    report = {
        "domains": 12,
        "explained_variance": 0.63,
        "converged": True,
        "held_out_by": "unit",
        "clusters": [{"cluster": 0, "domains": names, "units": 80}, {"cluster": 1, "domains": ["law"], "units": 9}],
        "warnings": ["Posteriors are saturated: " + "and that is a long story, " * 6],
        "component_zero": {"asked": "auto", "chosen": "keep", "held_out_accuracy": {"keep": 0.9, "drop": 0.85}},
    }
    server.on("POST /v1/selectors", ok({"object": "selector", "id": "sel-1", "domains": 12, "report": report}, 201))
    output = soup("fit")[2]
    assert max(map(len, output.splitlines())) <= 100
    assert not set(output) & set("{}=")
    assert "keep (held-out accuracy: keep 0.90, drop 0.85)" in output
    assert output.count("a-domain-called-") == 12
    assert "\nCLUSTER  DOMAINS" in output
    assert "Note:  Posteriors are saturated" in output
    assert "converged           yes\n" in output


def test_the_own_scores_of_a_fit_are_a_table(soup: Soup, server: Server) -> None:
    report = {"domains": 2, "own_scores": {"law": 0.75, "zoo": 0.5}, "threshold": 0.4}
    server.on("POST /v1/selectors", ok({"object": "selector", "id": "sel-1", "domains": 2, "report": report}, 201))
    lines = soup("fit", "--selector", "cosine")[2].splitlines()
    assert lines[-3:] == ["DOMAIN  OWN SCORES", "law           0.75", "zoo            0.5"]


class TestCompare:
    def cook(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        kind, single = (body.get("selector") or {}).get("kind"), body["options"]["single"]
        if body["verify"]:
            return ok({**SOUP, "abstained": True, "model": "base/tiny", "reason": "No gain."})
        if kind == "uniform":
            return refusal(422, "incompatible", "Two initialisations.")
        return ok({**SOUP, "model": "team/law@1" if single else f"team/{kind}@1"})

    def score(self, request: httpx2.Request) -> httpx2.Response:
        body = json.loads(request.content)
        against = {"difference": -0.25, "standard_error": 0.125} if body.get("baseline") else None
        return ok({"perplexity": 10.0, "mean_nll": 2.3, "tokens": 77, "texts": [], "baseline": against})

    @pytest.fixture(autouse=True)
    def answers(self, server: Server) -> None:
        server.on("POST /v1/soups", self.cook).on("POST /v1/perplexity", self.score)

    def test_every_strategy_beside_the_base(self, soup: Soup, server: Server, sample: Path) -> None:
        code, out, err = soup("compare", "--sample", sample, "--test", sample)
        assert code == 3  # one strategy could not be cooked; the others are there all the same
        assert "Two initialisations." in err
        lines, _, models = (section.splitlines() for section in out.partition("\n\n"))
        assert len(lines) == 2 + len(STRATEGIES)
        assert [line.split()[0] for line in models] == ["MODEL", "team/law@1", "team/cosine@1", "team/gmm@1"]
        assert lines[1].split()[:2] == ["base", "10.00"]
        assert "-0.2500 ± 0.1250" in lines[2]
        assert "failed" in lines[8]
        assert "abstained: the base" in lines[9]
        scored = [json.loads(r.content)["model"] for r in server.requests if r.url.path == "/v1/perplexity"]
        assert sorted(scored) == sorted(set(scored)) == ["base/tiny", "team/cosine@1", "team/gmm@1", "team/law@1"]

    def test_as_json_and_only_the_efforts_are_verified(self, soup: Soup, server: Server, sample: Path) -> None:
        result = json.loads(soup("compare", "--sample", sample, "--test", sample, "--base", "tiny", "--json")[1])
        assert (result["base"], result["tokens"], result["passages"]) == ("base/tiny", 77, 3)
        assert [row["strategy"] for row in result["rows"]] == ["base", *[s.name for s in STRATEGIES]]
        assert result["rows"][7]["error"]["code"] == "incompatible"
        bodies = [json.loads(r.content) for r in server.requests if r.url.path == "/v1/soups"]
        assert [body["verify"] for body in bodies] == [False] * 7 + [True] * 4
        assert [body.get("effort") for body in bodies] == [None] * 7 + ["instant", "quick", "thorough", "tune"]
        modes = [
            (
                (body.get("selector") or {}).get("kind"),
                (body.get("selector") or {}).get("mode"),
                body["options"]["single"],
                body.get("effort"),
            )
            for body in bodies
        ]
        assert len(set(modes)) == len(modes)

    def test_a_soup_that_costs_more_than_one_adapter_says_so(self, soup: Soup, server: Server, sample: Path) -> None:
        chosen = [{"domain": name, "weight": "0.5"} for name in ("law", "zoo")]
        answer = {**SOUP, "recipe": {"mixing": {"method": "concat"}}, "selection": {"selected": chosen}}
        server.on("POST /v1/soups", ok(answer))
        _, out, _ = soup("compare", "--sample", sample, "--test", sample, "--base", "tiny")
        assert "law 0.50, zoo 0.50 (concat)" in out

    @pytest.mark.parametrize("terminal", [True, False])
    def test_it_fits_a_hundred_columns_of_a_terminal(
        self, soup: Soup, server: Server, sample: Path, monkeypatch: pytest.MonkeyPatch, terminal: bool
    ) -> None:
        """Sixteen ingredients, and a model whose name is as long as names may be; for a program a row is a line."""
        monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        chosen = [{"domain": f"domain-{number}", "weight": "0.0625"} for number in range(16)]
        model = "n" * 64 + "/" + "s" * 64 + "@1"
        server.on("POST /v1/soups", ok({**SOUP, "model": model, "recipe": {}, "selection": {"selected": chosen}}))
        _, out, _ = soup("compare", "--sample", sample, "--test", sample, "--base", "tiny")
        assert (max(map(len, out.splitlines())) <= 100) is terminal
        assert any(line.startswith(model) and "domain-15" in line for line in out.splitlines()) is not terminal
        assert all(f"domain-{number} 0.06" in " ".join(out.split()) for number in range(1, 16))
        assert out.count("domain-15") == 1  # a model that several strategies come to is described once

    def test_csv_and_markdown(self, soup: Soup, server: Server, sample: Path) -> None:
        command = ("compare", "--sample", sample, "--test", sample, "--base", "tiny", "--strategy", "soup, gmm")
        header, base, row = soup(*command, "--csv")[1].splitlines()
        assert header.startswith("domain,draw,strategy,model,abstained,perplexity")
        assert base.startswith("sample,0,base,base/tiny,False,10.0,2.3,0.0,0.0")
        assert row.startswith('sample,0,"soup, gmm",team/gmm@1,False,10.0,2.3,-0.25,0.125,US law 1.00')
        assert soup(*command, "--markdown")[1].splitlines() == [
            "| strategy | sample | all |",
            "| --- | ---: | ---: |",
            "| soup, gmm | -0.2500 | -0.2500 |",
        ]

    def test_domains_of_one_name_are_called_by_their_paths(self, soup: Soup, sample: Path, tmp_path: Path) -> None:
        folders = [tmp_path / language / "law" for language in ("en", "de")]
        for folder in folders:
            folder.mkdir(parents=True)
            for name in ("sample.jsonl", "test.jsonl"):
                (folder / name).write_bytes(sample.read_bytes())
        out, _ = done(soup("compare", *folders, "--base", "tiny", "--strategy", "soup, gmm", "--markdown"))
        assert out.startswith(f"| strategy | {folders[0]} | {folders[1]} | all |\n")

    def test_nothing_can_be_cooked(self, soup: Soup, server: Server, sample: Path) -> None:
        server.on("POST /v1/soups", refusal(400, "invalid_parameter", "The pool is empty."))
        assert "The pool is empty." in refused(soup("compare", "--sample", sample, "--test", sample))


# --- inference ------------------------------------------------------------------------------------


def completion(text: str) -> dict[str, Any]:
    return {"object": "text_completion", "choices": [{"text": text}]}


def test_models_of_another_kind_of_server_are_one_sentence(soup: Soup, server: Server) -> None:
    server.on("GET /v1/models", ok({"object": "list", "data": [{"id": "m", "object": "model"}]}))
    assert "is it an AdapterSoup server?" in refused(soup("models"))


def test_generate(soup: Soup, server: Server) -> None:
    server.on("POST /v1/completions", ok(completion(" and on")))
    sampling = ("--max-tokens", 5, "--temperature", 0, "--stop", "a", "--seed", 1)
    assert soup("generate", "team/law", "On", *sampling)[:2] == (0, " and on\n")
    assert server.body() == {
        "model": "team/law",
        "prompt": "On",
        "max_tokens": 5,
        "temperature": 0,
        "stop": ["a"],
        "seed": 1,
    }


def test_generate_streams(soup: Soup, server: Server) -> None:
    chunks = [("message", completion(text)) for text in ("a", "b")]
    server.on("POST /v1/completions", lambda _: events(*chunks, tail="data: [DONE]\n\n"))
    assert soup("generate", "team/law", "x", "--stream")[1] == "ab\n"
    lines = soup("generate", "team/law", "x", "--stream", "--json")[1].splitlines()
    assert [json.loads(line) for line in lines] == [chunk for _, chunk in chunks]


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", None),
        ("\U0001f468\u200d\U0001f469 1\u202f000\u00a0\u20ac\u3000soft\u00adhyphen", None),
        ("a\u061cb\u200ec\u2028d\u2069e\udc80f\u0378g\x9b", "a?b?c?d?e?f?g?"),
    ],
    ids=["joined letters", "emoji and spaces", "controls"],
)
def test_a_terminal_shows_text_without_its_controls(
    soup: Soup, server: Server, monkeypatch: pytest.MonkeyPatch, text: str, printed: str | None
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    server.on("POST /v1/completions", lambda _: httpx2.Response(200, text=json.dumps(completion(text))))
    assert soup("generate", "team/law", "x")[1] == f"{printed or text}\n"
    assert (printed or text) in columns(("text",), [(text,)])


def test_the_prompt_from_stdin(soup: Soup, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from stdin")))
    server.on("POST /v1/completions", ok(completion("x")))
    soup("generate", "team/law", "-")
    assert server.body()["prompt"] == "from stdin"


@pytest.mark.parametrize("verb", ["generate", "embed", "chat"])
def test_stdin_that_is_no_utf_8_is_one_sentence(soup: Soup, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
    assert "UTF-8" in refused(soup(verb, "base/small", *([] if verb == "chat" else ["-"])))


def test_ppl(soup: Soup, server: Server, sample: Path) -> None:
    answer = {
        "object": "perplexity",
        "perplexity": 12.5,
        "mean_nll": 2.5257,
        "standard_error": 0.01,
        "bits_per_byte": 1.1,
        "tokens": 30,
        "texts": [{}] * 3,
        "baseline": {"perplexity": 14.0, "difference": -0.11, "standard_error": 0.02},
    }
    server.on("POST /v1/perplexity", ok(answer))
    out, _ = done(soup("ppl", "team/law", "--texts", sample, "--baseline", "base/tiny"))
    assert "12.50" in out
    assert "-0.1100 (paired standard error 0.0200)" in out
    assert "30 in 3 texts" in out
    assert server.body()["baseline"] == "base/tiny"
    assert json.loads(soup("ppl", "team/law", "--texts", sample, "--json")[1]) == answer


# --- keys and jobs --------------------------------------------------------------------------------


def test_the_secret_is_the_data(soup: Soup, server: Server) -> None:
    server.on("POST /v1/keys", ok({"id": "k1", "secret": "sk-soup-secret"}, 201))
    code, out, err = soup("keys", "create", "ci", "--scope", "read", "--scope", "infer", "--namespace", "team")
    assert (code, out) == (0, "sk-soup-secret\n")
    assert "sk-soup-secret" not in err
    assert server.body() == {"name": "ci", "scopes": ["read", "infer"], "namespaces": ["team"]}
    soup("keys", "create", "all")
    assert server.body() == {"name": "all", "scopes": ["read", "write", "infer"], "namespaces": None}


def test_so_many_keys_are_asked_for_page_by_page_and_all_in_one(soup: Soup, server: Server) -> None:
    key = {"name": "k", "prefix": "sk", "namespaces": None, "scopes": ["read"], "created_at": "2031-05-04"}
    more = {"data": [{"id": f"k{n}", **key} for n in range(100)], "next_cursor": "more"}
    server.on("GET /v1/keys", ok(more))
    assert len(json.loads(soup("keys", "ls", "--limit", "120", "--json")[1])["data"]) == 120
    assert [dict(request.url.params) for request in server.requests] == [{}, {"cursor": "more"}]
    server.on("GET /v1/keys", ok({"data": more["data"]}))  # of a server that knows no pages of keys
    assert len(json.loads(soup("keys", "ls", "--json")[1])["data"]) == 100
    assert dict(server.requests[-1].url.params) == {}


def test_a_key_that_expires(soup: Soup, server: Server) -> None:
    server.on("POST /v1/keys", ok({"id": "k1", "secret": "sk-soup-secret"}, 201))
    for text, sent in (
        ("2031-05-04", "2031-05-04T00:00:00+00:00"),
        ("2031-05-04T10:00:00+02:00", "2031-05-04T10:00:00+02:00"),
    ):
        soup("keys", "create", "guest", "--expires", text)
        assert server.body()["expires_at"] == sent
    earliest = datetime.now(UTC) + timedelta(days=90)
    soup("keys", "create", "guest", "--expires", "90d")
    assert earliest <= datetime.fromisoformat(server.body()["expires_at"]) <= datetime.now(UTC) + timedelta(days=90)


def test_keys_are_listed_and_revoked(soup: Soup, server: Server) -> None:
    key = {
        "object": "key",
        "id": "k1",
        "name": "ci",
        "prefix": "sk-soup-abcd",
        "namespaces": None,
        "scopes": ["read"],
        "created_at": "2026-01-02T03:04:05Z",
        "revoked_at": None,
    }
    server.on("GET /v1/keys", ok({"data": [key]})).on("DELETE /v1/keys/k1", ok(key))
    assert "k1  ci    sk-soup-abcd  all" in soup("keys", "ls")[1]
    assert json.loads(soup("keys", "rm", "k1", "--json")[1]) == key


def test_keys_are_revoked_although_another_is_unknown(soup: Soup, server: Server) -> None:
    for key_id in ("k1", "k3"):
        server.on(f"DELETE /v1/keys/{key_id}", ok({"id": key_id}))
    code, out, err = soup("keys", "rm", "k1", "k2", "k3")
    assert (code, out) == (1, "k1\nk3\n")
    assert err.startswith("k2: ")


def test_audit(soup: Soup, server: Server) -> None:
    entry = {
        "at": "2026-01-02T03:04:05.6Z",
        "action": "key.create",
        "subject": "k\x1b1",
        "key_id": None,
        "request_id": "r",
        "detail": {"name": "ci"},
    }
    server.on("GET /v1/audit", ok({"data": [entry]}))
    code, out, _ = soup("audit", "--action", "key.", "--since", "2026-01-01", "--by", "k2")
    assert (code, out.splitlines()[1].split()) == (
        0,
        ["2026-01-02", "03:04:05", "key.create", "k?1", "-", "r", "name=ci"],
    )
    params = server.requests[-1].url.params
    assert (params["action"], params["since"], params["key_id"]) == ("key.", "2026-01-01T00:00:00+00:00", "k2")
    assert [json.loads(line) for line in soup("audit", "--lines")[1].splitlines()] == [entry]


def test_usage_that_is_cut_says_so(soup: Soup, server: Server) -> None:
    day = {"day": "2026-01-02", "requests": 1, "tokens_in": 2, "tokens_out": 3}
    server.on("GET /v1/usage", ok({"data": [day] * 101}))
    _, out, err = soup("usage", "--by", "day")
    assert len(out.splitlines()) == 101
    assert "first 100 rows" in err
    assert soup("usage", "--by", "day", "--limit", "5")[2] == ""


def test_results_of_several_base_models_are_not_mixed(soup: Soup, server: Server) -> None:
    adapters = [{"digest": base, "sample": {"digest": "s"}, "base_model": base} for base in ("big", "small")]
    server.on("GET /v1/adapters", ok({"data": adapters}))
    server.on("GET /v1/evaluations", ok({"data": [{"digest": base, "sample": "s"} for base in ("big", "small")]}))
    assert "big, small: name one with --base" in refused(soup("matrix", "--show"), 2)


def test_lines_of_csv_are_whole_on_a_terminal(soup: Soup, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    csv = {"content-type": "text/csv"}
    server.on("GET /v1/usage", httpx2.Response(200, text="day,requests\r\n2030-01-31,1\r\n", headers=csv))
    assert soup("usage", "--csv")[1] == "day,requests\n2030-01-31,1\n"


def test_keys_are_changed_and_rotated(soup: Soup, server: Server) -> None:
    key = {"id": "k1", "name": "ci", "secret": "sk-soup-new"}
    server.on("PATCH /v1/keys/k1", ok(key)).on("POST /v1/keys/k1/rotate", ok(key))
    assert soup("keys", "set", "k1", "--scope", "read", "--namespace", "*", "--expires", "never")[1] == "k1\n"
    assert server.body() == {"scopes": ["read"], "namespaces": None, "expires_at": None}
    soup("keys", "set", "k1", "--name", "n", "--namespace", "a", "--namespace", "b", "--expires", "2030-01-31")
    assert server.body() == {"name": "n", "namespaces": ["a", "b"], "expires_at": "2030-01-31T00:00:00+00:00"}
    code, out, err = soup("keys", "rotate", "k1", "--grace", "12h")
    assert (code, out, server.body()) == (0, "sk-soup-new\n", {"grace_seconds": 43_200})
    assert "not shown again" in err


def test_purge_asks_first_and_tells_what_is_left(soup: Soup, server: Server) -> None:
    answer = {
        "object": "purge",
        "adapter": {"ref": "team/law@1"},
        "blobs": 3,
        "bytes": 900,
        "not_rebuildable": ["team/mix@1"],
        "tuned_on_sample": ["team/tuned@2"],
        "elsewhere": 1,
    }
    server.on("POST /v1/adapters/team/law@1/purge", ok(answer))
    assert (soup("purge", "team/law@1")[0] != 0, server.requests) == (True, []), "nobody said yes"
    code, out, err = soup("purge", "team/law@1", "--yes")
    assert (code, out) == (0, "team/law@1\n")
    for sentence in (
        "team/law@1: files removed: 3, of 900 bytes",
        "team/mix@1 cannot be rebuilt",
        "team/tuned@2 has learnt",
        "1 more soups",
    ):
        assert sentence in err
    assert json.loads(soup("purge", "team/law@1", "--yes", "--json")[1])["data"] == [answer]


def test_settings_of_a_namespace(soup: Soup, server: Server) -> None:
    settings = {
        "object": "namespace",
        "namespace": "team",
        "tuning": "forbid",
        "protected_aliases": ["old", "prod"],
        "unnamed_soup_days": 30,
        "etag": "forbid-1",
    }
    server.on("GET /v1/namespaces/team", ok(settings)).on("PATCH /v1/namespaces/team", ok(settings))
    assert [line.split() for line in soup("namespaces", "show", "team")[1].splitlines()] == [
        ["NAMESPACE", "TUNING", "PROTECTED", "ALIASES", "UNNAMED", "SOUPS"],
        ["team", "forbid", "old,", "prod", "30", "days"],
    ]
    assert json.loads(soup("namespaces", "set", "team", "--tuning", "forbid", "--json")[1]) == settings
    assert server.body() == {"tuning": "forbid"}
    soup("namespaces", "set", "team", "--protect", "new", "--unprotect", "old", "--unnamed-soup-days", "default")
    assert server.body() == {"protected_aliases": ["new", "prod"], "unnamed_soup_days": None}
    assert server.requests[-1].headers["if-match"] == "forbid-1", "of two at the same time none is lost"


def test_jobs(soup: Soup, server: Server) -> None:
    running = job("running", progress={"done": 1, "total": 4, "message": "embedding"}, created_at="2026-01-02T03:04")
    server.on("GET /v1/jobs", ok({"data": [running]})).on("GET /v1/jobs/j1", ok(running))
    server.on("POST /v1/jobs/j1/cancel", ok(job("cancelled")))
    assert "1/4 embedding" in soup("jobs", "ls", "--state", "running")[1]
    assert server.requests[0].url.params["state"] == "running"
    assert "running" in soup("jobs", "show", "j1")[1]
    assert "cancelled" in soup("jobs", "cancel", "j1")[1]


def test_how_long_a_job_took_whose_it_is_and_what_it_gave(soup: Soup, server: Server) -> None:
    begun, ended = "2026-01-02T03:04:05.500000Z", "2026-01-02T03:06:10.500000Z"
    done = job(
        created_at=begun,
        started_at=begun,
        finished_at=ended,
        updated_at=ended,
        created_by="key-1",
        owner="ana",
        progress={"done": 4, "total": 4, "message": ""},
        result={**SOUP, "reason": "It is better."},
    )
    server.on("GET /v1/jobs", ok({"data": [done, job("queued", created_at=begun, updated_at=begun)]}))
    server.on("GET /v1/jobs/j1", ok(done))
    header, first, second = soup("jobs", "ls")[1].splitlines()
    assert header.split() == ["ID", "KIND", "STATE", "PROGRESS", "DURATION", "OWNER", "CREATED"]
    assert first.split() == "j1 cook succeeded 4/4 2 min 5 s ana 2026-01-02 03:04".split()
    assert second.split() == "j1 cook queued - - 2026-01-02 03:04".split()
    output = soup("jobs", "show", "j1")[1]
    assert "duration  2 min 5 s\nowner     ana\n" in output
    assert "reason    It is better.\nmodel     team/soup@1\n" in output
    assert not set(output) & set("{}=")


def test_a_hidden_owner_is_left_out(soup: Soup, server: Server) -> None:
    hidden = job(created_by=None, owner=None)
    server.on("GET /v1/jobs/j1", ok(hidden)).on("GET /v1/jobs", ok({"data": [hidden]}))
    assert "owner" not in soup("jobs", "show", "j1")[1]
    assert "None" not in soup("jobs", "ls")[1]


def test_without_keys_the_owner_is_who_is_stored(soup: Soup, server: Server) -> None:
    seconds = {"started_at": "2026-01-02T03:04:05Z", "finished_at": "2026-01-02T03:04:06.250000Z"}
    server.on("GET /v1/jobs/j1", ok(job(created_by="no-auth", owner=None, **seconds)))
    output = soup("jobs", "show", "j1")[1]
    assert "1.2 s" in output
    assert "no-auth" in output


def test_watching_fails_as_the_job_does(soup: Soup, server: Server) -> None:
    error = {"code": "incompatible", "message": "They differ.", "problems": []}
    server.job_ends()
    assert soup("jobs", "watch", "j1")[0] == 0
    server.job_ends("failed", error=error)
    assert "They differ." in refused(soup("jobs", "watch", "j1"), 3)


# --- output ---------------------------------------------------------------------------------------


def test_columns() -> None:
    text = columns(("name", "n"), [("a", 5), ("long", 12.345), ("x", None)])
    assert text.splitlines() == ["NAME      N", "a         5", "long  12.35", "x         -"]
    assert columns(("name",), []) == "NAME"
    assert columns(("ok", "n"), [(True, 1), (False, 20)]).splitlines() == ["OK    N", "yes   1", "no   20"]


def test_columns_within_a_width() -> None:
    rows = [("a", "one two three four five", 1), ("b", "six", 20)]
    assert columns(("x", "said", "n"), rows, within=20).splitlines() == [
        "X  SAID            N",
        "a  one two three   1",
        "   four five",
        "b  six            20",
    ]
    assert columns(("x", "said", "n"), rows, within=60) == columns(("x", "said", "n"), rows)


def test_ten_columns_of_forty_fit_as_well() -> None:
    text = columns(["n" * 40] * 10, [["v" * 40] * 10], within=100)
    assert max(map(len, text.splitlines())) <= 100
    assert (text.count("N"), text.count("v")) == (400, 400)


@pytest.mark.parametrize(
    ("ended", "more", "duration"),
    [
        ("03:04:59.940000", {}, "59.9 s"),
        ("03:04:59.990000", {}, "1 min 0 s"),
        ("03:05:00.040000", {}, "1 min 0 s"),
        ("04:03:59.700000", {}, "1 h 0 min"),
        ("03:04:09", {"state": "cancelled", "started_at": None}, "-"),
        ("03:04:09", {"state": "cancelled"}, "9.0 s"),
        ("03:04:09", {"state": "running", "finished_at": None, "updated_at": "2026-01-02T03:04:02Z"}, "2.0 s"),
        ("03:04:09", {"state": "queued", "finished_at": None}, "-"),
    ],
)
def test_durations(soup: Soup, server: Server, ended: str, more: dict[str, Any], duration: str) -> None:
    moments = {
        "created_at": "2026-01-02T03:03:00Z",
        "started_at": "2026-01-02T03:04:00Z",
        "finished_at": f"2026-01-02T{ended}Z",
        "updated_at": f"2026-01-02T{ended}Z",
    }
    server.on("GET /v1/jobs", ok({"data": [job(**{"attempts": 1, "owner": "ana", **moments, **more})]}))
    row = soup("jobs", "ls")[1].splitlines()[1]
    assert f" {duration}  " in row
    assert "ana" in row


def test_progress_is_for_terminals(soup: Soup, server: Server, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server.on("POST /v1/soups", lambda _: ok(job("queued"), 202))
    progress = {"done": 1, "total": 4, "message": "scoring"}
    server.on("GET /v1/jobs/j1/events", lambda _: events(("progress", progress), ("done", {})))
    cooked = {**SOUP, "abstained": True, "selection": None, "verification": None}
    server.on("GET /v1/jobs/j1", lambda _: ok(job(result=cooked)))
    assert "scoring" not in soup("cook", "--sample", sample)[2]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    assert soup("cook", "--sample", sample)[:2] == (0, "team/soup@1\n")


# --- what a failure says --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "hinted"),
    [
        ("Several base models are here: give base_model.", True),
        ("base_model 'x' is not one of small.", True),
        ("Two are that one; say which it is as 'base_model', one of a, b.", True),
        ("The pool's base_model is not given; this server has: a, b.", True),
        ("Every snip score of base_model.model.transformer.h.0.attn.c_attn.lora_A.weight is 0.", False),
        ("The fields my_base_model and base_models are not known.", False),
    ],
)
def test_a_flag_is_named_where_the_field_is_and_not_where_a_tensor_is_called_like_it(message, hinted):
    assert ("base_model is --base" in explain(InvalidParameter(message))) is hinted


def test_every_field_that_a_sentence_names_is_told_by_its_flag():
    message = explain(Incompatible("They cannot be mixed: raise max_width, or set mixing.assume_same_init."))
    assert "max_width is --max-width" in message
    assert "assume_same_init is --assume-same-init" in message
    assert "--base" not in message


def test_who_has_no_key_is_told_where_one_is_and_what_makes_more():
    message = explain(Unauthenticated("This needs a key."))
    assert message.startswith("Error: This needs a key.\n")
    assert all(hint in message for hint in ("--key", "SOUP_KEY", "admin.key", "soup keys create"))


@pytest.mark.parametrize(
    ("error", "lines"),
    [
        (
            Forbidden("What asks ends today: give 'expires_at'.", param="expires_at"),
            ["Error: What asks ends today: give 'expires_at'.", "On the command line expires_at is --expires."],
        ),
        (
            Unauthenticated("The Ray cluster at head:6379 refuses this token.", param="ray_token"),
            ["Error: The Ray cluster at head:6379 refuses this token."],
        ),
        (
            InvalidParameter("Two things: one.", problems=["one", "another"]),
            ["Error: Two things: one.", "  - another"],
        ),
    ],
    ids=["a flag and no other scopes", "no key of ours", "every problem once"],
)
def test_a_refusal_is_told_in_these_lines(error, lines):
    assert explain(error).splitlines() == lines


def test_codes():
    several: list[SoupError] = [Incompatible("no"), Busy("later")]
    assert [exit_code(error) for error in several] == [3, 1]
    for errors, code in ((several, 1), (several[:1], 3)):
        with pytest.raises(typer.Exit) as stopped:
            Failures(errors).end()
        assert stopped.value.exit_code == code
    Failures().end()


def test_a_package_that_is_missing_is_told_by_the_extra_that_brings_it():
    missing = ModuleNotFoundError("No module named 'torch'", name="torch.nn")
    assert not_installed("evaluate", missing) == (
        "Error: `soup evaluate` needs torch: pip install 'adaptersoup[train]'."
    )
    assert "'adaptersoup[client]'" in not_installed("ls", missing)


@pytest.mark.parametrize(("verb", "module"), [("serve", "service.nothing"), (None, "torch")])
def test_what_no_extra_brings_is_a_bug_and_stays_one(verb, module):
    with pytest.raises(ModuleNotFoundError):
        not_installed(verb, ModuleNotFoundError("No module", name=module))


# --- evaluations of a training --------------------------------------------------------------------


RECIPE = Hyperparameters(steps=10, evaluations=2)


def steps_said(capsys: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capsys.readouterr()
    assert out == ""
    return [line.partition(":")[0] for line in err.splitlines()]


def test_a_line_for_the_start_and_for_each_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    with training_progress(RECIPE) as report:
        for step in range(1, 11):
            report(step, 10, f"loss {step}")
    assert steps_said(capsys) == ["step 1 of 10", "step 5 of 10", "step 10 of 10"]


def test_an_evaluation_whose_step_was_not_heard_of_is_said_at_the_next(capsys: pytest.CaptureFixture[str]) -> None:
    lines = EvaluationLines(RECIPE)
    for step in (2, 4, 7, 8, 9):
        lines.at(step, 10, "")
    assert steps_said(capsys) == ["step 2 of 10", "step 7 of 10"]


def test_trainings_are_told_apart_and_waiting_is_no_step(capsys: pytest.CaptureFixture[str]) -> None:
    lines = EvaluationLines(RECIPE)
    for name in ("law", "zoo"):
        lines.at(0, 0, "waiting for the training to start", name=name)
        lines.at(5, 10, "loss 1", name=name)
    assert capsys.readouterr().err == "law: step 5 of 10: loss 1\nzoo: step 5 of 10: loss 1\n"


def test_on_a_terminal_there_is_a_bar_instead(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with training_progress(RECIPE) as report:
        report(10, 10, "loss 1")
    assert "step 10 of 10:" not in capsys.readouterr().err
