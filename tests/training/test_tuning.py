"""Soups that are tuned and statistics of adapters: what the papers' formulas say, and that the base stays as it was."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from registry.adapters import AdapterModule, attached, create, from_tensors, paper_config
from registry.adapters.moments import measured_weights, unpacked
from registry.adapters.weights import load_tensors, save_tensors
from registry.base_model import LoadedBase
from registry.base_model.likelihood import hidden_states, lm_logits
from registry.blobs import LocalBlobs
from registry.errors import Cancelled, Internal, InvalidParameter, InvalidSample, Unavailable
from registry.names import sha256_digest
from registry.progress import silent
from registry.spec import (
    AdapterConfig,
    BaseEntry,
    BlobPlace,
    LoraConfig,
    LoraModule,
    MeasuredStatistic,
    PrefixConfig,
    Pruned,
    StatisticRequest,
    StoredAdapter,
    Tuned,
    TuningRequest,
    UnionConfig,
)
from tests.tiny_models import TINY_SENTENCES
from tests.training.conftest import state_hash
from training.gradient_worker import GradientSetup, begin
from training.process import Child
from training.statistics import drawn, measure
from training.tasks.language import passage_scores
from training.tuning import tune

ON_BASES = ("gpt2", "llama")
TEXTS = tuple(f"{sentence} {number}" for number in range(3) for sentence in TINY_SENTENCES)
START = sha256_digest(b"start")


def structures(base: LoadedBase) -> dict[str, AdapterConfig]:
    path = next(path for path in base.shape.linears if path.endswith(("c_attn", "q_proj")))
    parallel = paper_config("parallel", bottleneck=4)
    return {
        **{name: paper_config(name, bottleneck=4) for name in ("bapna_firat", "houlsby", "parallel")},
        "lora": LoraConfig.of({path: LoraModule(2, 4.0)}),
        "mam": UnionConfig(members=(PrefixConfig(length=2), parallel)),
    }


def request_of(config: AdapterConfig, **fields: object) -> TuningRequest:
    defaults = {
        "texts": TEXTS,
        "start": StoredAdapter(config=config, blob=START),
        "passes": 2,
        "rate": "0.01",
        "batch": 4,
        "max_tokens": 64,
        "seed": 0,
        "folds": (tuple(range(4, len(TEXTS), 5)),),
    }
    return TuningRequest.model_validate({**defaults, **fields})


def tuned(
    base: LoadedBase, config: AdapterConfig, *, start: Mapping[str, Tensor] | None = None, progress=None, **fields
) -> tuple[Tuned, dict[str, Tensor]]:
    """The outcome of a tuning, and the tensors that it stored."""
    begun = create(config, base.shape, seed=0, base=base.model).state_dict() if start is None else start
    stored: dict[str, Tensor] = {}

    def keep(tensors: Mapping[str, Tensor]) -> str:
        stored.update({name: tensor.clone() for name, tensor in tensors.items()})
        return sha256_digest(b"kept")

    outcome = tune(base, request_of(config, **fields), lambda _: begun, keep, progress=progress or (lambda *_: None))
    return outcome, stored


@pytest.mark.parametrize("structure", ["bapna_firat", "houlsby", "parallel", "lora", "mam"])
def test_the_likelihoods_are_those_of_base_and_start_and_the_result_has_better_ones(
    base: LoadedBase, structure: str
) -> None:
    config, base_hash = structures(base)[structure], state_hash(base.model)
    outcome, stored = tuned(base, config)
    assert outcome.best_pass
    assert state_hash(base.model) == base_hash
    assert not base.model._forward_pre_hooks
    assert all(parameter.grad is None for parameter in base.model.parameters())
    held_out = [TEXTS[number] for number in outcome.held_out]
    block = base.shape.context - config.prefix_length
    alone = passage_scores(base, held_out, block=block)
    assert [score.nll for score in alone] == pytest.approx(outcome.base_nll, rel=1e-6)
    assert tuple(score.tokens for score in alone) == outcome.tokens
    with attached(base.model, create(config, base.shape, seed=0, base=base.model)):
        start = passage_scores(base, held_out, block=block)
    assert [score.nll for score in start] == pytest.approx(outcome.nll[0], rel=1e-6)
    with attached(base.model, from_tensors(config, base.shape, stored)):
        result = passage_scores(base, held_out, block=block)
    assert sum(score.nll for score in result) < sum(outcome.nll[0])


@pytest.mark.parametrize("kind", ["tuning", "statistic"])
def test_a_process_leaves_its_result_to_its_parent_to_store(
    gpt2: LoadedBase, base_entry: Callable[[str], BaseEntry], tmp_path: Path, kind: str
) -> None:
    """If it is ended before its answer is read, as by a cancellation, it has stored nothing that nobody knows of."""
    config, blobs = structures(gpt2)["lora"], LocalBlobs(tmp_path / "blobs")
    begun = create(config, gpt2.shape, seed=0, base=gpt2.model).state_dict()
    start = StoredAdapter(config=config, blob=blobs.put_bytes(save_tensors(begun)))
    setup = GradientSetup(entry=base_entry("gpt2"), cache=tmp_path / "cache", blobs=BlobPlace(folder=blobs.folder))
    with blobs.scratch() as file:
        if kind == "tuning":
            do, request, result = "tune", request_of(config, start=start, passes=1), Tuned
        else:
            request = StatisticRequest(kind="inputs", adapter=start, texts=PASSAGES)
            do, result = "measure", MeasuredStatistic
        task = {"do": do, "request": request.model_dump(mode="json"), "file": str(file)}
        answer = begin(setup.model_dump(mode="json"))(task, silent)
        assert list(blobs.digests()) == [start.blob]
        assert sha256_digest(file.read_bytes()) == result.model_validate(answer).blob
        assert load_tensors(file.read_bytes())
    assert not file.exists()


def test_a_held_out_passage_changes_no_training_but_the_last(gpt2: LoadedBase) -> None:
    """Other text in its place changes its own likelihoods, and the result, but not those of another such passage."""
    config = structures(gpt2)["bapna_firat"]
    changed = tuple(f"{text} and other words" if number == 4 else text for number, text in enumerate(TEXTS))
    (first, first_tensors), (second, second_tensors) = (
        tuned(gpt2, config, passes=1),
        tuned(gpt2, config, passes=1, texts=changed),
    )
    assert first.best_pass == second.best_pass == 1
    replaced, untouched = (first.held_out.index(number) for number in (4, 9))
    # up to rounding: rows are padded to another length
    assert [nll[untouched] for nll in first.nll] == pytest.approx([nll[untouched] for nll in second.nll], rel=1e-5)
    assert first.nll[1][replaced] != second.nll[1][replaced]
    assert any(not torch.equal(first_tensors[name], second_tensors[name]) for name in first_tensors)


def test_each_fold_is_held_out_of_its_own_training_and_the_last_is_on_all(gpt2: LoadedBase) -> None:
    config = structures(gpt2)["bapna_firat"]
    folds = tuple(tuple(range(first, len(TEXTS), 3)) for first in range(3))
    outcome, stored = tuned(gpt2, config, folds=folds)
    assert sorted(outcome.held_out) == list(range(len(TEXTS)))
    alone, _ = tuned(gpt2, config, folds=folds[:1])
    of_first = [outcome.held_out.index(number) for number in folds[0]]
    assert [outcome.nll[2][at] for at in of_first] == pytest.approx(alone.nll[2])
    begun = create(config, gpt2.shape, seed=0).state_dict()
    assert any(not torch.equal(stored[name], begun[name]) for name in stored)


@pytest.mark.parametrize("folds", [((4, 9),), ((0, 1), (2, 3))])
def test_each_pass_says_how_well_it_predicted_what_it_trained_on(
    gpt2: LoadedBase, folds: tuple[tuple[int, ...], ...]
) -> None:
    """With a rate of next to nothing that is what the start gets on the same passages."""
    config = paper_config("houlsby", bottleneck=4)
    outcome, _ = tuned(gpt2, config, rate="0.000001", passes=3, batch=1, folds=folds)
    assert len(outcome.trained_nll) == len(outcome.nll) - 1 == 3
    scores = passage_scores(gpt2, TEXTS, block=gpt2.shape.context)
    trainings = [[n for n in range(len(TEXTS)) if n not in fold] for fold in folds]
    on = [number for training in trainings for number in training] + list(range(len(TEXTS)))
    nll = sum(scores[number].nll for number in on) / sum(scores[number].tokens for number in on)
    assert outcome.trained_nll[0] == pytest.approx(nll, abs=0.02)
    quick, _ = tuned(gpt2, config, rate="0.05", passes=3, batch=1, folds=folds)
    assert quick.trained_nll[2] < quick.trained_nll[0]


def test_the_same_request_gives_the_same_tensors(gpt2: LoadedBase) -> None:
    config = structures(gpt2)["lora"]
    (_, first), (_, second) = tuned(gpt2, config), tuned(gpt2, config)
    (_, reseeded) = tuned(gpt2, config, seed=1)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], reseeded[name]) for name in first)


def test_training_begins_where_the_start_is(gpt2: LoadedBase) -> None:
    config = structures(gpt2)["bapna_firat"]
    drawn = {n: t + 0.05 for n, t in create(config, gpt2.shape, seed=3).state_dict().items()}
    outcome, _ = tuned(gpt2, config, start=drawn)
    with attached(gpt2.model, from_tensors(config, gpt2.shape, drawn)):
        scores = passage_scores(gpt2, [TEXTS[number] for number in outcome.held_out], block=gpt2.shape.context)
    assert [score.nll for score in scores] == pytest.approx(outcome.nll[0], rel=1e-6)


@pytest.mark.parametrize("folds", [1, 2])
def test_a_training_ends_after_a_pass_without_gain_and_keeps_the_start(gpt2: LoadedBase, folds: int) -> None:
    config = structures(gpt2)["bapna_firat"]
    (_, good) = tuned(gpt2, config)
    strange = tuple(text if number % 5 == 4 else "zq xv " * 8 + str(number) for number, text in enumerate(TEXTS))
    folds_of = tuple(tuple(range(4, len(TEXTS), 5)[turn::folds]) for turn in range(folds))
    outcome, stored = tuned(gpt2, config, start=good, texts=strange, rate="0.1", passes=40, folds=folds_of)
    assert (outcome.best_pass, outcome.blob, stored, len(outcome.nll)) == (0, None, {}, 2)
    assert min(map(sum, outcome.nll[1:])) > sum(outcome.nll[0])


def test_long_passages_are_scored_on_as_many_tokens_as_are_trained_on(gpt2: LoadedBase) -> None:
    long = tuple(" ".join([text] * 40) for text in TEXTS)
    outcome, _ = tuned(gpt2, structures(gpt2)["lora"], texts=long, passes=1, max_tokens=32)
    assert set(outcome.tokens) == {31}


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        (
            {"texts": TEXTS[:5], "folds": ((4,),)},
            r"has \d+ tokens to train on with 'max_tokens' 64, and tuning needs 400",
        ),
        ({"texts": ("", *(TEXTS[:1] * 60)), "folds": (tuple(range(1, 61)),)}, "nothing to train on"),
        (
            {"texts": tuple("" if number % 5 == 4 else text for number, text in enumerate(TEXTS))},
            "No passage that is held out has a token",
        ),
    ],
    ids=["too few tokens", "text in held-out passages only", "held-out passages without a token"],
)
def test_a_sample_on_which_nothing_can_be_trained_or_judged_is_refused(
    gpt2: LoadedBase, sample: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidSample, match=sentence):
        tuned(gpt2, structures(gpt2)["lora"], **sample)


def test_a_pruned_start_is_refused(gpt2: LoadedBase) -> None:
    pruned = structures(gpt2)["bapna_firat"].with_pruned({"": Pruned(score="magnitude", sparsity=0.5, masked=4)})
    with pytest.raises(InvalidParameter, match="pruned adapter cannot be tuned"):
        tuned(gpt2, pruned, start={})


@pytest.mark.parametrize(
    ("factor", "batch", "message"),
    [
        (
            float("inf"),
            4,
            "of held-out passages is nan after 0 steps of tuning: an adapter or the base model overflows",
        ),
        (1e20, 4, "of a training step is (nan|inf) after 1 steps of tuning: a lower rate may help"),
        (1e20, len(TEXTS), "of held-out passages is (nan|inf) after 1 steps of tuning: a lower rate may help"),
    ],
    ids=["at the start", "of a step", "of held-out passages after a pass"],
)
def test_a_loss_that_is_not_finite_is_refused_with_advice(
    gpt2: LoadedBase, factor: float, batch: int, message: str
) -> None:
    config = structures(gpt2)["lora"]
    start = {name: factor * value for name, value in create(config, gpt2.shape, seed=0).state_dict().items()}
    with pytest.raises(InvalidParameter, match=f"The loss {message}"):
        tuned(gpt2, config, start=start, batch=batch, rate="1")


def test_it_can_be_cancelled_between_two_steps(gpt2: LoadedBase) -> None:
    reports: list[tuple[int, int]] = []

    def stop(done: int, total: int, _message: str) -> None:
        reports.append((done, total))
        if done == 3:
            raise Cancelled("enough")

    with pytest.raises(Cancelled):
        tuned(gpt2, structures(gpt2)["lora"], progress=stop)
    assert [done for done, _ in reports] == [0, 1, 2, 3]
    assert not gpt2.model._forward_pre_hooks


# --- statistics of adapters -----------------------------------------------------------------------


PASSAGES = tuple(TINY_SENTENCES[:3])
BLOB = sha256_digest(b"adapter")


def configs(base: LoadedBase) -> dict[str, AdapterConfig]:
    paths = [
        path for path in base.shape.linears if path.endswith(("c_attn", "c_proj", "q_proj", "down_proj", "lm_head"))
    ]
    return {
        **{name: paper_config(name, bottleneck=4) for name in ("bapna_firat", "houlsby", "parallel")},
        "lora": LoraConfig.of({path: LoraModule(2, 4.0) for path in paths}),
    }


def tensors_of(base: LoadedBase, config: AdapterConfig) -> dict[str, Tensor]:
    """Tensors like those of a trained adapter: none is zero."""
    draw = torch.Generator().manual_seed(0)
    start = create(config, base.shape, seed=0, init="linear", base=base.model).state_dict()
    return {name: tensor + 0.1 * torch.randn(tensor.shape, generator=draw) for name, tensor in start.items()}


def measured(
    base: LoadedBase, config: AdapterConfig, kind: str, *, progress=lambda *_: None, load=None, **fields: object
) -> tuple[MeasuredStatistic, dict[str, Tensor]]:
    stored: dict[str, Tensor] = {}

    def keep(tensors: Mapping[str, Tensor]) -> str:
        stored.update(tensors)
        return sha256_digest(b"kept")

    defaults = {"kind": kind, "adapter": StoredAdapter(config=config, blob=BLOB), "texts": PASSAGES, "max_tokens": 24}
    request = StatisticRequest.model_validate({**defaults, **fields})
    return measure(base, request, load or (lambda _: tensors_of(base, config)), keep, progress=progress), stored


def rows_of(base: LoadedBase) -> list[Tensor]:
    return [torch.tensor([base.tokenize(text)[:24]]) for text in PASSAGES]


def attach(base: LoadedBase, config: AdapterConfig) -> AdapterModule:
    return from_tensors(config, base.shape, tensors_of(base, config))


def test_tokens_are_drawn_as_the_base_predicts_them(base: LoadedBase) -> None:
    """So that the mean of their squared slopes is the expectation that the paper means."""
    draw, draws = torch.Generator().manual_seed(5), 400
    states = 20 * torch.randn(4, base.shape.hidden_size, generator=draw)
    with torch.no_grad():
        chances = lm_logits(base.model, states).softmax(-1)
    frequencies = (
        torch.nn.functional.one_hot(torch.stack([drawn(base, states, draw) for _ in range(draws)]), chances.shape[1])
        .double()
        .mean(0)
    )
    assert chances.max() > 0.05
    assert ((frequencies - chances).abs() < 5 * (chances / draws).sqrt() + 2 / draws).all()


@pytest.mark.parametrize("structure", ["bapna_firat", "lora"])
def test_fisher_is_of_the_drawn_tokens_and_of_each_passage_by_itself(base: LoadedBase, structure: str) -> None:
    config = configs(base)[structure]
    measurement, stored = measured(base, config, "fisher", seed=5)
    adapter, draw = attach(base, config), torch.Generator().manual_seed(5)
    values = dict(adapter.named_parameters())
    sums = {name: torch.zeros_like(value, dtype=torch.float64) for name, value in values.items()}
    with attached(base.model, adapter):
        for ids in rows_of(base):
            states = hidden_states(base.model, ids, torch.ones_like(ids))[0, :-1]
            tokens = drawn(base, states.detach(), draw)
            loss = torch.nn.functional.cross_entropy(lm_logits(base.model, states), tokens, reduction="sum")
            for name, slope in zip(values, torch.autograd.grad(loss, list(values.values())), strict=True):
                sums[name] += slope.double().square()
    assert measurement.tokens == sum(ids.shape[1] - 1 for ids in rows_of(base))
    assert measurement.passages == 3
    assert stored.keys() == sums.keys()
    for name, tensor in stored.items():
        assert torch.allclose(tensor.double(), sums[name] / measurement.tokens, rtol=1e-3, atol=1e-12), name


@pytest.mark.parametrize("structure", ["bapna_firat", "houlsby", "parallel", "lora"])
def test_inputs_are_the_second_moments_of_what_projections_read(base: LoadedBase, structure: str) -> None:
    config = configs(base)[structure]
    measurement, stored = measured(base, config, "inputs")
    adapter = attach(base, config)
    names = measured_weights(config, dict(adapter.named_parameters()))
    assert list(stored) == names
    assert all(name.endswith((".down.weight", ".up.weight", ".lora_A.weight")) for name in names)
    read: dict[str, list[Tensor]] = {name: [] for name in names}
    real = torch.nn.functional.linear

    def watched(x, weight, bias=None):
        for name, value in adapter.named_parameters():
            if value is weight and name in read:
                read[name].append(x.reshape(-1, x.shape[-1]).double())
        return real(x, weight, bias)

    with torch.no_grad(), pytest.MonkeyPatch.context() as patch, attached(base.model, adapter):
        patch.setattr(torch.nn.functional, "linear", watched)
        for ids in rows_of(base):
            lm_logits(base.model, hidden_states(base.model, ids, torch.ones_like(ids)))
    for name in names:
        inputs = torch.cat(read[name])
        assert len(inputs) == sum(ids.shape[1] for ids in rows_of(base))
        moments = (inputs.T @ inputs / len(inputs)).numpy()
        assert np.allclose(unpacked(stored[name], moments.shape[0]), moments, rtol=1e-4, atol=1e-6), name
    assert measurement.passages == len(PASSAGES)


@pytest.mark.parametrize("kind", ["fisher", "inputs"])
def test_the_base_is_as_it_was_and_what_is_wrong_is_told(gpt2: LoadedBase, kind: str) -> None:
    config = configs(gpt2)["bapna_firat"]
    base_hash = state_hash(gpt2.model)
    first, second = measured(gpt2, config, kind)[1], measured(gpt2, config, kind)[1]
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    broken = {name: torch.full_like(tensor, float("inf")) for name, tensor in tensors_of(gpt2, config).items()}
    with pytest.raises(InvalidSample, match="NaN or infinity"):
        measured(gpt2, config, kind, load=lambda _: broken)
    with pytest.raises(InvalidSample, match="no token"):
        measured(gpt2, config, kind, texts=("",))

    def stop(done: int, _total: int, message: str) -> None:
        assert message == "computing the statistics"
        if done == 1:
            raise Cancelled("Enough.")

    with pytest.raises(Cancelled):
        measured(gpt2, config, kind, progress=stop)
    assert state_hash(gpt2.model) == base_hash
    measured(gpt2, config, kind)  # nothing is attached any more


# --- the process that computes --------------------------------------------------------------------


WAITING = (0, 1, "waiting")
MORE_THAN_A_PIPE_HOLDS = "x" * 200_000


@pytest.fixture
def child() -> Iterator[Child]:
    process = Child("tests.training.silent_child", {})
    yield process
    process.end()


def stop_at_once(_done: int, _total: int, _message: str) -> None:
    raise Cancelled("enough")


def signalled(child: Child, number: int) -> None:
    """Kill or stop the child, and wait until it is dead or stands still."""
    os.kill(child.pid, number)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)


@pytest.mark.slow
def test_a_child_that_died_between_two_requests_is_started_again(child: Child) -> None:
    assert child.ask({"seconds": 0}, silent, waiting=WAITING) == {"slept": 0}
    old_pid = child.pid
    signalled(child, signal.SIGKILL)
    assert child.ask({"seconds": 0, "text": MORE_THAN_A_PIPE_HOLDS}, silent, waiting=WAITING) == {"slept": 0}
    assert child.pid != old_pid


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["started_again", "reads_nothing"])
def test_whoever_waits_for_a_child_can_cancel(child: Child, number: int) -> None:
    assert child.ask({"seconds": 0}, silent, waiting=WAITING) == {"slept": 0}
    signalled(child, number)
    with pytest.raises(Cancelled):
        child.ask({"seconds": 20, "text": MORE_THAN_A_PIPE_HOLDS}, stop_at_once, waiting=WAITING)
    assert child.pid is None, "what it would answer next is not for the next caller"


@pytest.mark.slow
def test_a_child_that_cannot_write_a_file_says_why_without_its_path(child: Child) -> None:
    for number, error, sentence in (
        (errno.ENOSPC, Unavailable, r"written on the server \(No space left on device\)\.$"),
        (errno.EIO, Internal, r"^It failed \(OSError\)\.$"),
    ):
        with pytest.raises(error, match=sentence):
            child.ask({"seconds": 0, "errno": number}, silent, waiting=WAITING)


@pytest.mark.slow
def test_a_child_comes_after_its_parent_among_processes_and_among_sessions(tmp_path: Path) -> None:
    program = "import os, sys; from pathlib import Path; from training.process import lower_priority"
    program += "; lower_priority(7, group=Path(sys.argv[1])); print(os.nice(0))"
    for group in (tmp_path / "group", tmp_path / "none" / "group"):  # the second is a system without groups
        ran = subprocess.run([sys.executable, "-c", program, str(group)], capture_output=True, text=True, check=True)
        assert int(ran.stdout) == os.nice(0) + 7
    assert (tmp_path / "group").read_text() == "7"
