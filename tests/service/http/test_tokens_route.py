"""Tokens in and out, what is refused of embeddings, and the BOS in front of texts: one and never two."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from registry.base_model import BaseText, load_base
from registry.errors import InvalidPrompt
from registry.spec import BaseEntry
from service.http.answers.generation import CompletionAnswers
from service.http.answers.token_text import TokenText
from service.http.models.named_models import ResolvedModel
from service.http.schemas.generation import CompletionRequest
from tests.service.answers import answered, refusal
from tests.service.http.stock import push_embedded
from tests.service.passages import passages
from tests.service.sentencepiece import sentencepiece_tokenizer
from tests.service.servers import World

SETTINGS = {"engine_share_prompts": "off"}  # answers to one prompt are compared to the last bit and token
BOS = "<|endoftext|>"
TEXT = "The quick brown fox jumps over the lazy dog."
LONG = "Heat the oil, add the onions and stir until they are golden. " * 8
"""Several windows of the context."""


PROMPT = [0, 40, 41, 42, 43, 44]
TOKENS = 8


def post(world: World, path: str, **body: Any) -> Any:
    return world.client.post(path, json={"model": "tiny", **body})


def answer_to(world: World, path: str, **body: Any) -> Any:
    return answered(post(world, path, **body))


def test_there_and_back(world: World) -> None:
    text = "The quick brown fox — é \N{GRINNING FACE}\n"
    with_bos = post(world, "/tokenize", prompt=text).json()
    assert (with_bos["tokens"][0], with_bos["count"], with_bos["max_model_len"]) == (0, len(with_bos["tokens"]), 64)
    assert with_bos["token_strs"] is None
    bare = post(world, "/tokenize", prompt=text, add_special_tokens=False, return_token_strs=True).json()
    assert (bare["tokens"], len(bare["token_strs"])) == (with_bos["tokens"][1:], bare["count"])
    for tokens, prompt in ((bare["tokens"], text), (with_bos["tokens"], "<|endoftext|>" + text), ([], "")):
        assert post(world, "/detokenize", tokens=tokens).json() == {"prompt": prompt}
    assert post(world, "/tokenize", prompt="").json()["tokens"] == [0]
    assert post(world, "/tokenize", prompt=BOS + text).json() == with_bos


def test_the_tokenizer_is_described(world: World) -> None:
    world.push("team/adapter")
    for model in ("tiny", "base/tiny", "team/adapter"):
        info = world.client.get("/tokenizer_info", params={"model": model}).json()
        expected = {"vocab_size": 300, "max_model_len": 64, "bos_token_id": 0, "bos_is_added": True}
        expected |= {"model": model, "base_model": "tiny", "bos_token": BOS, "eos_token": BOS, "chat_template": None}
        assert {name: info[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/detokenize", {"tokens": [300]}, "vocabulary"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "'messages' is not known"),
        ("/v1/embeddings", {"input": ""}, "is empty"),
        ("/v1/embeddings", {"input": ["a", ""]}, "Text 1"),
        ("/v1/embeddings", {"input": "word " * 200}, "context"),
        ("/v1/embeddings", {"input": "a", "dimensions": 8}, "32 dimensions"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_what_is_wrong_is_refused(world: World, path: str, body: dict[str, Any], words: str) -> None:
    assert words in refusal(post(world, path, **body), 400)


@given(st.lists(st.integers(1, 299), max_size=12))
def test_bytes_of_tokens_join_to_the_text(world: World, tokens: list[int]) -> None:
    base = world.runtime.bases["tiny"].text
    words = TokenText(base)
    joined = b"".join(bytes(words.data(token) or b"") for token in tokens)
    assert joined.decode("utf-8", "replace") == base.tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
    offsets = words.offsets(tokens, start=3)
    assert offsets == sorted(offsets)
    assert all(offset >= 3 for offset in offsets)


def test_different_tokens_never_look_the_same(world: World) -> None:
    words = TokenText(world.runtime.bases["tiny"].text)
    assert len({words.text(token) for token in range(300)}) == 300


@pytest.fixture(scope="module")
def sentencepiece(world: World) -> BaseText:
    """The tiny base with a tokenizer whose tokens carry the space before a word."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=sentencepiece_tokenizer())
    return replace(world.runtime.bases["tiny"].text, tokenizer=tokenizer)


def test_tokens_keep_their_spaces(sentencepiece: BaseText) -> None:
    words = TokenText(sentencepiece)
    tokens = sentencepiece.tokenize("a ab a", bos=False)
    assert [words.text(token) for token in tokens] == [" a", " a", "b", " a"]
    assert words.offsets(tokens) == [0, 1, 3, 4]


def test_byte_tokens_have_their_bytes(sentencepiece: BaseText) -> None:
    words = TokenText(sentencepiece)
    tokens = sentencepiece.tokenize("a日b", bos=False)
    assert [words.text(token) for token in tokens] == [" a", "<0xE6>", "<0x97>", "<0xA5>", "b"]
    assert [words.data(token) for token in tokens[1:4]] == [[0xE6], [0x97], [0xA5]]
    assert words.offsets(tokens) == [0, 1, 2, 2, 2]


def test_the_chosen_token_has_its_own_log_probability(sentencepiece: BaseText) -> None:
    """Also beside a likelier token of the same text: here a byte."""
    letter, byte = sentencepiece.tokenizer.convert_tokens_to_ids(["a", "<0x61>"])
    body = CompletionRequest(model="tiny", prompt="a", logprobs=1)
    answers = CompletionAnswers(body, ResolvedModel("tiny", "tiny", sentencepiece), [])
    arrays = answers.arrays([(letter, -2.0, ((byte, -1.0),), 0)])
    assert (arrays["top_logprobs"], arrays["token_logprobs"]) == ([{"a": -2.0}], [-2.0])


def test_echoed_ids_and_their_offsets_speak_of_the_same_text(world: World) -> None:
    """Special tokens among them included: harnesses cut the text by these offsets."""
    words = TokenText(world.runtime.bases["tiny"].text)
    tokens = [0, *world.runtime.bases["tiny"].text.tokenize("a b", bos=False)]
    text = words.decode(tokens)
    assert text == "<|endoftext|>a b"
    assert text[words.offsets(tokens)[1] :] == "a b"
    answer = post(world, "/v1/completions", prompt=tokens, echo=True, logprobs=0, max_tokens=0).json()["choices"][0]
    assert answer["text"] == text
    assert answer["logprobs"]["text_offset"] == words.offsets(tokens)


@pytest.mark.parametrize(
    ("path", "field"), [("/detokenize", "tokens"), ("/v1/completions", "prompt"), ("/v1/embeddings", "input")]
)
def test_absurdly_many_ids_are_too_large(world: World, path: str, field: str) -> None:
    assert "1000001 token ids" in refusal(post(world, path, **{field: [1] * 1_000_001}), 413)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/perplexity", {"texts": [0] * 100}),
        ("/v1/chat/completions", {"messages": [0] * 100}),
        ("/detokenize", {"tokens": ["a"] * 100}),
    ],
)
def test_a_list_ends_at_its_first_bad_entry(world: World, path: str, body: dict[str, Any]) -> None:
    """An error for each of millions of entries would cost the server its memory."""
    error = post(world, path, **body).json()["error"]
    assert error["code"] == "invalid_parameter"
    assert "problems" not in error


@given(st.text(max_size=30))
def test_offsets_point_at_characters(world: World, text: str) -> None:
    base = world.runtime.bases["tiny"].text
    words = TokenText(base)
    tokens = base.tokenize(text, bos=False)
    for token, offset in zip(tokens, words.offsets(tokens), strict=True):
        whole = words.text(token)
        if bytes(words.data(token) or b"").decode("utf-8", "ignore") == whole:
            assert text[offset : offset + len(whole)] == whole


# --- the BOS --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def greedy_tokens(tiny_base_dir: Path) -> list[int]:
    """The tokens that the tiny base generates after the prompt, greedily."""
    base = load_base(BaseEntry(id="tiny", source=str(tiny_base_dir)))
    ids = torch.tensor([PROMPT])
    out = base.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0
    )
    return [int(token) for token in out[0, len(PROMPT) :]]


@pytest.fixture(scope="module")
def served(tiny_base_dir: Path, greedy_tokens: list[int], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny base, and a copy in whose tokenizer the last token it says is special and listed."""
    folder = Path(shutil.copytree(tiny_base_dir, tmp_path_factory.mktemp("ends") / "model"))
    file = folder / "tokenizer.json"
    saved = json.loads(file.read_text())
    text = next(text for text, token in saved["model"]["vocab"].items() if token == greedy_tokens[-1])
    saved["added_tokens"].append({**saved["added_tokens"][0], "id": greedy_tokens[-1], "content": text})
    file.write_text(json.dumps(saved))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, greedy_tokens[-1]]}))
    return {"tiny": tiny_base_dir, "listed": folder}


def scored(world: World, prompt: Any, **body: Any) -> Any:
    """The log-probabilities of a prompt."""
    answer = answer_to(world, "/v1/completions", prompt=prompt, echo=True, logprobs=1, max_tokens=0, **body)
    return answer["choices"][0]["logprobs"]


def test_the_first_token_of_a_text_has_the_probability_that_follows_the_bos(world: World) -> None:
    ids = answer_to(world, "/tokenize", prompt=TEXT)["tokens"]
    assert ids[0] == 0
    from_ids = scored(world, ids)
    assert from_ids["token_logprobs"][0] is None  # nothing precedes the BOS itself
    text = scored(world, TEXT)
    assert text["token_logprobs"] == from_ids["token_logprobs"][1:]
    assert text["top_logprobs"] == from_ids["top_logprobs"][1:]
    assert text["text_offset"][0] == 0
    assert text["token_logprobs"][0] < 0
    total = answer_to(world, "/v1/perplexity", texts=[TEXT])["texts"][0]["nll"]
    assert -sum(text["token_logprobs"]) == pytest.approx(total, rel=1e-5)


def test_a_text_of_nothing_but_the_bos_has_no_token_to_score(world: World) -> None:
    answer = post(world, "/v1/perplexity", texts=[BOS])
    assert "nothing to score" in refusal(answer, 400)
    assert answer.json()["error"]["param"] == "texts"
    both = answer_to(world, "/v1/perplexity", texts=[TEXT, BOS])
    assert both["perplexity"] == answer_to(world, "/v1/perplexity", texts=[TEXT])["perplexity"]


def test_a_vector_does_not_change_with_the_bos(world: World) -> None:
    data = answer_to(world, "/v1/embeddings", input=[TEXT, BOS + TEXT])["data"]
    assert data[0]["embedding"] == data[1]["embedding"]
    (sample,) = world.runtime.engine.embed("tiny", [LONG])
    (with_bos,) = world.runtime.engine.embed("tiny", [BOS + LONG])
    assert with_bos.vector.tolist() == sample.vector.tolist()
    assert (with_bos.nll, with_bos.tokens) == (sample.nll, sample.tokens)


def test_a_text_of_nothing_but_the_bos_has_no_vector(world: World) -> None:
    answer = post(world, "/v1/embeddings", input=[TEXT, BOS])
    assert refusal(answer, 400) == "Text 1 is empty but for the BOS: there is nothing to embed."
    assert answer.json()["error"]["param"] == "input.1"
    with pytest.raises(InvalidPrompt, match="Text 1 is empty but for the BOS"):
        world.runtime.engine.embed("tiny", [TEXT, BOS])


def test_a_passage_of_nothing_but_the_bos_counts_as_an_empty_one(world: World) -> None:
    sample = push_embedded(world, "acme/court", [*passages("court", 25), BOS, f" {BOS}\n"])["sample"]
    assert (sample["received"], sample["empty"], sample["kept"]) == (27, 2, 25)
    picked = world.client.post(
        "/v1/soups", json={"sample": {"texts": [BOS] * 30}, "pool": {"base_model": "tiny"}, "wait": 5}
    )
    assert picked.json()["error"]["message"].startswith("The sample has 0 different non-empty passages")


def test_a_listed_special_token_ends_a_completion(world: World, greedy_tokens: list[int]) -> None:
    def completion_end(model: str) -> Any:
        body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": TOKENS + 2, "stop": None}
        answer = world.client.post("/v1/completions", json=body).json()
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert 0 not in greedy_tokens
    assert completion_end("listed") == (greedy_tokens.index(greedy_tokens[-1]) + 1, "stop")
    assert completion_end("tiny") == (TOKENS + 2, "length")
