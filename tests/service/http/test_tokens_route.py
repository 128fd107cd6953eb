"""Tokens in and out, and what is refused of embeddings."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.http.answers.token_text import TokenText
from tests.service.answers import refusal
from tests.service.servers import World


def post(world: World, path: str, **body: Any) -> Any:
    return world.client.post(path, json={"model": "tiny", **body})


def test_there_and_back(world: World) -> None:
    text = "The quick brown fox — é \N{GRINNING FACE}\n"
    with_bos = post(world, "/tokenize", prompt=text).json()
    assert with_bos["tokens"][0] == 0
    assert with_bos["count"] == len(with_bos["tokens"])
    assert with_bos["max_model_len"] == 64
    assert with_bos["token_strs"] is None
    bare = post(world, "/tokenize", prompt=text, add_special_tokens=False, return_token_strs=True).json()
    assert bare["tokens"] == with_bos["tokens"][1:]
    assert len(bare["token_strs"]) == bare["count"]
    assert post(world, "/detokenize", tokens=bare["tokens"]).json() == {"prompt": text}
    assert post(world, "/detokenize", tokens=with_bos["tokens"]).json() == {"prompt": "<|endoftext|>" + text}
    assert post(world, "/detokenize", tokens=[]).json() == {"prompt": ""}
    assert post(world, "/tokenize", prompt="").json()["tokens"] == [0]


def test_the_tokenizer_is_described(world: World) -> None:
    world.push("team/adapter")
    for model in ("tiny", "base/tiny", "team/adapter"):
        info = world.client.get("/tokenizer_info", params={"model": model}).json()
        assert (info["model"], info["base_model"]) == (model, "tiny")
        assert (info["vocab_size"], info["max_model_len"], info["bos_token_id"]) == (300, 64, 0)
        assert info["bos_is_added"]
        assert (info["bos_token"], info["eos_token"], info["chat_template"]) == ("<|endoftext|>", "<|endoftext|>", None)


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


@pytest.mark.parametrize("path", ["/detokenize", "/v1/completions"])
def test_absurdly_many_ids_are_too_large(world: World, path: str) -> None:
    field = "tokens" if path == "/detokenize" else "prompt"
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
