"""Prefix tuning against PEFT itself: every family, both directions, padding, caches; and what must be refused."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from transformers import DynamicCache, StaticCache

from registry.adapters import attached, create, expected_tensors, from_tensors
from registry.adapters.initial import INITS
from registry.adapters.prefix import PROMPT
from registry.adapters.weights import init_hash
from registry.base_model import load_base
from registry.base_model.likelihood import Window, score_windows, token_log_probs
from registry.base_model.loading import LoadedBase
from registry.errors import Incompatible, Internal, InvalidParameter
from registry.spec import BaseEntry, PrefixConfig
from tests.tiny_models import CAUSAL, TINY_CONFIGS, TINY_CONTEXT, build_tiny_base

LENGTH = 5
KV = {
    "gpt2": (2, 16),
    "llama": (2, 8),
    "qwen2": (2, 8),
    "qwen3": (2, 12),
    "mistral": (2, 8),
    "gpt_neox": (4, 8),
    "opt": (4, 8),
}
ON_BASES = CAUSAL
IDS = torch.tensor([[0, 5, 17, 250, 3, 99], [0, 0, 8, 8, 130, 21]])
LEFT = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
POSITIONS = (LEFT.cumsum(1) - 1).clamp(min=0)


def prefix_of(base: LoadedBase, length: int = LENGTH, seed: int = 1):
    """Keys and values as far from nothing as PEFT's own start."""
    return create(PrefixConfig(length=length), base.shape, seed=seed, init="linear")


def in_peft(base: LoadedBase, length: int = LENGTH):
    from peft import PrefixTuningConfig, get_peft_model

    config = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=length)
    with warnings.catch_warnings():  # PEFT asks transformers in a way that it will not answer in its next version
        warnings.simplefilter("ignore", FutureWarning)
        return get_peft_model(copy.deepcopy(base.model), config).eval()


def test_every_family_is_here_and_its_keys_and_values_are_seen(base):
    assert set(KV) == set(TINY_CONFIGS)
    assert base.shape.kv == KV[base.shape.model_type]


@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
def test_a_base_with_a_padding_token_takes_one_too(tmp_path, family):
    path = build_tiny_base(tmp_path, model_type=family, pad_token_id=0)
    assert load_base(BaseEntry(id="tiny", source=str(path))).shape.kv == KV[family]


@torch.inference_mode()
def test_logits_are_pefts(base):
    adapter, peft = prefix_of(base), in_peft(base)
    peft.prompt_encoder["default"].embedding.weight.copy_(adapter.prompt_embeddings)
    expected = peft(IDS, attention_mask=LEFT).logits, peft(IDS, attention_mask=LEFT, position_ids=POSITIONS).logits
    plain = base.model(IDS, attention_mask=LEFT).logits
    with attached(base.model, adapter):
        computed = (
            base.model(IDS, attention_mask=LEFT).logits,
            base.model(IDS, attention_mask=LEFT, position_ids=POSITIONS, use_cache=False).logits,
        )
    tokens = LEFT.bool()
    for ours, theirs in zip(computed, expected, strict=True):
        torch.testing.assert_close(ours[tokens], theirs[tokens], rtol=0, atol=1e-5)
    assert (computed[0] - plain)[tokens].abs().max() > 0.1
    assert torch.equal(base.model(IDS, attention_mask=LEFT).logits, plain), "it has left no trace"


@torch.inference_mode()
def test_generation_is_pefts_with_a_cache_and_without(base):
    adapter, peft = prefix_of(base), in_peft(base)
    peft.prompt_encoder["default"].embedding.weight.copy_(adapter.prompt_embeddings)
    options = {"attention_mask": LEFT, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    expected = peft.generate(input_ids=IDS, **options)
    with attached(base.model, adapter):
        assert torch.equal(base.model.generate(IDS, **options), expected)
        assert torch.equal(base.model.generate(IDS, use_cache=False, **options), expected)
    assert not torch.equal(base.model.generate(IDS, **options), expected)


@torch.inference_mode()
def test_steps_with_a_cache_are_one_pass(base):
    cache = DynamicCache()
    with attached(base.model, prefix_of(base)):
        whole = base.model(IDS, attention_mask=LEFT, position_ids=POSITIONS).logits
        steps = [
            base.model(
                IDS[:, start:stop],
                attention_mask=LEFT[:, :stop],
                position_ids=POSITIONS[:, start:stop],
                past_key_values=cache,
                use_cache=True,
            ).logits
            for start, stop in ((0, 3), (3, 4), (4, 6))
        ]
    assert cache.get_seq_length() == LENGTH + 6
    tokens = LEFT.bool()
    torch.testing.assert_close(torch.cat(steps, 1)[tokens], whole[tokens], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["plain", "of the model", "static", "none"])
@torch.inference_mode()
def test_texts_beyond_a_sliding_window(bases, kind: str):
    """Mistral's window is 16 tokens here, of which the prefix takes its part: as in PEFT, it falls out of sight."""
    base = bases("mistral")
    adapter, config = prefix_of(base), base.model.config
    ids = torch.randint(1, 300, (2, 30), generator=torch.Generator().manual_seed(0))
    cache = {
        "plain": DynamicCache(),
        "of the model": DynamicCache(config=config),
        "static": StaticCache(config=config, max_cache_len=TINY_CONTEXT),
    }.get(kind)
    with attached(base.model, adapter):
        whole, steps = base.model(ids).logits, []
        for at in range(30):
            out = base.model(ids[:, at : at + 1], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_a_row_computes_what_it_computes_alone(base):
    """On either side of the padding, in a pass over the model and in one below its head."""
    alone = IDS[1:, 2:]
    right = torch.cat([alone, torch.zeros((1, 2), dtype=torch.long)], 1)
    with attached(base.model, prefix_of(base)):
        expected = base.model(alone).logits
        padded_left = base.model(IDS, attention_mask=LEFT, position_ids=POSITIONS).logits[1:, 2:]
        padded_right = base.model(right, attention_mask=torch.tensor([[1, 1, 1, 1, 0, 0]])).logits[:, :4]
        below = base.model.base_model(input_ids=alone, attention_mask=torch.ones_like(alone), use_cache=False)
        head = base.model.get_output_embeddings()
        torch.testing.assert_close(head(below.last_hidden_state), expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(padded_left, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(padded_right, expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_masks_of_four_dimensions_cover_the_prefix(gpt2):
    causal = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    added = torch.zeros(1, 1, 6, 6).masked_fill(~causal, torch.finfo(torch.float32).min)
    with attached(gpt2.model, prefix_of(gpt2)):
        expected = gpt2.model(IDS[:1]).logits
        for mask in (causal, added):
            torch.testing.assert_close(gpt2.model(IDS[:1], attention_mask=mask).logits, expected, rtol=0, atol=1e-5)


@torch.inference_mode()
def test_arguments_by_position_are_understood(gpt2):
    with attached(gpt2.model, prefix_of(gpt2)):
        expected = gpt2.model.transformer(input_ids=IDS, attention_mask=LEFT).last_hidden_state
        assert torch.equal(gpt2.model.transformer(IDS, None, LEFT).last_hidden_state, expected)
        embeds = gpt2.model.transformer.wte(IDS)
        assert torch.equal(
            gpt2.model.transformer(inputs_embeds=embeds, attention_mask=LEFT).last_hidden_state, expected
        )


def test_starts(gpt2):
    started = {
        init: create(PrefixConfig(length=64 - 3), gpt2.shape, seed=3, init=init, base=gpt2.model).prompt_embeddings
        for init in INITS
    }
    assert torch.equal(started["near_identity"], started["zero_up"])
    assert started["linear"].std().item() == pytest.approx(1.0, rel=0.05)
    with pytest.raises(InvalidParameter, match="pass the base model"):
        create(PrefixConfig(length=2), gpt2.shape, seed=0)


def test_a_start_does_not_depend_on_how_many_threads_there_are(gpt2):
    thread_counts, starts = [], []
    threads_before = torch.get_num_threads()
    with gpt2.model.base_model.register_forward_pre_hook(lambda *_: thread_counts.append(torch.get_num_threads())):
        for threads in (1, 2):
            torch.set_num_threads(threads)
            try:
                starts.append(create(PrefixConfig(length=LENGTH), gpt2.shape, seed=1, base=gpt2.model))
                assert torch.get_num_threads() == threads
            finally:
                torch.set_num_threads(threads_before)
    assert thread_counts == [1, 1]
    assert init_hash(starts[0].state_dict()) == init_hash(starts[1].state_dict())


def test_it_starts_as_tokens_that_stand_before_the_text(base):
    """Drawn by the seed and read by the base: attached, it is what those tokens in front of the text would be."""
    prefix = create(PrefixConfig(length=5), base.shape, seed=7, base=base.model)
    tokens = np.random.Generator(np.random.PCG64(7)).integers(base.model.config.vocab_size, size=5)
    text = torch.tensor([[1, 5, 9, 2]])
    with torch.no_grad():
        both = torch.cat([torch.from_numpy(tokens)[None], text], dim=1)
        whole = base.model(both, attention_mask=torch.ones(1, 9)).logits
        with attached(base.model, prefix):
            alone = base.model(text, attention_mask=torch.ones(1, 4)).logits
    torch.testing.assert_close(alone, whole[:, 5:], atol=1e-5, rtol=1e-5)


# --- refused --------------------------------------------------------------------------------------


def test_a_base_without_keys_and_values_of_one_size_is_refused(gpt2):
    with pytest.raises(Incompatible, match="its keys and values differ in size between layers"):
        expected_tensors(PrefixConfig(length=2), gpt2.shape.model_copy(update={"kv": None}))


def test_an_encoder_is_refused(encoder):
    assert encoder.shape.kv is None
    with pytest.raises(Incompatible, match="it is not causal"):
        create(PrefixConfig(length=2), encoder.shape, seed=0)


def test_a_prefix_without_room_for_text_is_refused(gpt2):
    with pytest.raises(Incompatible, match=r"63 virtual tokens leaves no room for text in a context of 64"):
        expected_tensors(PrefixConfig(length=63), gpt2.shape)
    create(PrefixConfig(length=62), gpt2.shape, seed=0, base=gpt2.model)


def test_too_long_a_text_is_refused(base):
    fits = torch.ones((1, TINY_CONTEXT - LENGTH), dtype=torch.long)
    with attached(base.model, prefix_of(base)), torch.inference_mode():
        assert torch.isfinite(base.model(fits).logits).all()
        with pytest.raises(InvalidParameter, match=r"has 60 tokens, and 59 fit: the prefix takes 5"):
            base.model(torch.ones((1, TINY_CONTEXT - LENGTH + 1), dtype=torch.long))


def test_a_cache_that_was_filled_without_it_is_refused(gpt2):
    adapter, cache = prefix_of(gpt2), DynamicCache()
    with torch.inference_mode():
        gpt2.model(IDS, attention_mask=torch.ones_like(IDS), past_key_values=cache)
        with attached(gpt2.model, adapter), pytest.raises(Internal, match="filled without it"):
            gpt2.model(IDS[:, :1], attention_mask=torch.ones((2, 7), dtype=torch.long), past_key_values=cache)


def test_a_mask_that_is_no_tensor_is_refused(gpt2):
    with attached(gpt2.model, prefix_of(gpt2)), pytest.raises(Internal, match="one tensor"):
        gpt2.model.transformer(input_ids=IDS, attention_mask={"full_attention": None})


@pytest.mark.parametrize("mixed", [False, True], ids=["fp32", "mixed precision"])
def test_gradients_reach_the_prefix_and_nothing_else(base, mixed):
    adapter = prefix_of(base)
    with attached(base.model, adapter), torch.autocast("cpu", dtype=torch.bfloat16, enabled=mixed):
        (-token_log_probs(base.model, IDS, LEFT).mean()).backward()
    assert torch.isfinite(adapter.prompt_embeddings.grad).all()
    columns = adapter.prompt_embeddings.grad.view(LENGTH, base.shape.num_layers, 2, -1)
    assert (columns.abs().amax(-1) > 0).all(), "of every layer, of keys and of values"
    assert all(parameter.grad is None for parameter in base.model.parameters())


def test_half_precision_bases(gpt2):
    model = copy.deepcopy(gpt2.model).to(torch.bfloat16)
    with torch.inference_mode(), attached(model, prefix_of(gpt2)):
        output = model(IDS, attention_mask=LEFT)
    assert output.logits.dtype == torch.bfloat16
    assert output.past_key_values.layers[0].keys.dtype == torch.bfloat16
    assert torch.isfinite(output.logits).all()


def test_scoring_is_that_of_a_text_after_virtual_tokens(gpt2):
    """A prefix whose keys and values are those of real tokens scores as those tokens in front of the text would."""
    front, text = torch.tensor([[0, 44, 7]]), [[250, 3, 99, 12]]
    with torch.inference_mode():
        cache = gpt2.model(front, use_cache=True).past_key_values
        states = torch.stack([state for layer in cache.layers for state in (layer.keys[0], layer.values[0])])
        tensors = {PROMPT: states.permute(2, 0, 1, 3).reshape(3, -1)}
        adapter = from_tensors(PrefixConfig(length=3), gpt2.shape, tensors)
        whole = token_log_probs(gpt2.model, torch.cat([front, torch.tensor(text)], 1), torch.ones((1, 7)))
        with attached(gpt2.model, adapter):
            nlls = score_windows(gpt2.model, [Window(tuple(ids)) for ids in text], max_tokens=64, pad_id=0)
    assert nlls[0] == pytest.approx(-float(whole[0, 3:].double().sum()), abs=1e-4)
