"""The shape of the code: layers, what may import what, and the rules of size and naming that no linter of ours has.

The layers are import-linter's contracts in pyproject.toml.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.repository import REPOSITORY

SHIPPED = ("adaptersoup", "plots", "registry", "training", "service", "migrations")
OURS = (*SHIPPED, "demo", "benchmarks", "docs")
LINES_PER_MODULE = 400
LONG_FUNCTION = 30
LONG_FUNCTIONS_SHARE = 0.1

Violations = list[str]


def modules(*packages: str, root: Path = REPOSITORY) -> Iterator[tuple[str, ast.Module]]:
    """(path from the root, syntax tree) of every module of these packages that are there."""
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            yield path.relative_to(root).as_posix(), parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a module, once for all rules."""
    return ast.parse(path.read_text())


@cache
def nodes(tree: ast.Module) -> list[ast.AST]:
    """Every node of a module, walked once for all rules."""
    return list(ast.walk(tree))


def imports(tree: ast.Module) -> Iterator[str]:
    """Absolute names of all imports of a module, those inside of functions included."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def importers(
    packages: tuple[str, ...], forbidden: tuple[str, ...], root: Path, allowed: tuple[str, ...] = ()
) -> Violations:
    """`path imports name` wherever one of `packages` imports something forbidden, but for allowed path prefixes."""
    return [
        f"{path} imports {name}"
        for path, tree in modules(*packages, root=root)
        for name in imports(tree)
        if any(name == bad or name.startswith(bad + ".") for bad in forbidden)
        if not path.startswith(allowed or "/")
    ]


# --- the rules: each takes the root of a tree and gives what is wrong with it ----------------------


def vague_names(root: Path) -> Violations:
    vague = {"utils", "util", "helpers", "helper", "common", "misc", "shared"}
    return [path for path, _ in modules(*OURS, root=root) if vague & set(Path(path).with_suffix("").parts)]


def long_modules(root: Path) -> Violations:
    return [
        f"{path.relative_to(root)}: {lines} lines"
        for package in OURS
        for path in sorted((root / package).rglob("*.py"))
        if (lines := len(path.read_text().splitlines())) > LINES_PER_MODULE
    ]


def unfinished(root: Path) -> Violations:
    marks = ("TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error")
    return [
        f"{path.relative_to(root)}:{number}"
        for package in OURS
        for path in sorted((root / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if any(mark in line for mark in marks)
    ]


def coroutines_in_registry(root: Path) -> Violations:
    """The library is synchronous, and so is training."""
    waits = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    return [
        f"{path}:{node.lineno}"
        for path, tree in modules("registry", "training", root=root)
        for node in nodes(tree)
        if isinstance(node, waits)
    ] + importers(("registry", "training"), ("asyncio", "anyio"), root)


def http_below_service(root: Path) -> Violations:
    """The hub's client is a library, but what it raises are its HTTP client's errors: loading has to name them."""
    web = ("fastapi", "starlette", "uvicorn", "httpx2", "requests", "urllib", "http", "typer", "prometheus_client")
    violations = importers(("registry", "training", "migrations"), web, root)
    return [violation for violation in violations if violation != "registry/base_model/loading.py imports httpx2"]


def sql_outside_the_catalogue(root: Path) -> Violations:
    """SQLite's own copy of a database file is not SQL: `service.operations.storage` takes one before it migrates."""
    statements = importers(
        SHIPPED,
        ("sqlalchemy", "alembic"),
        root,
        ("registry/catalogue/", "migrations/", "service/operations/storage.py"),
    )
    drivers = importers(
        SHIPPED, ("sqlite3", "psycopg"), root, ("registry/catalogue/sqlite.py", "service/operations/storage.py")
    )
    return [violation for violation in statements + drivers if " imports sqlalchemy.exc." not in violation]


def environment_outside_the_settings(root: Path) -> Violations:
    names = {"environ", "environb", "getenv", "putenv"}
    readers = (
        "service/settings/__init__.py",
        "registry/tasks/ray_connection.py",  # Ray's own variables
        "service/observability/tracing.py",  # OpenTelemetry's
    )
    return [
        f"{path}:{node.lineno}"
        for path, tree in modules(*SHIPPED, root=root)
        if path not in readers
        for node in nodes(tree)
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and node.module == "os" and names & {alias.name for alias in node.names})
    ]


def unsafe_loading(root: Path) -> Violations:
    """Weights, selectors and job arguments are tensors and JSON; nothing here can run what a file says."""
    bad = importers(OURS, ("pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"), root)
    for path, tree in modules(*OURS, root=root):
        for node in nodes(tree):
            if path == "docs/notebooks/cells.py":  # runs this repository's own notebooks, and is not shipped
                continue
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {"torch.load", "eval", "exec", "numpy.load"}:
                tensors_only = any(
                    word.arg == "weights_only" and ast.unparse(word.value) == "True" for word in node.keywords
                )
                if not (tensors_only and path == "registry/formats/adapterhub/torch_file.py"):  # what people convert
                    bad.append(f"{path}:{node.lineno} {ast.unparse(node.func)}")
    return bad


def imports_of_what_is_not_shipped(root: Path) -> Violations:
    return importers(SHIPPED, ("tests", "demo", "benchmarks", "docs"), root)


def benchmarks_in_the_demo(root: Path) -> Violations:
    """Benchmarks take from the demo what both need (jobs, cells, the form of results), never the other way round."""
    return importers(("demo",), ("benchmarks", "tests", "docs"), root)


def long_functions(root: Path) -> Violations:
    """Nine in ten functions stay below 30 lines; migrations list tables and do not count."""
    lengths = [
        (node.end_lineno or 0) - node.lineno + 1
        for _, tree in modules(*(package for package in OURS if package != "migrations"), root=root)
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    long = sum(length >= LONG_FUNCTION for length in lengths)
    return [f"{long} of {len(lengths)} functions are long"] if long > LONG_FUNCTIONS_SHARE * len(lengths) else []


def modules_that_do_not_say_what_they_are_for(root: Path) -> Violations:
    return [path for path, tree in modules(*OURS, root=root) if tree.body and not ast.get_docstring(tree)]


def loggers_named_by_their_module(root: Path) -> Violations:
    """The name is in every line of the log: it must not change when a module moves."""
    return [
        f"{path}:{node.lineno}"
        for path, tree in modules(*SHIPPED, root=root)
        for node in nodes(tree)
        if isinstance(node, ast.Call) and ast.unparse(node) in {"logging.getLogger(__name__)", "getLogger(__name__)"}
    ]


RULES = (
    vague_names,
    long_modules,
    unfinished,
    coroutines_in_registry,
    http_below_service,
    sql_outside_the_catalogue,
    environment_outside_the_settings,
    unsafe_loading,
    imports_of_what_is_not_shipped,
    benchmarks_in_the_demo,
    long_functions,
    modules_that_do_not_say_what_they_are_for,
    loggers_named_by_their_module,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Callable[[Path], Violations]) -> None:
    assert rule(REPOSITORY) == []


# --- layers ---------------------------------------------------------------------------------------

LINT = textwrap.dedent(
    """
    from importlinter import configuration
    from importlinter.application import use_cases

    configuration.configure()
    options = use_cases.read_user_options("pyproject.toml")
    use_cases._register_contract_types(options)
    report = use_cases.create_report(options, cache_dir=None)
    for contract, check in report.get_contracts_and_checks():
        print("KEPT" if check.kept else "BROKEN", contract.name)
    """
)


@pytest.mark.slow
def test_layers() -> None:
    run = subprocess.run([sys.executable, "-c", LINT], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    verdicts = [line for line in run.stdout.splitlines() if line.startswith(("KEPT ", "BROKEN "))]
    assert verdicts == [f"KEPT {name}" for name in LAYERS], "run `make check`: lint-imports shows the imports"


LAYERS = [
    "adaptersoup > service > training, plots > registry",
    "inside registry",
    "inside a cook",
    "inside training",
    "inside service",
    "inside access",
    "no circles",
    "inside adaptersoup",
    "inside the command line",
    "no verb imports another",
    "inside the client",
    "inside vLLM's plugin",
    "inside http",
    "inside http's security",
    "inside the pages",
    "routes do not import routes",
    "torch stays in the ML modules",
    "torch is imported by these only",
    "SQL stays in the catalogue",
]
