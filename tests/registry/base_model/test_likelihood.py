"""Log-likelihoods against plain log-softmax of the model's own logits; windows and batches as laws."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import registry.base_model.likelihood as likelihood
from registry.adapters import attached, create, paper_config
from registry.base_model.likelihood import (
    Window,
    batches,
    hidden_states,
    lm_logits,
    log_probs_of,
    log_probs_of_next,
    padded,
    score_windows,
    text_scores,
    token_log_probs,
    windows,
)
from registry.errors import InvalidParameter, InvalidWeights
from registry.spec import BaseShape

ROWS = [[0, 5, 17, 250, 3, 99], [0, 8], [0, 44, 45, 46], [0]]
WINDOWS = [Window(tuple(row)) for row in ROWS]


def log_softmax_of(model, row):
    """Log-probabilities of a row's tokens but the first, alone and without padding."""
    ids = torch.tensor([row])
    return torch.log_softmax(model(ids).logits[0, :-1].double(), dim=-1).gather(1, ids[0, 1:, None]).squeeze(1)


def test_token_log_probs_equal_log_softmax_row_by_row(model):
    ids, mask = padded(ROWS, pad_id=0)
    log_probs = token_log_probs(model, ids, mask)
    assert (log_probs.dtype, log_probs.shape) == (torch.float32, (4, 5))
    for row, got in zip(ROWS, log_probs, strict=True):
        torch.testing.assert_close(got[: len(row) - 1].double(), log_softmax_of(model, row), rtol=0, atol=2e-5)
        assert not got[len(row) - 1 :].any()
    repadded, _ = padded(ROWS, pad_id=299)
    torch.testing.assert_close(log_probs, token_log_probs(model, repadded, mask))  # the padding token does not matter


def test_hidden_states_and_logits_are_the_models_own(model):
    ids, mask = padded(ROWS, pad_id=0)
    hidden = hidden_states(model, ids, mask)
    out = model(ids, attention_mask=mask, output_hidden_states=True)
    assert torch.equal(hidden, out.hidden_states[-1])
    assert torch.equal(lm_logits(model, hidden), out.logits)
    assert torch.equal(log_probs_of_next(model, hidden, ids, mask), token_log_probs(model, ids, mask))


def test_an_attached_adapter_is_in_every_path_and_gets_gradients(model):
    shape = BaseShape(
        fingerprint="sha256:" + "0" * 64, model_type="gpt2", hidden_size=32, num_layers=2, context=64, vocab_size=300
    )
    adapter = create(paper_config("bapna_firat", bottleneck=4), shape, seed=0, init="linear")
    base = score_windows(model, WINDOWS, max_tokens=100, pad_id=0)
    ids, mask = padded(ROWS, pad_id=0)
    with attached(model, adapter):
        with torch.no_grad():
            expected = [-float(log_softmax_of(model, row).sum()) for row in ROWS]
        got = score_windows(model, WINDOWS, max_tokens=100, pad_id=0)
        (-token_log_probs(model, ids, mask).sum()).backward()
    assert got == pytest.approx(expected, abs=1e-3)
    assert abs(got[0] - base[0]) > 1e-2
    assert all(p.grad is not None and torch.isfinite(p.grad).all() and p.grad.any() for p in adapter.parameters())


def test_scores_do_not_depend_on_batches(model):
    cut = [Window((0, *range(1, n)), start) for n, start in ((9, 1), (2, 1), (30, 12), (1, 1), (17, 16), (64, 1))]
    want = [-float(log_softmax_of(model, ids)[start - 1 :].sum()) if len(ids) > 1 else 0.0 for ids, start in cut]
    for max_tokens in (1, 40, 10_000):
        assert score_windows(model, cut, max_tokens=max_tokens, pad_id=0) == pytest.approx(want, abs=2e-3)
    assert score_windows(model, [], max_tokens=10, pad_id=0) == []


def test_a_score_that_is_not_a_number_is_refused_with_its_text():
    cut = [[Window((0, 1))], [Window((0, 1)), Window((0, 2))]]
    with pytest.raises(InvalidWeights, match="text 2"):
        text_scores(["a", "b"], cut, [1.0, 1.0, math.nan])


@given(st.lists(st.integers(1, 299), max_size=60), st.integers(2, 20))
def test_windows_with_bos_score_every_token_once_in_order(ids, context):
    cut = [window.ids for window in windows(ids, context=context, bos_id=0)]
    assert [token for window in cut for token in window[1:]] == ids
    assert all(window[0] == 0 and 2 <= len(window) <= context for window in cut)
    assert all(len(window) == context for window in cut[:-1])


@given(st.lists(st.integers(1, 299), max_size=60), st.integers(2, 20), st.integers(0, 60), st.sampled_from([0, None]))
def test_the_end_of_a_prompt_is_read_and_not_scored(ids, context, prompt, bos_id):
    """The end that leaves room for the answer is read, or half a window before a longer answer."""
    prompt = min(prompt, len(ids))
    cut = windows(ids, context=context, bos_id=bos_id, prompt=prompt)
    assert [token for window in cut for token in window.ids[window.start :]] == ids[max(prompt, int(bos_id is None)) :]
    assert all(len(window.ids) <= context for window in cut)
    room, answer = context - int(bos_id is not None), len(ids) - prompt
    if prompt and answer:
        read_length = min(prompt, room - answer if answer < room else room // 2)
        assert cut[0].ids[int(bos_id is not None) :][:read_length] == tuple(ids[prompt - read_length : prompt])


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(2, 20))
def test_windows_of_a_text_with_a_bos_of_its_own_hold_one_at_its_start(ids, context):
    """However the text goes on: a BOS further on is a token like any other."""
    cut = windows([0, *ids], context=context, bos_id=0)
    assert [token for window in cut for token in window.ids[1:]] == ids
    if ids[:1] != [0]:
        assert cut == windows(ids, context=context, bos_id=0)


@given(st.lists(st.integers(1, 299), max_size=60), st.integers(2, 20))
def test_windows_without_bos_leave_only_the_first_token_unscored(ids, context):
    cut = [window.ids for window in windows(ids, context=context, bos_id=None)]
    assert [token for window in cut for token in window[1:]] == ids[1:]
    assert all(b[0] == a[-1] for a, b in itertools.pairwise(cut))
    assert all(len(window) <= context for window in cut)
    assert bool(cut) == bool(ids)


def test_a_context_without_room_is_refused():
    with pytest.raises(InvalidParameter, match="context of 1"):
        windows([1, 2], context=1, bos_id=0)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 120))
def test_batches_hold_every_row_once_within_the_limit(lengths, max_tokens):
    grouped = batches(lengths, max_tokens=max_tokens)
    assert sorted(index for batch in grouped for index in batch) == list(range(len(lengths)))
    for batch in grouped:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= max_tokens
    order = [lengths[index] for batch in grouped for index in batch]
    assert order == sorted(order, reverse=True)


@pytest.mark.parametrize("cells", [1, 12, 10**9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_chosen_log_probs_and_their_gradients_are_those_of_log_softmax(monkeypatch, cells, dtype):
    monkeypatch.setattr(likelihood, "_CACHED_CELLS", cells)
    logits = torch.randn(5, 7, generator=torch.Generator().manual_seed(0)).mul(3).to(dtype).requires_grad_(True)
    ids, weights = torch.tensor([0, 3, 6, 6, 1]), torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    chosen = likelihood.chosen_log_probs(logits, ids)
    want = torch.log_softmax(logits.float(), dim=-1).gather(1, ids[:, None]).squeeze(1)
    torch.testing.assert_close(chosen, want)
    ours, plain_one = (torch.autograd.grad((log_probs * weights).sum(), logits)[0] for log_probs in (chosen, want))
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, plain_one)


# --- the output layer, some rows at a time ----------------------------------------------------------


class Head(torch.nn.Module):
    """An output layer over 11 tokens as the only part of a model, with what a family does to its logits."""

    def __init__(self, **config: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.head = torch.nn.Linear(6, 11, bias=False).requires_grad_(False)
        self.config = SimpleNamespace(vocab_size=11, **config)
        self.logit_rows: list[int] = []
        self.head.register_forward_hook(
            lambda _head, _args, out: self.logit_rows.extend([len(out)] if len(out) else [])
        )

    def get_output_embeddings(self) -> torch.nn.Module:
        return self.head

    def plain(self, states: Tensor, ids: Tensor) -> Tensor:
        return torch.log_softmax(lm_logits(self, states).float(), dim=-1).gather(1, ids[:, None]).squeeze(1)


IDS = torch.tensor([0, 3, 10, 6, 1])
FAMILIES = [{}, {"logit_scale": 0.25}, {"logits_scaling": 3.0}, {"final_logit_softcapping": 2.0}]


def some_states() -> Tensor:
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).mul(2).requires_grad_()


@pytest.mark.parametrize("rows", [1, 2, 10**9])
@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: next(iter(config), "plain"))
@pytest.mark.parametrize("trained", [False, True])
def test_parts_of_the_output_layer_have_the_gradients_of_the_whole(monkeypatch, rows, config, trained):
    monkeypatch.setattr(likelihood, "_LOGIT_ROWS", rows)
    model, states = Head(**config).requires_grad_(trained), some_states()
    weights = torch.tensor([1.0, -2.0, 0.5, 0.0, 3.0])
    of = [states, *([model.head.weight] if trained else [])]
    chosen, want = log_probs_of(model, states, IDS), model.plain(states, IDS)
    torch.testing.assert_close(chosen, want)
    torch.testing.assert_close(
        torch.autograd.grad((chosen * weights).sum(), of), torch.autograd.grad((want * weights).sum(), of)
    )


@pytest.mark.parametrize("trained", [False, True])
def test_a_step_holds_the_logits_of_some_rows_only_and_keeps_none(monkeypatch, trained):
    monkeypatch.setattr(likelihood, "_LOGIT_ROWS", 2)
    model, stored_shapes = Head().requires_grad_(trained), []

    def keep(tensor: Tensor) -> Tensor:
        stored_shapes.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        chosen = log_probs_of(model, some_states(), IDS)
    saved = stored_shapes if trained else [tuple(tensor.shape) for tensor in chosen.grad_fn.saved_tensors]
    chosen.sum().backward()
    assert sorted(model.logit_rows) == ([1, 1, 2, 2, 2, 2] if trained else [1, 2, 2])  # the trained makes them anew
    assert not [shape for shape in saved if shape[-1:] == (11,)]


def test_the_output_layer_is_run_once_where_nothing_is_differentiated():
    model, states = Head(), some_states()
    with torch.no_grad():
        quiet = log_probs_of(model, states, IDS)
    assert model.logit_rows == [5]
    assert torch.equal(quiet, log_probs_of(model, states.detach(), IDS))
    assert not log_probs_of(model, states.detach(), IDS).requires_grad


@pytest.mark.parametrize("rows", [1, 2, 10**9])
@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: next(iter(config), "plain"))
def test_a_second_derivative_goes_through_parts(monkeypatch, rows, config):
    monkeypatch.setattr(likelihood, "_LOGIT_ROWS", rows)
    model, at = Head(**config), some_states().detach()
    hessian = torch.autograd.functional.hessian
    ours = hessian(lambda states: log_probs_of(model, states, IDS).square().sum(), at)
    torch.testing.assert_close(
        ours, hessian(lambda states: model.plain(states, IDS).square().sum(), at), atol=1e-5, rtol=1e-4
    )


def test_gradients_in_half_precision_are_those_of_the_whole_within_it():
    model, states = Head().to(torch.bfloat16), some_states()
    half = states.detach().to(torch.bfloat16).requires_grad_()
    (gradient,) = torch.autograd.grad(log_probs_of(model, half, IDS).mean(), half)
    (want,) = torch.autograd.grad(Head().plain(states, IDS).mean(), states)
    assert gradient.dtype == torch.bfloat16
    torch.testing.assert_close(gradient.float(), want, rtol=3e-2, atol=3e-3)


def test_no_row_has_no_log_probability():
    assert log_probs_of(Head(), some_states()[:0], IDS[:0]).shape == (0,)
