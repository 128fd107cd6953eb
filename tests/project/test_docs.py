"""The documentation is as true as can be checked: generated pages, links, names, and every number's source."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs import api_page, figures, generate, man_page
from registry.errors import BY_CODE
from service.cli.app import VERBS, command_of
from service.client.vllm_settings import VllmSettings
from service.settings import Settings

pytestmark = pytest.mark.slow

ROOT = generate.ROOT
PAGES = generate.pages()
WRITTEN = [path for path in PAGES if "reference" not in path.parts]
PROMPTS = ("$ ", "> ")


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def expected() -> dict[Path, str]:
    return generate.expected()


# --- generated pages --------------------------------------------------------------------------------


def test_generated_pages_and_figures_are_current(expected: dict[Path, str]) -> None:
    stale = [str(path) for path, text in expected.items() if not (ROOT / path).is_file() or read(path) != text]
    assert stale == [], "run `make openapi` and commit what it writes"


def test_the_schema_of_the_app_is_the_one_kept(expected: dict[Path, str]) -> None:
    kept = json.loads(read(Path("docs/reference/openapi.json")))
    assert api_page.application().openapi() == kept
    assert kept["info"]["title"] == "AdapterSoup"


def test_building_the_schema_makes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert api_page.application().openapi()["paths"]
    assert list(tmp_path.iterdir()) == []


def test_every_call_and_every_value_is_on_the_page() -> None:
    page, document = read(Path("docs/reference/api.md")), json.loads(read(Path("docs/reference/openapi.json")))
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"### `{method.upper()} {path}`" in page
    for name in document["components"]["schemas"]:
        assert f"### {name}\n" in page


def test_the_page_says_who_may_call_what() -> None:
    page = read(Path("docs/reference/api.md"))
    silent = [part.split("`")[1] for part in page.split("\n### ")[1:] if part.startswith("`") and "Needs " not in part]
    assert silent in ([], ["GET /metrics"])  # its scope depends on a setting, and its description says so
    assert page.count("Needs scope `admin`.") >= 4


def test_settings_error_codes_and_verbs_are_documented() -> None:
    settings, errors, cli = (read(Path(f"docs/reference/{name}.md")) for name in ("settings", "errors", "cli"))
    for name in [*Settings.model_fields, *VllmSettings.model_fields]:
        assert f"`SOUP_{name.upper()}`" in settings
    for code in BY_CODE.keys() - {"error"}:
        assert f"\n| `{code}` | " in errors
    for verb in VERBS:
        assert f"\n## soup {verb}\n" in cli
    assert "\n## soup keys create\n" in cli


def test_a_changed_page_is_noticed(tmp_path: Path) -> None:
    for path in [*PAGES, Path("docs/reference/openapi.json")]:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(read(path), encoding="utf-8")
    errors = tmp_path / "docs/reference/errors.md"
    errors.write_text(errors.read_text().replace("`not_found`", "`not_there`"))
    (tmp_path / "docs/reference/cli.md").unlink()
    assert {path.name for path in generate.stale(tmp_path)} >= {"errors.md", "cli.md"}


# --- links ------------------------------------------------------------------------------------------


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def anchors(path: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", read(path), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(path: Path) -> Iterator[str]:
    yield from re.findall(r"\]\(([^)\s]+)\)", without_code(read(path)))


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_relative_links_lead_somewhere(path: Path) -> None:
    for link in links(path):
        if link.startswith(("http://", "https://")):
            continue
        target, _, anchor = link.partition("#")
        found = (ROOT / path).parent / target if target else ROOT / path
        assert found.exists(), f"{path}: {link}"
        if anchor:
            assert anchor in anchors(found.resolve().relative_to(ROOT)), f"{path}: {link}"


def test_every_page_is_reached_from_the_readme() -> None:
    seen, todo = set(), [Path("README.md")]
    while todo:
        page = todo.pop()
        seen.add(page)
        for link in links(page):
            if link.startswith("http"):
                continue
            target = ((ROOT / page).parent / link.partition("#")[0]).resolve()
            inside = target.relative_to(ROOT)
            if target.suffix == ".md" and inside not in seen:
                todo.append(inside)
    assert set(PAGES) - seen == set()


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    found = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [name[:4] for name in found] == [f"{number:04}" for number in range(1, len(found) + 1)]
    for name in found:
        number, title = re.fullmatch(r"# (\d+)\. (.+)", read(Path("docs/decisions") / name).splitlines()[0]).groups()
        assert int(number) == int(name[:4])
        assert f"{number}. [{title}]({name})" in read(Path("docs/decisions/README.md"))


# --- names of things --------------------------------------------------------------------------------


def commands(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(verb, options) of every `soup ...` command a page shows, in code blocks and in running text."""
    text = read(path).replace("\\\n", " ")
    for found in re.finditer(r"(?<![\w/.-])(?:\.venv/bin/)?soup ([a-z]+)((?:[^\n`|;]|\\\n)*)", text):
        if found[1] in VERBS or found[0].startswith(".venv"):
            yield found[1], re.findall(r"(?<=\s)--[a-z][a-z-]*", found[2])


def options_of(verb: str) -> set[str]:
    pending, found = [command_of(verb)], set()
    while pending:
        command: Any = pending.pop()
        found |= {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
        pending += getattr(command, "commands", {}).values()
    return found | {"--help"}


def test_commands_shown_exist_with_their_options() -> None:
    known = {verb: options_of(verb) for verb in VERBS}
    shown = [(path, verb, option) for path in WRITTEN for verb, options in commands(path) for option in options]
    assert len(shown) > 30
    assert [one for one in shown if one[2] not in known[one[1]]] == []


def test_variables_targets_and_calls_named_exist() -> None:
    variables = {f"SOUP_{name.upper()}" for name in [*Settings.model_fields, *VllmSettings.model_fields]}
    makefile = read(Path("Makefile"))
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    document = json.loads(read(Path("docs/reference/openapi.json")))
    calls = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    for path in WRITTEN:
        text = read(path)
        assert set(re.findall(r"\bSOUP_[A-Z_]+[A-Z]\b", text)) <= variables, path
        assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE)) <= targets, path
        for method, called in re.findall(r"`(GET|PUT|POST|PATCH|DELETE|HEAD) (/[^`\s?]*)", text):
            assert any(m == method and re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", p), called) for m, p in calls), path


def test_files_named_in_code_marks_exist() -> None:
    names = r"`((?:registry|service|training|docs|demo|tests|benchmarks)/[\w/.-]+\.(?:py|md|toml|json))`"
    for path in WRITTEN:
        for name in re.findall(names, read(path)):
            if not name.startswith("benchmarks/results/"):
                assert (ROOT / name).exists(), f"{path}: {name}"


def code_files() -> list[Path]:
    folders = ("registry", "training", "service", "migrations", "benchmarks", "demo", "docs", "tests")
    return [path.relative_to(ROOT) for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_pages_and_anchors_named_in_code_exist() -> None:
    named = [
        (path, page, anchor)
        for path in code_files()
        for page, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", read(path))
        if path != Path("tests/project/test_docs.py")
    ]
    assert sum(bool(anchor) for *_, anchor in named) > 12
    for path, page, anchor in named:
        assert (ROOT / page).is_file(), f"{path}: {page}"
        assert not anchor or anchor in anchors(Path(page)), f"{path}: {page}#{anchor}"


def rooms() -> list[tuple[str, str]]:
    """(folder, name) of everything in the README's tree; names of folders end with a slash."""
    tree = re.search(r"<!-- tree -->\n```text\n(.*?)```", read(Path("README.md")), re.DOTALL)
    assert tree is not None
    found, parents = [], [""]
    for line in tree[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        parents = parents[: depth + 1]
        names = re.match(r"\s*((?:[\w.]+(?:\.py|/) ?)+)", line)
        assert names is not None, line
        for name in names[1].split():
            found.append((parents[-1], name))
            if name.endswith("/"):
                folder = parents[-1] + name
        parents.append(folder)
    return found


def test_the_tree_of_the_readme_has_every_room() -> None:
    named = {folder + name for folder, name in rooms()}
    assert [name for name in named if not (ROOT / name).exists()] == []
    packages = {
        f"{path.parent.relative_to(ROOT)}/" for folder in ("registry", "training", "service")
        for path in (ROOT / folder).rglob("__init__.py") if len(path.parent.relative_to(ROOT).parts) < 3
    }  # fmt: skip
    assert packages - named == set()


# --- words ------------------------------------------------------------------------------------------


def test_the_glossary_defines_each_word_once_in_order() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.*?) ?\|$", read(Path("docs/reference/glossary.md")), re.MULTILINE)[1:]
    words = [word for word, _, _ in rows]
    assert len(words) > 60
    assert words == sorted(set(words), key=str.casefold)
    assert [word for word, meaning, _ in rows if not meaning.endswith(".")] == []
    spelt = "".join(read(Path(f"docs/reference/{name}")) for name in ("openapi.json", "cli.md", "settings.md"))
    assert [name for *_, wire in rows for name in re.findall(r"`([^`]+)`", wire) if name not in spelt] == []


# --- habits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_no_path_of_a_machine_and_no_number_of_another_run(path: Path) -> None:
    text = read(path)
    assert not re.search(r"(?<![\w.])/(?:work|home|tmp|root|Users)/", text)
    assert "�" not in text
    assert max(map(len, text.splitlines()), default=0) < 1000


def test_perplexities_stand_in_marked_blocks_only() -> None:
    """A figure beside 'perplexity' outside of a block would be one typed by hand."""
    for path in WRITTEN:
        text = figures.MARK.sub("", without_code(read(path)))
        assert re.findall(r"perplexity (?:of |is |was )?\d+\.\d+", text) == [], path


# --- the filler -------------------------------------------------------------------------------------

ROWS = [
    {"method": "base", "label": "base model", "domain": "a", "perplexity": 20.0, "difference": 0.0,
     "standard_error": 0.0, "abstained": False, "passages": 80},
    {"method": "base", "label": "base model", "domain": "b", "perplexity": 5.0, "difference": 0.0,
     "standard_error": 0.0, "abstained": False, "passages": 60},
    {"method": "soup", "label": "soup, x|y", "domain": "a", "perplexity": 18.0, "difference": -0.1054,
     "standard_error": 0.01, "abstained": False, "passages": 80},
    {"method": "soup", "label": "soup, x|y", "domain": "b", "perplexity": 5.0, "difference": 0.0,
     "standard_error": 0.0, "abstained": True, "passages": 60},
    {"method": "adapter", "adapter": "z", "domain": "a", "perplexity": 1.0, "difference": -3.0, "standard_error": 0.1,
     "passages": 80},
]  # fmt: skip
RESULT = {
    "name": "demo", "command": "python -m demo", "date": "2026-11-21T10:00:00+00:00", "commit": "0123456789abcdef",
    "machine": {"processor": "Some CPU", "cores": 2},
    "figures": {
        "adapters_beating_base": {"value": 3, "goal": None, "unit": "pairs"},
        "adapters_beating_base_by_two_se": {"value": 1, "goal": None, "unit": "pairs"},
        "adapters_times_domains": {"value": 20, "goal": None, "unit": "pairs"},
    },
    "rows": ROWS,
}  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "demo.json").write_text(json.dumps(RESULT))
    plain_figures = {
        "start_s": {"value": 0.4321, "goal": "<= 0.5", "unit": "s"},
        "files": {"value": 12345, "goal": None, "unit": None, "note": "all | some"},
    }
    plain = {**RESULT, "rows": [], "figures": plain_figures}
    (tmp_path / "start.json").write_text(json.dumps({**plain, "partial": True}))
    return tmp_path


def test_methods_without_a_label_are_legible(results: Path) -> None:
    rows = [{**row, "method": {"soup": "paper_soup"}.get(row["method"], row["method"])} for row in ROWS]
    bare = [{name: value for name, value in row.items() if name != "label"} for row in rows]
    (results / "bare.json").write_text(json.dumps({**RESULT, "rows": bare}))
    block = figures.block(results, "bare")
    assert "| base | " in block
    assert "| paper soup | " in block


def test_without_results_a_block_says_so(tmp_path: Path) -> None:
    text = "a\n<!-- figures:demo -->\n| old | 1.23 |\n<!-- /figures -->\nb\n"
    filled = figures.fill(text, tmp_path)
    assert "Not measured yet" in filled
    assert "1.23" not in filled
    assert filled.startswith("a\n<!-- figures:demo -->\n")
    assert filled.endswith("<!-- /figures -->\nb\n")
    assert figures.fill(filled, tmp_path) == filled


def test_a_comparison_has_both_means_and_counts_beyond_two_errors(results: Path) -> None:
    block = figures.block(results, "demo")
    lines = block.splitlines()
    assert "| base model | 10.00 | 12.50 |  | 0 | 0 | 2 |" in lines
    assert "| soup, x\\|y | 9.49 | 11.50 |  | 1 | 0 | 1 |" in lines
    assert not any(line.startswith("| adapter") for line in lines)
    assert "Of 20 pairs of an adapter and a domain, 3 beat the base, 1 by two standard errors." in block
    assert "60 to 80 test passages" in block
    assert "2026-11-21, commit 0123456789ab, Some CPU, 2 cores" in block


def test_gains_are_over_the_control_and_said_in_a_sentence(results: Path) -> None:
    figures_of = {"base_model": (20.0, 5.0), "control": (16.0, 4.0), "the_service_verified": (12.0, 4.5)}
    common = {"difference": 0.0, "standard_error": 0.0, "passages": 40, "abstained": False, "taken": "x, y"}
    rows = [
        {**common, "method": method, "domain": domain, "perplexity": value}
        for method, values in figures_of.items()
        for domain, value in zip("ab", values, strict=True)
    ]
    (results / "demo.json").write_text(json.dumps({**RESULT, "rows": rows}))
    gain = 100 * ((12 * 4.5 / 64) ** 0.5 - 1)
    assert f"| the service verified | 7.35 | 8.25 | {gain:+.1f} % |" in figures.block(results, "demo")
    said = figures.block(results, "demo", "sentence")
    assert (
        f"base model 10.0, control 8.0, the soup 7.3: {-gain:.1f} % below the control, and below both on 1 of 2" in said
    )
    rows[-1]["abstained"] = True
    (results / "demo.json").write_text(json.dumps({**RESULT, "rows": rows}))
    assert "the answer (a soup for 1, the base model for 1) 7.3" in figures.block(results, "demo", "sentence")


def test_domains_have_a_column_each(results: Path) -> None:
    block = figures.block(results, "demo", "domains")
    assert "| method | a | b |" in block
    assert "| base model | 20.00 | 5.00 |" in block
    assert "| soup, x\\|y | 18.00 (-0.1054 ± 0.0100) | 5.00 (the base) |" in block


def test_other_results_are_listed_figure_by_figure(results: Path) -> None:
    block = figures.block(results, "start")
    assert "| start s | 0.4321 | s | <= 0.5 |  |" in block
    assert "| files | 12,345 |  |  | all \\| some |" in block
    assert "partial" in block


def test_blocks_side_by_side_keep_apart(results: Path) -> None:
    text = "".join(f"<!-- figures:{name} -->\n<!-- /figures -->\nnext\n" for name in ("demo", "none", "start"))
    filled = figures.fill(text, results)
    assert filled.count("<!-- /figures -->\nnext\n") == 3
    assert "no `benchmarks/results/none.json`" in filled


def test_make_openapi_runs_the_generator() -> None:
    done = subprocess.run(["make", "-n", "openapi"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "-m docs.generate" in done.stdout


def test_the_readmes_picture_is_of_the_demos_results() -> None:
    rows = json.loads((ROOT / "benchmarks/results/demo.json").read_text())["rows"]
    picture = (ROOT / "benchmarks/results/demo.svg").read_text()
    assert "(benchmarks/results/demo.svg)" in (ROOT / "README.md").read_text()
    assert all(f">{row['domain']}</text>" in picture for row in rows)
    assert ">control</text>" in picture
    assert ">the service, verified</text>" in picture


def test_a_line_of_the_manual_page_is_shown_as_it_is() -> None:
    """A line that begins with a dot is a request to troff, and a bare hyphen is no character that can be copied."""
    assert man_page.escaped(r".json\x --wait") == r"\&.json\ex \-\-wait"
    assert man_page.escaped("'quoted'") == r"\&'quoted'"
