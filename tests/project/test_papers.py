"""The claims of the papers: the plan, the cells on a tiny encoder, and the verdicts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.papers import __main__ as program
from benchmarks.papers import cells, verdicts
from benchmarks.papers.variants import PLAN, RATES, VARIANTS, Variant, first_of
from benchmarks.papers.verdicts import CLAIMS, Cells, Claim, Estimate, combined, judge
from benchmarks.peers.process import PeerMissing
from docs import papers
from tests.project.test_benchmarks import check_form

pytestmark = pytest.mark.slow

TASK = "sst2"
CLAIM = Claim(
    paper="houlsby",
    name="x",
    source="",
    figure="",
    says="",
    kind="better",
    margin=2.0,
    seeds=3,
    on=(TASK,),
    contrast={"houlsby_8": 1, "full": -1},
)


# --- the plan ---------------------------------------------------------------------------------------


def test_claims_are_contrasts_of_known_variants_and_measures():
    assert len(CLAIMS) == len({claim.name for claim in CLAIMS}) >= 36
    measures = {"": None, "route": "routes", "ensemble": "routes"} | dict.fromkeys(
        ("without_all", "without_one", "without_lower", "without_upper"), "spans"
    )
    for claim in CLAIMS:
        assert abs(sum(claim.contrast.values())) < 1e-9, claim.name
        for name, _, measure in (term.partition(":") for term in claim.contrast if claim.trained):
            assert measure == "intact" or measures[measure] in (None, VARIANTS[name].measures), claim.name
    assert {variant.family for variant in VARIANTS.values()} == set(RATES)


def test_stored_cells_are_of_the_present_plan():
    stored = json.loads((program.RESULTS / "papers.json").read_text(encoding="utf-8"))["rows"]
    assert program.stored(program.RESULTS / "papers.json") == stored


def row(variant: str, rate: float, seed: int, score: float, valid_loss: float | None = 0.5) -> dict:
    return {
        "task": TASK,
        "variant": variant,
        "learning_rate": rate,
        "seed": seed,
        "valid_loss": valid_loss,
        "parameters": 1,
        "scores": {"score": score},
        "seconds": 1.0,
        "commit": "c",
        "setting": cells.setting_of(TASK, VARIANTS[variant]),
    }


def trials(family: str, best: int) -> list[dict]:
    """The cells of a family's rates, of which the one at place `best` has the lowest loss, and one diverged."""
    losses = [0.6, None, 0.7]
    losses[best] = 0.1
    return [row(first_of(family), rate, 0, 1.0, loss) for rate, loss in zip(RATES[family], losses, strict=True)]


def test_rates_are_tried_first_and_the_lowest_validation_loss_wins():
    assert Cells([]).missing(CLAIM) == [
        (TASK, "houlsby_64", RATES["houlsby"][0], 0),
        (TASK, "full", RATES["full"][0], 0),
    ]
    stored = Cells([*trials("houlsby", 2), *trials("full", 1)])
    assert stored.rate(TASK, "houlsby") == RATES["houlsby"][2]
    missing = stored.missing(CLAIM)
    assert missing[:2] == [(TASK, "houlsby_8", RATES["houlsby"][2], 0), (TASK, "houlsby_8", RATES["houlsby"][2], 1)]
    assert (TASK, "full", RATES["full"][1], 0) not in missing, "the trial at the chosen rate is the first seed"


# --- verdicts ---------------------------------------------------------------------------------------


def judged(differences: list[float], monkeypatch, *, claims: int = 1, **fields: object) -> verdicts.Judged:
    """The verdict on a claim among some that are not run yet, from its differences by seed."""
    unfinished = [CLAIM.model_copy(update={"name": f"y{number}", "seeds": 9}) for number in range(claims - 1)]
    monkeypatch.setattr(verdicts, "CLAIMS", [CLAIM.model_copy(update=fields), *unfinished])
    rate = RATES["houlsby"][0]
    rows = [*trials("houlsby", 0), *trials("full", 0)]
    for seed, difference in enumerate(differences):
        rows += [row("houlsby_8", rate, seed, 80 + difference + seed), row("full", RATES["full"][0], seed, 80.0 + seed)]
    return judge(rows, Path("nowhere"))[0]


@pytest.mark.parametrize(
    ("differences", "fields", "verdict", "note"),
    [
        ([3.0, 3.1, 2.9], {}, "agrees", ""),
        ([0.5, 0.5, 0.51], {}, "agrees", ""),
        ([-1.0, -1.1, -0.9], {}, "disagrees", ""),
        ([0.1, -0.1, 0.0], {}, "disagrees", ""),
        ([0.1, -0.1, 0.0], {"kind": "as_good"}, "agrees", ""),
        ([-4.0, -4.1, -3.9], {"kind": "as_good"}, "disagrees", ""),
        ([-3.0, 5.0, 1.0], {}, "undecided", ""),
        ([3.0, 3.1], {}, "not run yet", ""),
        # 1.2 below the margin, with an error of 0.424
        ([1.4, -0.4, 1.4, 0.8], {"seeds": 4}, "undecided", "needs about 10 seeds"),
        ([-1.9, -2.2, -1.9], {"kind": "as_good", "seeds": 3}, "undecided", "on the margin"),
        ([4.0, 4.1, 3.9], {"repeats": "the same as another"}, "undecided", "the same as another"),
        # more claims of a paper ask for more
        ([1.0, 1.6, 1.3], {}, "agrees", ""),
        ([1.0, 1.6, 1.3], {"claims": 12}, "undecided", ""),
    ],
)
def test_a_verdict_is_by_students_t_and_the_margin(differences, fields, verdict, note, monkeypatch):
    judgement = judged(differences, monkeypatch, **{"kind": "better", **fields})
    assert (judgement.verdict, note and judgement.note) == (verdict, note)


def test_an_average_over_a_set_that_is_not_learnt_decides_nothing(monkeypatch):
    monkeypatch.setitem(PLAN["setting"], "not_learnt", [TASK])
    judgement = judged([3.0, 3.1, 2.9], monkeypatch)
    assert (judgement.verdict, judgement.note) == ("undecided", "1 of the 1 sets are not learnt")


def test_an_estimate_is_the_mean_over_tasks_with_the_errors_of_both():
    estimate = combined([verdicts.np.array([1.0, 2.0, 3.0])])
    assert (estimate.value, estimate.freedom) == (2.0, pytest.approx(2.0))
    assert estimate.error == pytest.approx(1 / 3**0.5)
    assert estimate.interval == pytest.approx((2 - 4.3027 / 3**0.5, 2 + 4.3027 / 3**0.5), abs=1e-3)
    two = combined([verdicts.np.array([1.0, 2.0, 3.0]), verdicts.np.array([5.0, 6.0, 7.0])])
    assert (two.value, two.freedom) == (4.0, pytest.approx(4.0))
    assert two.error == pytest.approx(1 / 6**0.5)
    assert Estimate(1.0, 0.5, 4.0).p_below(1.0) == 1.0


@pytest.mark.parametrize(
    ("reference", "value", "error", "note"),
    [
        ("control", 10.0, 1 / 2**0.5, ""),
        ("base", 20.0, 2 / 2**0.5, ""),
        ("best single", 4.0, 1.0, ""),
        ("clustering_3", 0.0, 1.0, "the soups are the same"),
        ("similarity", 5.0, 1.0, "similarity chooses no adapter in 2 of 2 domains"),
    ],
)
def test_soups_are_judged_by_their_results_file(reference, value, error, note, tmp_path, monkeypatch):
    fields = {"on": ("adaptersoup_x",), "contrast": {"clustering": 1, reference: -1}}
    monkeypatch.setattr(verdicts, "CLAIMS", [CLAIM.model_copy(update=fields)])
    assert judge([], tmp_path)[0].verdict == "not run yet"
    (tmp_path / "adaptersoup_x.json").write_text(json.dumps({"rows": [*soup_rows("a"), *soup_rows("b")]}))
    [judgement] = judge([], tmp_path)
    assert (judgement.estimate.value, judgement.estimate.error) == (pytest.approx(value), pytest.approx(error))
    assert (judgement.verdict, judgement.note) == ("undecided" if note else "agrees", note)


def soup_rows(domain: str) -> list[dict]:
    """Rows of the soups of a domain, of which the control is 0.1 better than the base."""
    ways = {"control": 0.0, "base": 0.1, "clustering": -0.1, "clustering_3": -0.1, "similarity": -0.05}
    about = {"domain": domain, "hostile": False}
    rows = [{"way": way, "passages": 30, "over": over, "abstained": way == "similarity"} for way, over in ways.items()]
    rows.append({"way": "clustering", "passages": 5, "over": 0.3})
    for adapter, over in (("law", -0.06), ("novels", -0.02), ("control_general", -9.0)):
        rows.append({"way": "one adapter", "passages": 0, "over": over, "adapter": adapter})
    errors = {"control": (0.0, 0.01), "base": (0.01, 0.0)}
    for row in rows:
        over_error, base_error = errors.get(row["way"], (0.01, 0.02))
        row |= about | {"difference": row["over"] - 0.1, "over_error": over_error, "standard_error": base_error}
    return rows


# --- cells ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> Path:
    """Words decide the label of every text, which says its split and number; questions are answered with numbers."""
    folder = tmp_path_factory.mktemp("corpora")
    for split, count in (("train", 90), ("dev", 20)):
        texts = [
            {"text_a": f"{split} {i} is {'good good' if i % 2 else 'bad bad'}", "label": i % 2} for i in range(count)
        ]
        for name, values in (("glue/sst2", texts), ("squad", [squad_question(i) for i in range(count)])):
            (folder / name).mkdir(parents=True, exist_ok=True)
            lines = "".join(json.dumps(value) + "\n" for value in values)
            (folder / name / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    return folder


def squad_question(number: int) -> dict:
    """A question of SQuAD whose answer is in the second of three sentences, and whose second answer is in the third."""
    context = f"It rains! The film has {number} parts. It ends in {number}. "
    starts = [context.index(str(number)), context.rindex(str(number))]
    answers = [{"text": str(number), "answer_start": start} for start in starts]
    return {"question": "How many parts?", "context": context, "answers": answers}


@pytest.fixture
def place(corpora, encoder, gpt2, monkeypatch) -> cells.Place:
    small = {
        "longest": 32,
        "valid": 12,
        "test": 40,
        "part": 20,
        "reserved": 40,
        "schedules": {key: {"rows": 40, "epochs": 1} for key in PLAN["setting"]["schedules"]},
    }
    for name, value in small.items():
        monkeypatch.setitem(cells.SETTING, name, value)
    return cells.Place({cells.BASE: encoder, "smollm2": gpt2}.__getitem__, corpora)


def test_training_choosing_and_scoring_use_disjoint_texts(place):
    split = place.split(TASK, 40)
    splits = [{item.text for item in items} for items in (split.data.train, split.data.valid, split.test)]
    assert [len(texts) for texts in splits] == [40, 12, 40]
    assert len(set.union(*splits)) == 92
    assert sum(text.startswith("dev") for text in splits[2]) == 20


@pytest.mark.parametrize(
    ("name", "measures"),
    [
        ("houlsby_64", {"intact", "without_all", "without_lower", "without_upper", "without_one"}),
        ("adamix", {"intact", "route", "ensemble"}),
        *((name, set()) for name in ("start_1", "full", "top_1", "norms", "large_2", "lora_snip_40", "grasp_80")),
    ],
)
def test_a_cell_is_the_same_again(name, measures, place):
    cell = cells.run_cell(place, TASK, VARIANTS[name], 1e-3, 0)
    assert set(cell["scores"]) == {"score", *measures}
    assert all(0 <= score <= 100 for score in cell["scores"].values())
    assert {**cell, "seconds": 0} == {**cells.run_cell(place, TASK, VARIANTS[name], 1e-3, 0), "seconds": 0}


@pytest.mark.long
@pytest.mark.parametrize(("ours", "theirs"), [("lora_zero", "peft_lora"), ("pfeiffer", "adapters_pfeiffer")])
def test_a_library_with_our_start_and_order_trains_to_our_loss(ours, theirs, place, monkeypatch):
    monkeypatch.setitem(cells.SETTING, "schedules", {"short": {"rows": 40, "epochs": 8}})
    cell = cells.run_cell(place, TASK, VARIANTS[ours], 3e-2, 0)
    try:
        reference = cells.run_cell(place, TASK, VARIANTS[theirs], 3e-2, 0)
    except PeerMissing as missing:
        pytest.skip(str(missing))
    assert reference["parameters"] == cell["parameters"]
    assert reference["valid_loss"] < 0.6, "far below the start's, so that equal starts alone do not pass"
    # AdamW's first steps are as large as the rate for gradients of any size, which enlarges differences of rounding
    assert reference["valid_loss"] == pytest.approx(cell["valid_loss"], rel=2e-2)


def test_a_question_keeps_the_sentence_of_its_first_answer():
    assert cells.question_in_a_sentence(squad_question(31)) == cells.Question(
        "How many parts?", "The film has 31 parts. ", (("31", 13),)
    )


@pytest.mark.parametrize(
    ("task", "name"), [("squad", "houlsby_64"), ("squad", "full"), ("sst2_smollm2", "mam_snip_40")]
)
def test_a_cell_of_questions_or_of_another_base_is_scored(task, name, place):
    cell = cells.run_cell(place, task, VARIANTS[name], 1e-3, 0)
    assert set(cell["scores"]) == {"score"}
    assert 0 <= cell["scores"]["score"] <= 100


def test_a_training_that_diverges_answers_with_the_majority(place):
    assert cells.run_cell(place, "squad", VARIANTS["full"], 1e6, 0)["scores"] == {"score": 0.0}
    cell = cells.run_cell(place, TASK, VARIANTS["full"], 1e6, 0)
    assert cell["valid_loss"] is None
    split = place.split(TASK, 40)
    positives = sum(item.label == "1" for item in split.data.train)
    right = [item.label == ("1" if positives > 20 else "0") for item in split.test]
    assert cell["scores"] == {"score": pytest.approx(100 * sum(right) / len(right))}


def test_a_smaller_part_of_the_batch_changes_no_loss(place):
    split = place.split(TASK, 40)
    head, base = cells.TASK.head(split.data.train), place.base(TASK)
    adapter = cells.create(head, base.shape, seed=0)
    rows = cells.torch.from_numpy(cells.TASK.encode(base, split.data.train, block=48, head=head).rows)
    whole = cells.Classification().loss(base, adapter, rows)
    assert cells.TASK.loss(base, adapter, rows).item() == pytest.approx(whole.item(), rel=1e-5)


# --- the program and the page -----------------------------------------------------------------------


def test_a_run_continues_where_the_last_ended_and_leaves_out_what_changed(place, tmp_path, monkeypatch, capsys):
    out, claim = tmp_path / "papers.json", CLAIM.model_copy(update={"seeds": 2})
    changed = row("full", RATES["full"][0], 0, 1.0) | {"setting": "another"}
    program.store(out, [changed, row("houlsby_64", RATES["houlsby"][0], 0, 1.0)])
    train_at_once(claim, place, monkeypatch)
    monkeypatch.setattr("sys.argv", ["papers", "--out", str(out), "--task", TASK])
    program.main()
    stored = json.loads(out.read_text())
    check_form(stored, "papers")
    assert len(stored["rows"]) == 3 + 3 + 2 + 1, "the rates of two families, two seeds, and one of them that is a trial"
    assert stored["figures"]["cells"]["value"] == 9
    assert "x" in capsys.readouterr().out
    program.main()
    assert json.loads(out.read_text())["rows"] == stored["rows"]


def test_a_quick_run_trains_a_set_that_decides_something_in_a_file_of_its_own(place, tmp_path, monkeypatch):
    train_at_once(CLAIM.model_copy(update={"seeds": 2, "on": ("cola", TASK)}), place, monkeypatch)
    monkeypatch.setattr(program, "QUICK", tmp_path / "quick.json")
    monkeypatch.setattr("sys.argv", ["papers", "--quick"])
    program.main()
    assert {row["task"] for row in json.loads((tmp_path / "quick.json").read_text())["rows"]} == {TASK}


def train_at_once(claim: Claim, place: cells.Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the program judge this claim alone, with cells that take no time."""
    for module in (program, verdicts):
        monkeypatch.setattr(module, "CLAIMS", [claim])
    monkeypatch.setattr(program, "Place", lambda *_: place)
    monkeypatch.setattr(program, "load_base", lambda _: None)
    monkeypatch.setattr(program, "run_cell", lambda _place, _task, variant, rate, _seed: trained(variant, rate))


def trained(variant: Variant, rate: float) -> dict:
    return {"valid_loss": rate, "parameters": variant.layers, "scores": {"score": 50.0}, "seconds": 1.0}


def test_the_page_reads_well_before_and_after_the_first_cells(tmp_path):
    (count,) = papers.lines(tmp_path, None)
    theirs = [claim for claim in CLAIMS if claim.paper in verdicts.PAPERS]
    assert count.endswith(f"and {len(theirs)} are not run yet."), (
        "claims about libraries and the number of examples are ours"
    )
    assert papers.pictures(tmp_path) == {}
    assert "not run yet" in papers.lines(tmp_path, "houlsby")[2]
    assert papers.lines(tmp_path, "scores")[0] == "No cell has been run yet."
    program.store(tmp_path / "papers.json", [*trials("houlsby", 0), row("houlsby_8", RATES["houlsby"][0], 1, 90.0)])
    page = "\n".join(papers.lines(tmp_path, "scores"))
    assert "| examples x epochs | SST-2 |" in page
    assert "| `houlsby_8` | 1 | 300 x 4 | 90.0 (1) |" in page
