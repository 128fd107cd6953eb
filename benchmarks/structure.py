"""The shape of the code, counted in two commits: modules that a request crosses, arguments of verbs, lines, files.

`python -m benchmarks.structure --before COMMIT --out benchmarks/results/structure.json` counts in a checkout of that
commit and in this one. What is traced are real calls over HTTP and on the command line, in this process, on the demo's
base model: a module is crossed where a function of it is called; a way goes back where a module calls one that was
entered before itself. Without the engine's own thread, and without child processes: a fit is called directly.
"""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

PACKAGES = ("registry", "training", "service")
CONFIGS = ("BottleneckConfig", "LoraConfig", "PrefixConfig", "HeadConfig", "UnionConfig", "FusionConfig", "BankConfig")
VERBS = ("push", "embed", "fit", "select", "cook", "publish", "publish_soup", "by_selection", "by_hand", "check_sample")
MARK = "COUNTS "


# --- counted in the text --------------------------------------------------------------------------


def sources(root: Path, *packages: str) -> list[Path]:
    """The modules of these packages."""
    return [path for package in packages for path in sorted((root / package).rglob("*.py"))]


def lines(root: Path, *packages: str) -> int:
    """Lines of all modules of these packages."""
    return sum(len(path.read_text().splitlines()) for path in sources(root, *packages))


def isinstance_tests(root: Path) -> tuple[int, int]:
    """`isinstance` tests on configurations of adapters, and the files they stand in."""
    found = [
        path
        for path in sources(root, *PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance" and len(node.args) == 2
        for name in ast.walk(node.args[1])
        if isinstance(name, ast.Name) and name.id in CONFIGS
    ]
    return len(found), len(set(found))


def arguments(root: Path) -> dict[str, int]:
    """Parameters of the verbs, and of the largest function of the command line."""
    found = {
        node.name: _parameters(node)
        for path in sources(root, "registry")
        if path.parent == root / "registry" or path.parent.name == "cook"
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name in VERBS
    }
    commands = [
        _parameters(node)
        for folder in ("service/cli", "service/commands")
        for path in sources(root, folder)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    ]
    return {**found, "largest of the command line": max(commands)}


def _parameters(node: ast.FunctionDef) -> int:
    return len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)


def files(root: Path) -> dict[str, int]:
    """Modules in each folder of the packages."""
    found: dict[str, int] = {}
    for path in sources(root, *PACKAGES):
        folder = str(path.parent.relative_to(root))
        found[folder] = found.get(folder, 0) + 1
    return found


# --- counted in a call ----------------------------------------------------------------------------


def _directs(module: str) -> bool:
    """Whether a module directs others: those at the root of a package, the steps of a cook, routes and commands."""
    rooms = ("registry.cook.", "service.routes.", "service.http.routes.", "service.commands.", "service.cli.")
    return (module.partition(".")[0] in PACKAGES and module.count(".") == 1) or module.startswith(rooms)


def _caller(frame: FrameType) -> str:
    """The module that called a function, behind what the standard library puts between."""
    before = frame.f_back
    while before is not None and before.f_globals.get("__name__") in {"contextlib", "functools"}:
        before = before.f_back
    return "" if before is None else str(before.f_globals.get("__name__", ""))


class Tracer:
    """Notes which modules of ours are called below one function; made before the threads that it is to see."""

    def __init__(self) -> None:
        self._below: tuple[str, tuple[str, ...]] | None = None
        self._walk: list[str] = []
        self._seen: set[str] = set()
        self._stacks: dict[int, list[str]] = {}
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if self._below is None or event not in {"call", "return"}:
            return
        module = str(frame.f_globals.get("__name__", ""))
        name, entries = self._below
        stack = self._stacks.setdefault(threading.get_ident(), [])
        if not stack and (frame.f_code.co_name != name or module not in entries):
            return
        packages = ("registry",) if entries[0].startswith("registry.") else PACKAGES
        if module.partition(".")[0] not in packages or frame.f_code.co_name.startswith("<"):
            return
        if event == "return":
            stack.pop()
            return
        caller = _caller(frame)
        if stack and caller != module and _directs(caller):
            self._walk.append(module)
        self._seen.add(module)
        stack.append(module)

    def way(self, call: Callable[[], object], name: str, *entries: str) -> dict[str, int]:
        """The way of a call below the function `name` of one of these modules.

        `modules` run in all; `opened` are those that directing modules call, and `returns` how often they come back to
        one that was left.
        """
        self._walk, self._seen, self._stacks, self._below = [], set(), {}, (name, entries)
        try:
            call()
        finally:
            self._below = None
        walk = [one for one, before in zip(self._walk, ["", *self._walk], strict=False) if one != before]
        if os.environ.get("SHOW"):
            print(name, walk, file=sys.stderr)
        return {"modules": len(self._seen), "opened": len(set(walk)), "returns": len(walk) - len(set(walk))}


def ways(root: Path) -> dict[str, dict[str, int]]:
    """The ways of a push, a fit, a cook, a completion, a perplexity and a training in the checkout this runs in."""
    tracer, way = Tracer(), dict[str, dict[str, int]]()
    with tempfile.TemporaryDirectory() as folder, _server(root, Path(folder)) as (client, runtime):
        for number in range(2):
            body = _manifest(f"team/a{number}", number)
            call = partial(_ok, client, "/v1/adapters", body)
            way["push"] = tracer.way(call, "push", "registry.push")
        _wait(client)
        way["fit"] = tracer.way(lambda: _fit(runtime), "fit", "registry.fit")
        texts = [f"def function_{number}(value): return value" for number in range(30)]
        recipe = {"ingredients": [{"ref": "team/a0"}, {"ref": "team/a1"}]}
        for name, chosen in (("cook", {}), ("cook by hand", {"recipe": recipe})):
            body = {"sample": {"texts": texts}, "options": {"when_none": "top"}, "wait": 60, "verify": True, **chosen}
            way[name] = tracer.way(partial(_ok, client, "/v1/soups", body), "cook", "registry.cook")
        body = {"model": "team/a0", "prompt": "Return the", "max_tokens": 4, "logprobs": 1}
        handlers = ("service.routes.completions", "service.http.routes.completions")
        way["completion"] = tracer.way(partial(_ok, client, "/v1/completions", body), "completions", *handlers)
        body = {"model": "team/a0", "texts": ["Return the value."], "baseline": "demo"}
        handlers = ("service.routes.perplexity", "service.http.routes.perplexity")
        way["perplexity"] = tracer.way(partial(_ok, client, "/v1/perplexity", body), "perplexity", *handlers)
        entries = ("service.cli", "service.cli.app")
        way["training"] = tracer.way(lambda: _train(root, Path(folder)), "run", *entries)
    return way


@contextmanager
def _server(root: Path, folder: Path) -> Iterator[tuple[Any, Any]]:
    """A client of a server over `folder` with the demo's base model."""
    from fastapi.testclient import TestClient

    from service.runtime import Runtime
    from service.settings import Settings

    try:
        from service.http.app import create_app
    except ImportError:  # before the modules moved into their rooms
        from service.app import create_app  # type: ignore[import-not-found, no-redef]
    bases = folder / "bases.toml"
    bases.write_text(f'[bases.demo]\nsource = "{root / "demo" / "base_model"}"\n')
    runtime = Runtime(Settings(data=folder / "data", bases=bases, threads=1))
    runtime.start()
    key = runtime.settings.admin_key_path.read_text().strip()
    with TestClient(create_app(runtime), headers={"authorization": f"Bearer {key}"}) as client:
        yield client, runtime
    runtime.stop()


def _ok(client: Any, path: str, body: dict[str, Any]) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code in {200, 201}, answer.text


def _manifest(name: str, seed: int) -> dict[str, Any]:
    from registry.adapters import create, paper_config
    from registry.adapters.weights import save_tensors
    from registry.base_model import shape_of
    from registry.spec import BaseEntry

    entry = BaseEntry(id="demo", source=str(Path.cwd() / "demo" / "base_model"))
    config = paper_config("pfeiffer", bottleneck=4)
    tensors = create(config, shape_of(entry, None), seed=seed).state_dict()
    data = base64.b64encode(save_tensors(tensors)).decode()
    texts = [f"def {name.replace('/', '_')}_{number}(): return {number}" for number in range(40)]
    return {
        "name": name, "domain": name, "base_model": "demo", "config": config.model_dump(mode="json"),
        "files": {"adapter_model.safetensors": {"base64": data}}, "sample": {"texts": texts},
        "provenance": {"init_hash": "sha256:" + "1" * 64, "init_source": "declared"},
    }  # fmt: skip


def _wait(client: Any) -> None:
    """Until no job is under way."""
    pause = threading.Event()
    while any(job["state"] in {"queued", "running"} for job in client.get("/v1/jobs").json()["data"]):
        pause.wait(0.1)


def _fit(runtime: Any) -> None:
    """A fit in this process, as its child process does it."""
    from registry.fit import fit
    from registry.spec import PoolSpec, UniformSpec

    nothing: Any = lambda *_: None  # noqa: E731
    new = hasattr(runtime, "parts")
    shape = runtime.bases["demo"].shape if new else runtime.shape("demo")
    pool = PoolSpec(base_fingerprint=shape.fingerprint)
    if new:
        fit(runtime.parts.registry, pool, UniformSpec(), encoder_digest=None, progress=nothing)
    else:
        old: Any = fit
        old(pool, UniformSpec(), encoder_digest=None, database=runtime.database, blobs=runtime.blobs, progress=nothing)


def _train(root: Path, folder: Path) -> None:
    """`soup train` in this process: two steps on a few lines."""
    try:
        from service.cli.app import run
    except ImportError:
        from service.cli import run  # type: ignore[no-redef, attr-defined]
    texts = folder / "texts.jsonl"
    valid = folder / "valid.jsonl"
    for path, first in ((texts, 0), (valid, 100)):
        rows = (json.dumps({"text": f"def function_{n}(value): return value + {n}"}) for n in range(first, first + 60))
        path.write_text("\n".join(rows))
    places = {"base-folder": root / "demo" / "base_model", "texts": texts, "valid": valid, "out": folder / "adapter"}
    options = {**places, "steps": 2, "block": 32, "batch": 2, "bottleneck": 4}
    arguments = ["train", *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert run(arguments) == 0


# --- both commits ---------------------------------------------------------------------------------


def counts(root: Path) -> dict[str, Any]:
    """Everything that is counted of the checkout at `root`, which is the current folder."""
    tests, stands = isinstance_tests(root)
    return {
        "ways": ways(root),
        "arguments": arguments(root),
        "isinstance": {"tests": tests, "files": stands},
        "files": files(root),
        "lines": {"product": lines(root, *PACKAGES), "tests": lines(root, "tests")},
    }


def counted(root: Path) -> dict[str, Any]:
    """`counts` in a process of its own, with the modules of `root`."""
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).resolve()), "--count"], cwd=root, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(root)}, check=False,
    )  # fmt: skip
    line = next((line for line in done.stdout.splitlines() if line.startswith(MARK)), None)
    if line is None:
        raise SystemExit(done.stderr[-2000:])
    return dict(json.loads(line.removeprefix(MARK)))


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """A work tree of a commit, gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--detach", str(root), commit], check=True, capture_output=True)
        try:
            yield root
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(root)], check=True, capture_output=True)


def flat(counted: dict[str, Any], above: str = "") -> dict[str, Any]:
    """The counts by one name each: what lies inside a count is named after it."""
    names: dict[str, Any] = {}
    for name, value in counted.items():
        names.update(flat(value, f"{above}{name} ") if isinstance(value, dict) else {f"{above}{name}": value})
    return names


def rows_of(before: dict[str, Any], after: dict[str, Any]) -> list[dict[str, Any]]:
    """A row for each thing that is counted."""
    then, now = flat(before), flat(after)
    return [
        {"counted": name, "before": then.get(name), "after": now.get(name)} for name in dict.fromkeys([*now, *then])
    ]


def main() -> None:
    """Count in the commit before and here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", action="store_true", help="count in the current folder only")
    parser.add_argument("--before", default="HEAD~1", help="the commit to compare with")
    parser.add_argument("--out", type=Path, help="write the results file here")
    arguments = parser.parse_args()
    if arguments.count:
        print(MARK + json.dumps(counts(Path.cwd())))
        return
    from benchmarks.report import Result

    with checkout(arguments.before) as root:
        before = counted(root)
    result = Result("structure", rows=rows_of(before, counted(Path.cwd())))
    result.finish(arguments.out)


if __name__ == "__main__":
    main()
