"""Soups of the same adapters at the same weights, mixed in every way: perplexity on novel domains over the average's.

For each domain the three adapters that `posterior` ranks first for its sample, a third each, over HTTP. Task arithmetic
is tried only where the bank's start is one that this project draws. Ratios are geometric means over the domains, and
`_better` and `_worse` count those where a way differs from the average by more than a paired standard error.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import Result, options
from benchmarks.soups.setting import LARGEST, TEST, Lengths, Setting, opened
from demo.results import Figure
from registry.errors import Incompatible
from registry.spec import CookRequest, PosteriorSpec, SampleSource

INGREDIENTS = 3
WAYS: dict[str, dict[str, Any]] = {
    "average": {"method": "average"},
    "fisher": {"method": "fisher"},
    "regmean": {"method": "regmean"},
    "regmean_0.1": {"method": "regmean", "off_diagonal": "0.1"},
    "task_arithmetic_0.7": {"method": "task_arithmetic", "scale": "0.7"},
    "task_arithmetic_1.3": {"method": "task_arithmetic", "scale": "1.3"},
    "ties": {"method": "ties"},
    "concat": {"method": "concat"},
    "recompress": {"method": "recompress"},
}


def run(setting: Setting, domains: Sequence[str], ways: Sequence[str]) -> Result:
    """These ways on these domains, and the base model."""
    result = Result("mixings")
    for domain in domains:
        _domain(setting, domain, ways, result)
    for way in ("base", *WAYS):
        found = [row for row in result.rows if row["way"] == way and row["difference"] is not None]
        if found:
            _figures(result, way, found)
    return result


def _domain(setting: Setting, domain: str, ways: Sequence[str], result: Result) -> None:
    texts = setting.test(domain)
    refs = _best(setting, domain)
    recipe = {"ingredients": [{"ref": ref} for ref in refs]}
    average = _cooked(setting, recipe, WAYS["average"])["model"]
    for way in ("base", *ways):
        row: dict[str, Any] = {"domain": domain, "way": way, "ingredients": ", ".join(refs)}
        began = time.perf_counter()
        try:
            model = setting.base if way == "base" else _cooked(setting, recipe, WAYS[way])["model"]
        except Incompatible as error:
            result.rows.append(
                {**row, "cook_s": None, "difference": None, "standard_error": None, "why": error.message}
            )
            continue
        taken = time.perf_counter() - began
        against = setting.client.perplexity(model, texts, baseline=average)["baseline"]
        result.rows.append({
            **row, "cook_s": taken, "difference": against["difference"], "standard_error": against["standard_error"],
            "why": "",
        })  # fmt: skip


def _best(setting: Setting, domain: str) -> list[str]:
    """The adapters that the posterior ranks first."""
    sample = SampleSource(texts=tuple(setting.sample(domain, size=LARGEST, seed=0)))
    chosen = setting.client.select(sample, selector=PosteriorSpec())["selection"]
    return [one["ref"] for one in (*chosen["selected"], *chosen["left_out"])][:INGREDIENTS]


def _cooked(setting: Setting, recipe: dict[str, Any], mixing: dict[str, Any]) -> dict[str, Any]:
    asked = CookRequest.model_validate({"recipe": recipe, "mixing": mixing, "verify": False})
    return setting.client.cook(asked)


def _figures(result: Result, way: str, rows: Sequence[dict[str, Any]]) -> None:
    over = math.exp(sum(row["difference"] for row in rows) / len(rows))
    result.figures[f"{way}_over_average"] = Figure(over, "ratio", note=f"geometric mean of {len(rows)} domains")
    if way == "average":
        return
    better = sum(row["difference"] < -row["standard_error"] for row in rows)
    worse = sum(row["difference"] > row["standard_error"] for row in rows)
    result.figures[f"{way}_better"] = Figure(better, "domains", note=f"of {len(rows)}; {worse} worse")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = options(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="corpora: train/ and novel/")
    parser.add_argument("--base", required=True, help="the base model's folder")
    parser.add_argument("--adapters", type=Path, required=True, help="a bank in the neutral form")
    parser.add_argument("--home", type=Path, required=True, help="where the server's data are kept")
    parser.add_argument("--domains", nargs="+", help="novel domains, by default all")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--passages", type=int, default=TEST, help="test passages of a domain")
    given = parser.parse_args(argv)
    lengths = Lengths(passages=given.passages)
    with opened(given.data, given.base, given.adapters, given.home, lengths, domains=given.domains) as setting:
        run(setting, setting.job.novel, given.ways).finish(given.out)


if __name__ == "__main__":
    main()
