"""benchmarks.adaptersoup: what is drawn, what is kept between runs, what figures count; over a made-up server."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks import adaptersoup
from benchmarks.report import Result
from benchmarks.soups import ALONE, EFFORTS, german
from benchmarks.soups import setting as settings
from benchmarks.soups.cells import FRESH_RATES, Answers, Cell, asked, fresh
from benchmarks.soups.setting import HOSTILE, Lengths, Setting, Texts
from demo.job import Job
from demo.results import ROOT
from demo.scores import Scores
from docs import figures, soups
from registry.errors import InvalidParameter, InvalidSample
from registry.names import sha256_digest
from registry.spec import BY_GRADIENTS, BaseEntry, CookRequest, SampleSource
from registry.uncertainty import Difference

RESULT = {"date": "2026-01-01", "commit": "0" * 40, "machine": {"processor": "x", "cores": 2}, "figures": {}}
DOMAINS = ("novel_one", "novel_two")
BANK = ("law", "zoo")
NLL = {"base": 3.0, "control": 2.9, "law": 2.8, "zoo": 3.1, "fresh": 3.0}
"""Nats a token of each model on every novel domain; hostile text has 3 under all of them."""
BY_EFFORT = {"instant": 2.7, "quick": 2.6, "thorough": 2.55, "tune": 2.4, None: 2.75}


def lines(path: Path, texts: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    for domain in DOMAINS:
        for split in ("valid", "test"):
            lines(tmp_path / "novel" / domain / f"{split}.jsonl", [f"{domain} {split} {n}" for n in range(130)])
    lines(tmp_path / "general" / "valid.jsonl", [f"general words number {n} of many " * 10 for n in range(300)])
    return tmp_path


class FakeClient:
    """Answers as a server would, by the tables above; a token is a word."""

    def __init__(self) -> None:
        self.cooked: list[CookRequest] = []
        self.models: dict[str, float] = {}

    def sample(self, texts: list[str]) -> SampleSource:
        return SampleSource(texts=tuple(texts))

    def adapter(self, ref: str) -> dict[str, str]:
        return {"ref": ref, "digest": sha256_digest(ref.encode())}

    def cook(self, request: CookRequest) -> dict[str, Any]:
        self.cooked.append(request)
        if request.recipe is None:
            hostile = request.sample is not None and "novel" not in (request.sample.texts or ("",))[0]
            nll = 3.0 if hostile else BY_EFFORT[request.effort]
        else:
            refs = [one.ref.removeprefix("bank/") for one in request.recipe.ingredients]
            own = min(NLL.get(ref, 2.65) for ref in refs)
            hostile, nll = False, own - (0.3 if request.effort == "tune" else 0.0)
            if getattr(request.mixing, "method", "") == "recompress":
                nll += 0.04
        model = f"soup-{len(self.cooked)}"
        self.models[model] = nll
        layers = {"layers.0.ffn": "1"} if request.effort == "quick" else None
        return {
            "model": "base/tiny" if hostile else model, "digest": sha256_digest(model.encode()), "abstained": hostile,
            "verification": {"difference": nll - 3.0, "held_out": request.effort in BY_GRADIENTS},
            "search": {"noise": {"difference": -0.1, "ahead": nll - 2.9} if request.control else None},
            "report": {"width_out": 4}, "selection": {"selected": [{"ref": "bank/zoo"}]},
            "recipe": {"ingredients": [{"digest": sha256_digest(b"x"), "weight": "1", "layers": layers}]},
        }  # fmt: skip

    def perplexity(self, model: str, texts: list[str]) -> dict[str, Any]:
        nll = self.models.get(model, NLL.get(model.rpartition("/")[2], 3.0))
        if "novel" not in texts[0]:
            nll = 3.0
        words = [len(text.split()) for text in texts]
        rows = [{"nll": nll * n + 0.01 * (at % 3), "tokens": n, "bytes": 5 * n} for at, n in enumerate(words)]
        return {"texts": rows}


@pytest.fixture
def setting(data: Path) -> Setting:
    job = Job(data / "home", data, BaseEntry(id="tiny", source="x"), BANK, DOMAINS, "control", data / "a")
    client: Any = FakeClient()
    (data / "home").mkdir()
    scores = Scores(data / "home" / "scores")
    texts = Texts(job, test_passages=20)
    texts.test(DOMAINS[0])  # what was read of them is no part of what the setting is made of
    return Setting.on(texts, client, scores, sha256_digest(b"base"))


def best_alone(_setting: Setting, alone: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """A search that joins nothing to the best adapter; tests of `benchmarks.soups.greedy` have the real one."""
    return {domain: min(own.values(), key=lambda one: float(one.sum())) for domain, own in alone.items()}


def test_samples_and_test_passages_share_nothing_and_smaller_samples_are_of_the_larger(setting: Setting) -> None:
    for domain in (*DOMAINS, *HOSTILE):
        large = setting.sample(domain, size=100, seed=3)
        assert len(large) == len(set(large)) == 100
        assert set(setting.sample(domain, size=5, seed=3)) < set(large)
        assert set(setting.sample(domain, size=100, seed=4)) != set(large)
        assert not set(setting.test(domain)) & set(large)
        assert len(setting.test(domain)) == 20


def run(setting: Setting, tmp_path: Path, over: str = "base") -> dict[str, float]:
    result = adaptersoup.run(
        setting, tmp_path, search=best_alone, over=over, draws=2, sizes=[15, 30], name="adaptersoup"
    )
    return {name: figure.value for name, figure in result.figures.items()}


def test_the_figures(setting: Setting, tmp_path: Path) -> None:
    found = run(setting, tmp_path)
    assert found["instant_ratio"] == pytest.approx(2.718281828**-0.3, rel=1e-6)
    assert found["tune_pass_ratio"] == pytest.approx(2.718281828**-0.6, rel=1e-6)
    assert found["oracle_single_ratio"] == pytest.approx(2.718281828**-0.2, rel=1e-6)
    assert found["single_clustering_ratio"] == pytest.approx(2.718281828**0.1, rel=1e-6)
    assert found["quick_beats_oracle_single"] == 2
    assert found["recompressed_kept"] == pytest.approx(0.31 / 0.35, rel=1e-6)
    assert found["worse_than_base"] == found["tune_worst"] == 0
    assert found["thorough_ratio"] == pytest.approx(2.718281828**-0.45, rel=1e-6)
    assert (found["noise_difference"], found["quick_minus_noise"]) == (pytest.approx(-0.1), pytest.approx(-0.3))
    assert found["tune_vs_fresh_100"] == 2  # 2.4 against 2.7
    assert found["tune_from_control_ratio"] == pytest.approx(2.718281828**-0.4, rel=1e-6)


def test_over_the_control(setting: Setting, tmp_path: Path) -> None:
    assert run(setting, tmp_path, over="control")["instant_over_control"] == pytest.approx(2.718281828**-0.2, rel=1e-6)


def test_answers_that_are_there_are_not_asked_for_again(setting: Setting, tmp_path: Path) -> None:
    first = run(setting, tmp_path)
    client: Any = setting.client
    searched = [one for one in client.cooked if one.effort]
    client.cooked.clear()
    assert run(setting, tmp_path)["tune_pass_ratio"] == first["tune_pass_ratio"]
    assert searched
    assert not [one for one in client.cooked if one.effort]


def test_what_the_server_refuses_is_the_base_and_says_why(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_request: CookRequest) -> None:
        raise InvalidSample("too short", param="sample")

    client = {name: getattr(setting.client, name) for name in ("sample", "perplexity")}
    monkeypatch.setattr(setting, "client", SimpleNamespace(**client, cook=refuse))
    answer = asked(setting, Cell("tune", DOMAINS[0], 0, 5))
    assert (answer.abstained, answer.model, answer.refused) == (True, "base/tiny", "too short")
    answers = Answers(tmp_path / "answers.jsonl")
    answers.get(setting, answer.cell)
    assert Answers(tmp_path / "answers.jsonl").known == answers.known


@pytest.mark.parametrize(("wrong", "least", "most"), [(1.0, 0.84, 0.94), (0.25, 0.2, 0.5)])
def test_coverage_is_the_share_of_intervals_that_hold_the_truth(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: float, least: float, most: float
) -> None:
    """Intervals of independent passages hold it about nine times in ten; ones that are too narrow do less often."""
    draw = np.random.default_rng(1)

    def made_up(_setting: Any, _domain: str, _model: str, digest: str | None, texts: list[str]) -> Any:
        tokens = np.full(len(texts), 50.0)
        return (tokens * 3 if digest is None else 148.0 + draw.normal(0, 4, len(texts))), tokens

    plain = adaptersoup.paired_difference

    def narrow(*arrays: np.ndarray) -> Difference:
        found = plain(*arrays)
        assert found.interval is not None
        low, high = (found.difference + wrong * (end - found.difference) for end in found.interval)
        return Difference(found.difference, found.standard_error, (low, high))

    monkeypatch.setattr(adaptersoup, "scored", made_up)
    monkeypatch.setattr(adaptersoup, "paired_difference", narrow)
    work = adaptersoup.Run(setting, Answers(tmp_path / "a.jsonl"), "base", 1, [], Result("x"), search=best_alone)
    adaptersoup.coverage(work)
    assert least <= work.result.figures["interval_coverage"].value <= most


def test_tables_and_pictures_show_every_way(setting: Setting, tmp_path: Path) -> None:
    found = adaptersoup.run(setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[15], name="adaptersoup")
    result = {"rows": found.rows}
    (said,) = soups.short({**result, "figures": {"oracle_single_ratio": {"value": 0.8187}}}, "adaptersoup")
    assert "over the base model's, geometric mean of 2 domains, 100 passages to cook from: `instant` -25.9 %, " in said
    assert said.endswith(
        "clustering comes to -22.1 %, the best single adapter, chosen on the test text itself, to -18.1 %."
    )
    ways = "\n".join(soups.ways(result, "adaptersoup"))
    assert f"| tune | {100 * (2.718281828**-0.6 - 1):+.1f} ± 0.0 |" in ways
    assert ways.index("| tune |") < ways.index("| quick |") < ways.index("| uniform |")
    assert "noise" not in ways
    sizes = "\n".join(soups.sizes(result, "adaptersoup"))
    assert "| way | 15 passages | 100 passages |" in sizes
    for drawn in (soups.draw_wall(result), soups.draw_sizes(result)):
        assert "thorough" in drawn
        assert "tune fresh 0.01" in drawn


def test_hostile_sets_are_the_same_every_time(setting: Setting, data: Path) -> None:
    again = Texts(setting.job, test_passages=20)
    for name in HOSTILE:
        assert setting.test(name) == again.test(name)
    assert settings.GENERAL in HOSTILE


def test_the_passages_in_another_language_are_long_and_sample_and_test_share_few_sentences(setting: Setting) -> None:
    large, test = setting.sample("another_language", size=100, seed=0), setting.population("another_language")
    assert all(300 <= len(text) < 600 for text in (*large, *test))
    known = {one for text in large for one in re.split(r"(?<=[.?]) ", text)}
    again = [one in known for text in test for one in re.split(r"(?<=[.?]) ", text)]
    assert len(known) > 300
    assert sum(again) < 0.02 * len(again)
    assert german.passages(3, seed=3) == german.passages(3, seed=3) != german.passages(3, seed=4)


def test_german_nouns_have_the_articles_and_endings_of_their_cases() -> None:
    text = " ".join(german.passages(200, seed=1))
    masculine = "|".join(one.split()[1] for one in german.THINGS if one.startswith("der "))
    found = re.findall(rf"\b(\w+) (\w+) (?:{masculine})\b", text)
    assert len(found) > 200
    assert {(article.lower(), stem[-2:]) for article, stem in found} == {("den", "en")}


def test_a_home_keeps_answers_of_one_length(tmp_path: Path) -> None:
    settings.same_lengths(tmp_path / "home", Lengths(longest=300))
    settings.same_lengths(tmp_path / "home", Lengths(longest=300))
    with pytest.raises(InvalidParameter, match="choose another --home"):
        settings.same_lengths(tmp_path / "home", Lengths(longest=500))
    (tmp_path / "answers.jsonl").touch()
    with pytest.raises(InvalidParameter, match="it does not name"):
        settings.same_lengths(tmp_path, Lengths())


def test_the_two_best_that_were_not_chosen_join_the_clustering_soup(
    setting: Setting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: Any = setting.client
    cook = client.cook

    def chosen(request: CookRequest) -> dict[str, Any]:
        """Clustering chooses the best adapter of all."""
        cooked = cook(request)
        if request.selector is not None:
            cooked["recipe"] = {"ingredients": [{"digest": client.adapter("bank/law")["digest"], "weight": "1"}]}
        return cooked

    monkeypatch.setattr(client, "cook", chosen)
    setting.job = replace(setting.job, training=("law", "zoo", "worst", "control"))
    found = adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[5], name="more", only=["best"]
    )
    assert set(found.figures) == {"clustering_2_best_ratio", "answers"}
    (mixed,) = {request.recipe.ingredients for request in client.cooked if request.recipe is not None}
    assert [one.ref for one in mixed] == [client.adapter("bank/law")["digest"], "bank/control", "bank/worst"]
    assert {row["way"] for row in found.rows} == {"clustering"}


def test_hostile_sets_alone(setting: Setting, tmp_path: Path) -> None:
    found = adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[5], name="more", only=["hostile"]
    )
    assert {row["domain"] for row in found.rows} == set(HOSTILE)
    assert found.figures["worse_than_base"].note == "hostile sets; 0 soups for hostile sets"
    one = adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[5], name="more", only=["digits"]
    )
    assert {row["domain"] for row in one.rows} == {"digits"}
    best = adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[5], name="more", only=["best"]
    )
    assert set(best.figures) == {"clustering_2_best_ratio", "answers"}


def test_few_passages_alone(setting: Setting, tmp_path: Path) -> None:
    found = adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[5, 15], name="more", only=["sizes"]
    )
    ratios = {f"{way}_{size}_ratio" for way in EFFORTS for size in (5, 15)}
    beside = {"tune_vs_fresh_5", "tune_vs_fresh_15", "tune_worst", "worse_than_base"}
    assert set(found.figures) == {*ratios, *beside, "answers"}
    assert found.figures["worse_than_base"].note == "domains and sizes"
    ways = (*EFFORTS, *(fresh(rate) for rate in FRESH_RATES))
    assert {(row["way"], row["passages"]) for row in found.rows} == {(way, size) for way in ways for size in (5, 15)}


def test_few_passages_and_hostile_sets_in_one_run(setting: Setting, tmp_path: Path) -> None:
    parts = ["sizes", "hostile"]
    found = adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[5], name="more", only=parts
    )
    assert {row["passages"] for row in found.rows if row["hostile"]} == {100}
    assert {row["passages"] for row in found.rows if not row["hostile"]} == {5}
    assert found.figures["worse_than_base"].note == "domains and sizes, hostile sets; 0 soups for hostile sets"


def test_answers_know_what_they_are_made_of(setting: Setting) -> None:
    base = asked(setting, Cell("uniform", DOMAINS[0], 0, 5))
    assert base.ingredients == [sha256_digest(b"x")]
    assert replace(base, recipe=None).ingredients == [base.digest]
    assert replace(base, abstained=True, digest=None).ingredients == []


def test_a_shorter_run_leaves_out_what_it_is_told_to(setting: Setting, tmp_path: Path) -> None:
    setting.largest = 60
    found = adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[], name="x", greedy=1,
        without=adaptersoup.PARTS,
    )  # fmt: skip
    ways = {row["way"] for row in found.rows}
    assert {row["passages"] for row in found.rows if row["way"] != ALONE} == {60}
    assert not any(row["hostile"] for row in found.rows)
    assert "quick beside noise" not in ways
    left_out = {"interval_coverage", "noise_difference", "tune_from_uniform_ratio", "clustering_2_best_ratio"}
    assert not left_out & found.figures.keys()
    assert found.figures["oracle_greedy_ratio"].value == found.figures["oracle_single_ratio"].value
    with_goal = {name for name, figure in found.figures.items() if figure.goal is not None}
    assert with_goal == {"quick_beats_oracle_single", "tune_worst", "worse_than_base"}


def test_the_makefile_leaves_out_what_can_be_left_out() -> None:
    (named,) = re.findall(r"--without ((?:[a-z]+ ?)+)", (ROOT / "Makefile").read_text())
    assert set(named.split()) <= set(adaptersoup.PARTS)


def test_what_an_earlier_run_asked_about_other_domains_is_not_in_the_rows(setting: Setting, tmp_path: Path) -> None:
    adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[], name="x", without=adaptersoup.PARTS
    )
    setting.job = replace(setting.job, novel=DOMAINS[:1])
    found = adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[], name="x", without=adaptersoup.PARTS
    )
    assert {row["domain"] for row in found.rows} == {DOMAINS[0]}


def test_means_are_geometric_and_arithmetic_and_rows_have_bits(setting: Setting, tmp_path: Path) -> None:
    work = adaptersoup.Run(setting, Answers(tmp_path / "a.jsonl"), "base", 1, [], Result("x"), search=best_alone)
    one, two = (work.base(domain) for domain in DOMAINS)
    doubled = {DOMAINS[0]: [one + math.log(2) * work.tokens(DOMAINS[0])], DOMAINS[1]: [two]}
    assert work.ratio(doubled) == pytest.approx(2**0.5)
    first, second = (math.exp(work.base(name).sum() / work.tokens(name).sum()) for name in DOMAINS)
    assert work.arithmetic(doubled) == pytest.approx((2 * first + second) / (first + second))
    size = sum(len(text) for text in setting.test(DOMAINS[0]))  # every letter is a byte
    assert work.bits_per_byte(one, DOMAINS[0]) == pytest.approx(one.sum() / math.log(2) / size)


def test_the_efforts_of_each_domain_are_drawn_with_their_intervals_and_every_adapter_alone(
    setting: Setting, tmp_path: Path
) -> None:
    found = adaptersoup.run(setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[15], name="adaptersoup")
    (tmp_path / "adaptersoup.json").write_text(json.dumps({**RESULT, "rows": found.rows}))
    result = {"rows": found.rows}
    page = figures.block(tmp_path, "adaptersoup", "efforts")
    assert "| novel_two | -25.9 ± 0.0 | -33.0 ± 0.0 | -36.2 ± 0.0 | -45.1 ± 0.0 |" in page
    assert "(pictures/adaptersoup_efforts.svg)" in page
    assert ">novel_two</text>" in soups.draw_efforts(result)
    page = figures.block(tmp_path, "adaptersoup", "adapters")
    assert "Of 6 pairs of an adapter and a domain 4 beat the base, 4 by two standard errors." in page
    assert "| zoo | +0.100 | +0.100 |" in page
    squares = [one.text for one in ElementTree.fromstring(soups.draw_adapters(result)).iter() if one.text]
    assert {"law", "zoo", "control", *DOMAINS} <= set(squares)
    assert squares.index("law") < squares.index("control") < squares.index("zoo")  # the most helpful first
    assert squares.count("-0.20") == 2


def test_hostile_sets_have_a_table(setting: Setting, tmp_path: Path) -> None:
    found = adaptersoup.run(
        setting, tmp_path, search=best_alone, over="base", draws=1, sizes=[], name="more", only=["hostile"]
    )
    rows = [{**row, "abstained": row["way"] != "tune", "over": -0.1, "over_error": 0.01} for row in found.rows]
    lines = soups.hostile({"rows": rows}, "more")
    assert len(lines) == 2 + len(HOSTILE)
    assert "| another_language | the base | the base | the base | -9.5 ± 0.9 |" in lines
