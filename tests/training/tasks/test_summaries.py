"""Summaries: what is predicted and what is not, what does not fit, greedy writing, and the overlap of texts."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from registry.adapters import attached, create, paper_config
from registry.base_model import load_base
from registry.errors import InvalidParameter
from registry.spec import BaseEntry, PrefixConfig
from tests.training.task_items import SUMMARISED
from training.tasks import TASKS
from training.tasks.encoding import PAD
from training.tasks.overlap import exact_match, rouge, token_f1
from training.tasks.summarisation import PROMPT, Summarised, summary_of

TASK = TASKS["summarisation"]


def test_a_row_is_document_prompt_and_summary_and_only_the_summary_is_predicted(base):
    rows = TASK.encode(base, [Summarised("The fox jumps.", " lazy "), *SUMMARISED[:2]], block=60, at_least=1).rows
    start, ids = int(rows[0][0]), [token for token in rows[0][1:].tolist() if token != PAD]
    decode = base.tokenizer.backend_tokenizer.decode
    assert decode(ids[:start], skip_special_tokens=False) == f"<|endoftext|>The fox jumps.{PROMPT}"
    assert decode(ids[start:], skip_special_tokens=False) == " lazy<|endoftext|>"
    with torch.no_grad():
        scored = TASK.scored(base, None, torch.from_numpy(rows))
    assert scored.targets.tolist()[: len(ids) - start] == ids[start:]
    hand = torch.log_softmax(base.model(torch.tensor([ids])).logits[0].float(), -1)
    nll = -sum(hand[place - 1, ids[place]] for place in range(start, len(ids))) / (len(ids) - start)
    assert float(TASK.loss(base, None, torch.from_numpy(rows[:1]))) == pytest.approx(float(nll), rel=1e-5)


def test_a_document_that_begins_with_the_bos_gets_no_other(base):
    items = [Summarised(bos + "The fox jumps.", "lazy") for bos in ("", "<|endoftext|>")]
    rows = TASK.encode(base, items, block=60, at_least=1).rows
    assert rows[0].tolist() == rows[1].tolist()


def test_documents_are_cut_and_summaries_that_do_not_fit_left_out_and_counted(base):
    items = [Summarised("word " * 80, "short"), Summarised("fits", "short"), Summarised("word " * 80, "much " * 60)]
    data = TASK.encode(base, items, block=40, at_least=1)
    assert {name: data.counts[name] for name in data.counts if name != "summary_tokens"} == {
        "documents": 3,
        "documents_cut": 1,
        "documents_left_out": 1,
    }
    assert data.rows.shape[1] == 1 + 40
    assert f"{PROMPT} short" in base.tokenizer.backend_tokenizer.decode(data.rows[0][1:].tolist())
    with pytest.raises(InvalidParameter, match="No summary of the training data fits into a block of 40"):
        TASK.encode(base, items[2:], block=40, at_least=1)


def test_a_greedy_summary_is_the_models_own_with_and_without_an_adapter(base):
    text = "The fox."
    prefix = create(PrefixConfig(length=3), base.shape, seed=0, init="linear")
    for adapter in (None, create(paper_config("parallel", bottleneck=4), base.shape, seed=1, init="linear"), prefix):
        with torch.no_grad(), nullcontext() if adapter is None else attached(base.model, adapter):
            assert summary_of(base, text, block=56) == _slowly(base, text, 28)


def _slowly(base, text, room):
    """Greedy without a cache."""
    ids = [*base.tokenize(text), *base.tokenize(PROMPT, bos=False)]
    start = len(ids)
    while len(ids) - start < room:
        token = int(base.model(torch.tensor([ids])).logits[0, -1].argmax())
        if token == base.eos_id:
            break
        ids.append(token)
    return base.tokenizer.backend_tokenizer.decode(ids[start:]).strip()


def test_a_base_without_bos_and_one_with_another_context_work_too(base_entry):
    base = load_base(BaseEntry(id="tiny", source=base_entry("llama").source, bos=False))
    assert TASK.encode(base, SUMMARISED[:3], block=60, at_least=1).rows[0][1] != base.bos_id
    assert TASK.metrics(base, None, SUMMARISED[:2], block=40)["documents"] == 2
    with pytest.raises(InvalidParameter, match="no room for a document and a summary"):
        summary_of(base, "The fox jumps over all of them.", block=8)


# --- overlap of texts ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("guess", "reference", "match", "f1"),
    [
        ("The Fox!", "fox", 1, 1),
        ("a  red fox", "the red-fox", 0, 0),
        ("red fox", "red dog", 0, 0.5),
        ("", "", 1, 1),
        ("the", "", 1, 1),
        ("fox", "", 0, 0),
        ("fox fox dog", "fox dog dog", 0, 2 / 3),
    ],
)
def test_squads_match_and_f1(guess, reference, match, f1):
    assert exact_match(guess, reference) == match
    assert token_f1(guess, reference) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("guess", "reference", "scores"),
    [
        ("police killed the gunman", "police kill the gunman", (3 / 4, 1 / 3, 3 / 4)),
        ("the gunman kill police", "police kill the gunman", (1, 1 / 3, 2 / 4)),
        ("The cat, the cat.", "the cat", (2 * 2 / 6, 2 * 1 / 4, 2 * 2 / 6)),
        ("", "fox", (0, 0, 0)),
        ("...", "!", (0, 0, 0)),
        ("Ünï 7", "ünï 7", (1, 1, 1)),
    ],
)
def test_rouge_by_hand(guess, reference, scores):
    assert tuple(rouge(guess, reference).values()) == pytest.approx(scores)


WORDS = st.lists(st.sampled_from("abcd"), max_size=9)


@given(WORDS, WORDS)
def test_rouge_is_symmetric_a_share_and_one_only_for_the_same(ours, theirs):
    one, other = rouge(" ".join(ours), " ".join(theirs)), rouge(" ".join(theirs), " ".join(ours))
    assert one == pytest.approx(other)
    assert all(0 <= score <= 1 for score in one.values())
    assert one["rougeL"] <= one["rouge1"] + 1e-12
    assert (one["rougeL"] == 1) == (ours == theirs != [])


@given(WORDS, WORDS)
def test_the_longest_common_subsequence_is_that_of_its_definition(ours, theirs):
    from itertools import combinations

    def within(words):
        return {part for size in range(len(words) + 1) for part in combinations(words, size)}

    longest = max(len(part) for part in within(ours) & within(theirs))
    total = len(ours) + len(theirs)
    assert rouge(" ".join(ours), " ".join(theirs))["rougeL"] == pytest.approx(2 * longest / total if longest else 0)
