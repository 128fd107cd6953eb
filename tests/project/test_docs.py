"""The documentation is as true as can be checked: generated pages, links, names, and every number's source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from adaptersoup.cli.app import VERBS, command_of
from adaptersoup.vllm.settings import VllmSettings
from docs import figures, generate, man_page, summaries
from service.settings import Settings
from tests.project.test_prose import commands_of

pytestmark = pytest.mark.slow

ROOT = generate.ROOT
PAGES = generate.pages()
WRITTEN = [path for path in PAGES if "reference" not in path.parts]
SHIPPED = ("adaptersoup", "plots", "registry", "training", "service", "migrations")


def read(path: Path) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


# --- generated pages --------------------------------------------------------------------------------


def test_generated_pages_and_figures_are_current() -> None:
    expected = generate.expected()
    stale = [str(path) for path, text in expected.items() if not (ROOT / path).is_file() or read(path) != text]
    assert stale == [], "run `make openapi` and commit what it writes"


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
        target_path = (ROOT / path).parent / target if target else ROOT / path
        assert target_path.exists(), f"{path}: {link}"
        if anchor:
            assert anchor in anchors(target_path.resolve().relative_to(ROOT)), f"{path}: {link}"


def test_every_page_is_reached_from_the_readme() -> None:
    visited, todo = set(), [Path("README.md")]
    while todo:
        page = todo.pop()
        visited.add(page)
        for link in links(page):
            if link.startswith("http"):
                continue
            target = ((ROOT / page).parent / link.partition("#")[0]).resolve()
            inside = target.relative_to(ROOT)
            if target.suffix == ".md" and inside not in visited:
                todo.append(inside)
    assert set(PAGES) - visited == set()


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [name[:4] for name in names] == [f"{number:04}" for number in range(1, len(names) + 1)]
    for name in names:
        number, title = re.fullmatch(r"# (\d+)\. (.+)", read(Path("docs/decisions") / name).splitlines()[0]).groups()
        assert int(number) == int(name[:4])
        assert f"{number}. [{title}]({name})" in read(Path("docs/decisions/README.md"))


# --- names of things --------------------------------------------------------------------------------


def commands(path: Path) -> Iterator[tuple[str, list[str]]]:
    """(verb, options) of every `soup ...` command a page shows, in code blocks and in running text."""
    text = read(path).replace("\\\n", " ")
    for match in re.finditer(r"(?<![\w/.-])(?:\.venv/bin/)?soup ([a-z]+)((?:[^\n`|;]|\\\n)*)", text):
        if match[1] in VERBS or match[0].startswith(".venv"):
            yield match[1], re.findall(r"(?<=\s)--[a-z][a-z-]*", match[2])


def options_of(verb: str) -> set[str]:
    parameters = [parameter for command in commands_of(command_of(verb)) for parameter in command.params]
    return {option for parameter in parameters for option in [*parameter.opts, *parameter.secondary_opts]} | {"--help"}


def test_commands_shown_exist_with_their_options() -> None:
    options_by_verb = {verb: options_of(verb) for verb in VERBS}
    usages = [(path, verb, option) for path in WRITTEN for verb, options in commands(path) for option in options]
    assert len(usages) > 30
    assert [usage for usage in usages if usage[2] not in options_by_verb[usage[1]]] == []


def test_variables_targets_and_calls_named_exist() -> None:
    variables = {f"SOUP_{name.upper()}" for name in [*Settings.model_fields, *VllmSettings.model_fields]}
    targets = set(re.findall(r"^([a-z-]+):", read(Path("Makefile")), re.MULTILINE))
    document = json.loads(read(Path("docs/reference/openapi.json")))
    calls = {(method.upper(), path) for path, operations in document["paths"].items() for method in operations}
    for path in WRITTEN:
        text = read(path)
        assert set(re.findall(r"\bSOUP_[A-Z_]+[A-Z]\b", text)) <= variables, path
        assert set(re.findall(r"(?:^    |`)make ([a-z-]+)", text, re.MULTILINE)) <= targets, path
        for method, called in re.findall(r"`(GET|PUT|POST|PATCH|DELETE|HEAD) (/[^`\s?]*)", text):
            assert any(m == method and re.fullmatch(re.sub(r"\{[^}]*\}", "[^/]+", p), called) for m, p in calls), path


def test_files_named_in_code_marks_exist() -> None:
    folders = "|".join((*SHIPPED, "docs", "demo", "tests", "benchmarks"))
    names = rf"`((?:{folders})/[\w/.-]+\.(?:py|md|toml|json))`"
    for path in WRITTEN:
        for name in re.findall(names, read(path)):
            if not name.startswith("benchmarks/results/"):
                assert (ROOT / name).exists(), f"{path}: {name}"


def test_pages_and_anchors_named_in_code_exist() -> None:
    folders = (*SHIPPED, "benchmarks", "demo", "docs", "tests")
    named = [
        (path, page, anchor)
        for path in (file.relative_to(ROOT) for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
        for page, anchor in re.findall(r"\b(docs/[\w/-]+\.md)(?:#([\w-]+))?", read(path))
        if path != Path("tests/project/test_docs.py")
    ]
    assert sum(bool(anchor) for *_, anchor in named) > 12
    for path, page, anchor in named:
        assert (ROOT / page).is_file(), f"{path}: {page}"
        assert not anchor or anchor in anchors(Path(page)), f"{path}: {page}#{anchor}"


def documented_tree() -> set[str]:
    """Paths in the tree of the architecture page; those of folders end with a slash."""
    tree = re.search(r"<!-- tree -->\n```text\n(.*?)```", read(Path("docs/explanation/architecture.md")), re.DOTALL)
    paths, parents = set(), [""]
    for line in tree[1].splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        parents = parents[: depth + 1]
        names = re.match(r"\s*((?:[\w.]+(?:\.py|/) ?)+)", line)
        for name in names[1].split():
            paths.add(parents[-1] + name)
            if name.endswith("/"):
                folder = parents[-1] + name
        parents.append(folder)
    return paths


def test_the_documented_tree_has_every_folder() -> None:
    named = documented_tree()
    assert [path for path in named if not (ROOT / path).exists()] == []
    folders = {path.parent.relative_to(ROOT) for package in SHIPPED for path in (ROOT / package).rglob("__init__.py")}
    assert {f"{folder}/" for folder in folders if len(folder.parts) < 3} - named == set()


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


@pytest.mark.parametrize("path", [path for path in PAGES if "how-to" in path.parts], ids=str)
def test_a_how_to_page_is_short_and_begins_with_its_command(path: Path) -> None:
    assert len(read(path).split()) <= 600
    assert re.search(r"^(    |```)", read(path).partition("\n## ")[0], re.MULTILINE)


def test_perplexities_stand_in_marked_blocks_only() -> None:
    """A figure beside 'perplexity' outside of a block would be one typed by hand."""
    for path in WRITTEN:
        text = figures.MARK.sub("", without_code(read(path)))
        assert re.findall(r"perplexity (?:of |is |was )?\d+\.\d+", text) == [], path


def test_every_block_of_figures_is_filled() -> None:
    """One whose mark is not recognised would stay empty."""
    for path in WRITTEN:
        assert "<!-- figures:" not in figures.MARK.sub("", read(path)), path


# --- the filler -------------------------------------------------------------------------------------


def test_blocks_are_filled_side_by_side_and_say_where_there_is_no_result() -> None:
    results = ROOT / "benchmarks" / "results"
    names = ("demo", "none", "cold_start")
    text = "".join(f"<!-- figures:{name} -->\nold\n<!-- /figures -->\nnext\n" for name in names)
    filled = figures.fill(text, results)
    assert filled.count("<!-- /figures -->\nnext\n") == 3
    assert "\nold\n" not in filled
    assert "Not measured yet: there is no `benchmarks/results/none.json`" in filled
    assert figures.fill(filled, results) == filled


@pytest.mark.parametrize("name", summaries.SUMMARIES)
def test_every_figure_of_a_summary_is_in_its_results(name: str) -> None:
    summary = summaries.SUMMARIES[name]
    files = [json.loads((ROOT / "benchmarks" / "results" / f"{file}.json").read_text()) for _, file in summary.columns]
    for figures_of_row in summary.rows.values():
        names = [figures_of_row] * len(files) if isinstance(figures_of_row, str) else figures_of_row
        assert any(figure in result["figures"] for figure, result in zip(names, files, strict=True)), figures_of_row


def test_the_page_of_results_counts_the_missed_goals() -> None:
    numbers = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
    lower_is_better = ("_over_control", "_vs_forward", "worse_than_base")
    text = read(Path("docs/explanation/results.md"))
    sections = re.findall(r"figures:(\w+):ways.*?(\w+) of (\w+) goals are missed", text, re.DOTALL)
    assert len(sections) == text.count(":ways -->")
    for name, missed, goals in sections:
        measured = json.loads(read(Path(f"benchmarks/results/{name}.json")))["figures"]
        misses = [
            row["value"] > row["goal"] if figure.endswith(lower_is_better) else row["value"] < row["goal"]
            for figure, row in measured.items()
            if row["goal"] is not None
        ]
        assert (numbers.index(missed.lower()), numbers.index(goals)) == (sum(misses), len(misses)), name


def test_a_summary_has_goals_newer_commits_and_marks_of_another_machine(tmp_path: Path) -> None:
    newer = {"value": 5, "goal": 2, "note": "on a machine half as fast", "commit": "b" * 40}
    run = {
        "date": "2026-01-02",
        "commit": "a" * 40,
        "figures": {"fit_10k_s": {"value": 1234.5}, "refit_backlog": newer},
    }
    assert "Not measured yet" in summaries.lines(tmp_path, "registry")[0]
    (tmp_path / "registry.json").write_text(json.dumps(run))
    lines = summaries.lines(tmp_path, "registry")
    assert "| fit `posterior`, s | 1,234 |  |" in lines
    assert "| fits left after 1,000 pushes | 5 † | 2 |" in lines
    source = f"Source: `benchmarks/results/registry.json`, 2026-01-02, commit {'a' * 12}."
    assert lines[-1] == f"{source} Newer figures: commit {'b' * 12}."


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
