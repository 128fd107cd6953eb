"""JSON mode: whatever a model would rather say, an answer that ends is JSON of its schema, alone and beside others."""

from __future__ import annotations

import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from registry.base_model import BaseText, LoadedBase, load_base, load_text
from registry.errors import InvalidParameter, SoupError, TooLarge, Unavailable
from registry.spec import BaseEntry
from service.engine import Completion, GenerateRequest, SamplingParams
from service.engine.engine import Engine
from service.engine.grammars import LIMITS, Grammar, Grammars, GrammarState
from service.engine.json_schema import ANY_OBJECT, MAX_CHARS, validate_schema
from service.engine.sampler import Draw, RandomStream, sample_tokens
from service.engine.text_support import stop_token_ids
from tests.service.engine.stepping import answered, greedy, run, tokens_of
from tests.service.loaded_bases import LoadedBases
from tests.service.sentencepiece import sentencepiece_tokenizer
from tests.tiny_models import build_tiny_base, with_special

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars()


def text_of(schema: dict[str, Any] | None) -> str | None:
    return None if schema is None else validate_schema(schema)


def compiled(grammars: Grammars, base: BaseText, schema: dict[str, Any]) -> Grammar:
    return grammars.compile(base, stop_token_ids(base), validate_schema(schema))


# --- schemas that can be followed, of everything that is supported -----------------------------------


def numbers(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    bounds = st.integers(-50, 50) if kind == "integer" else st.integers(-50, 50).map(lambda tenths: tenths / 4)

    def between(pair: tuple[Any, Any], *, exclusive: bool) -> dict[str, Any]:
        low, high = sorted(pair)
        if exclusive:
            return {"type": kind, "exclusiveMinimum": low, "exclusiveMaximum": high + 2}
        return {"type": kind, "minimum": low, "maximum": high}

    return st.one_of(
        st.just({"type": kind}),
        st.builds(between, st.tuples(bounds, bounds), exclusive=st.booleans()),
        bounds.map(lambda low: {"type": kind, "minimum": low}),
        bounds.map(lambda high: {"type": kind, "exclusiveMaximum": high}),
    )


TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=4)
STRINGS = st.one_of(
    st.just({"type": "string"}),
    st.builds(
        lambda least, more: {"type": "string", "minLength": least, "maxLength": least + more},
        st.integers(0, 4),
        st.integers(0, 4),
    ),
    st.sampled_from([r"^[a-c]{2,5}$", r"^\d", r'^"\\?$', r"^(yes|no)$", "^é+$", r"^\w+ \w+$", "^(x|y)"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
    st.sampled_from(["date", "time", "date-time", "uuid", "ipv4"]).map(lambda form: {"type": "string", "format": form}),
)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
PLAIN = st.one_of(
    STRINGS,
    numbers("integer"),
    numbers("number"),
    st.sampled_from(["null", "boolean"]).map(lambda kind: {"type": kind}),
    JSON_VALUES.map(lambda value: {"const": value}),
    st.lists(JSON_VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
    st.just({"type": ["string", "null", "integer"]}),
    st.just({}),
    st.just(True),
)


def arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.builds(
            lambda item, least, more: {"type": "array", "items": item, "minItems": least, "maxItems": least + more},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(lambda first: {"type": "array", "prefixItems": first, "items": False}, st.lists(inner, max_size=2)),
    )


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    properties = draw(st.dictionaries(TEXT, inner, max_size=3))
    required = [name for name in properties if draw(st.booleans())]
    schema = {"type": "object", "properties": properties, "required": required, "title": "a thing"}
    return schema | draw(
        st.sampled_from([{}, {"additionalProperties": False}, {"additionalProperties": {"type": "null"}}])
    )


SCHEMAS = st.recursive(
    PLAIN,
    lambda inner: (
        arrays(inner) | objects(inner) | st.lists(inner, min_size=1, max_size=2).map(lambda of: {"anyOf": of})
    ),
    max_leaves=5,
).filter(lambda schema: isinstance(schema, dict))
LINKED = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}, "n": {"type": "integer"}},
            "required": ["next", "n"],
        }
    },
    "$ref": "#/$defs/node",
}
ONE_OF = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": kind}, kind: {"type": "boolean"}},
            "required": ["kind", kind],
            "additionalProperties": False,
        }
        for kind in ("cat", "dog")
    ],
    "discriminator": {"propertyName": "kind"},
}


def written(base: BaseText, grammar: Grammar, seed: int, *, free: int = 25, most: int = 400) -> str:
    """The text of an answer whose tokens are drawn at random from those allowed; after `free` those that end it."""
    draw, walk, ids = random.Random(seed), GrammarState(grammar), list[int]()
    ends = stop_token_ids(base)
    closing = [base.tokenize(sign, bos=False)[0] for sign in '"}],:']
    while len(ids) < most:
        allowed = walk.allowed.nonzero()[:, 0].tolist()
        quick = [token for token in (*ends, *closing) if token in allowed] if len(ids) >= free else []
        token = quick[0] if quick else draw.choice(allowed)
        if token in ends:
            break
        ids.append(token)
        if walk.advance(token):
            break
    else:
        raise AssertionError(f"no end after {most} tokens: {base.tokenizer.backend_tokenizer.decode(ids)!r}")
    return str(base.tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=True))


def check_follows(text: str, schema: dict[str, Any]) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(text))


@given(SCHEMAS, st.integers(0, 2**32))
@settings(max_examples=300)
def test_what_comes_to_an_end_is_json_of_the_schema(
    base: LoadedBase, grammars: Grammars, schema: dict[str, Any], seed: int
) -> None:
    check_follows(written(base, compiled(grammars, base, schema), seed), schema)


HARD = {"type": "string", "pattern": r"^(.*\w.{10,40}\W.*){20,30}$"}
"""Its regular expression gets ever more states as the text goes on."""


# --- engine ---------------------------------------------------------------------------------------


def ask(base: LoadedBase, schema: dict[str, Any] | None, seed: int, **more: Any) -> GenerateRequest:
    """A request that any model answers with JSON in time: quotes and brackets are made likely."""
    signs = tuple((base.tokenize(sign, bos=False)[0], 100.0) for sign in '"}],:0')
    params = SamplingParams(**{"max_tokens": 50, "seed": seed, "logit_bias": signs, "temperature": 30.0, **more})
    return GenerateRequest("tiny", tuple(base.tokenize("A soup")), params=params, schema=text_of(schema))


@pytest.mark.parametrize("temperature", [0.0, 30.0, 100.0])
@pytest.mark.parametrize("schema", [json.loads(ANY_OBJECT), PERSON, LINKED, ONE_OF])
def test_an_answer_that_stops_is_json_of_its_schema(
    base: LoadedBase, schema: dict[str, Any], temperature: float
) -> None:
    engine = Engine(LoadedBases(base))
    requests = [ask(base, schema, seed, n=4, temperature=temperature) for seed in range(4)]  # 16 rows
    choices = [choice for answer in answered(engine, *requests) for choice in answer.choices]
    ended = [choice for choice in choices if choice.finish_reason == "stop"]
    assert temperature == 0 or len(ended) >= len(choices) / 4
    for choice in ended:
        check_follows(choice.text, schema)
    for choice in choices:
        if choice.finish_reason == "length":
            assert len(choice.token_ids) == 50
            with pytest.raises(ValueError, match=r"delimiter|Unterminated|Expecting"):
                json.loads(choice.text)


def test_a_special_token_without_an_embedding_changes_no_answer(base: LoadedBase, tmp_path: Path) -> None:
    folder = with_special(build_tiny_base(tmp_path / "base"), "<image>")
    larger = load_base(BaseEntry(id="tiny", source=str(folder)))
    choice = greedily(larger, PERSON, 50, logit_bias=ask(larger, None, 0).params.logit_bias)
    assert choice == greedily(base, PERSON, 50, logit_bias=ask(base, None, 0).params.logit_bias)
    check_follows(choice.text, PERSON)


def test_a_row_is_independent_of_its_batch_mates(base: LoadedBase) -> None:
    schemas = [None, PERSON, {"type": "object"}, None, {"type": "integer"}, PERSON]
    requests = [ask(base, schema, seed, temperature=seed % 3 * 20.0) for seed, schema in enumerate(schemas)]

    alone = [tokens_of(Engine(LoadedBases(base)), request)[0] for request in requests]
    assert tokens_of(Engine(LoadedBases(base)), *requests) == alone


def greedily(base: LoadedBase, schema: dict[str, Any], tokens: int, **params: Any) -> Completion:
    """The only choice of a request at temperature zero."""
    request = GenerateRequest("tiny", (5,), params=greedy(tokens, **params), schema=text_of(schema))
    [answer] = answered(Engine(LoadedBases(base)), request)
    return answer.choices[0]


def test_a_bias_towards_what_is_not_allowed_changes_nothing_that_is_said(base: LoadedBase) -> None:
    [letter] = base.tokenize("T", bos=False)
    choice = greedily(base, {"enum": ["left", "right"]}, 20, logit_bias=((letter, 100.0), (0, 100.0)))
    assert json.loads(choice.text) in {"left", "right"}
    assert choice.finish_reason == "stop"
    assert 0 not in choice.token_ids, "it is complete without an end"


def test_what_may_go_on_ends_with_the_end_of_a_text(base: LoadedBase) -> None:
    schema, nine = {"type": "integer", "minimum": 0}, base.tokenize("9", bos=False)[0]
    biases = (((nine, 100.0), (0, 99.0)), ((nine, 50.0), (0, 100.0)))
    long, short = (greedily(base, schema, 4, logit_bias=bias) for bias in biases)
    assert (long.text, long.finish_reason) == ("9999", "length")
    assert (short.text, short.finish_reason, short.token_ids[-1]) == (short.token_ids and "9", "stop", 0)


def test_a_stop_text_cuts_where_it_stands(base: LoadedBase) -> None:
    choice = greedily(base, {"const": {"a": "xyz", "b": 1}}, 40, stop=("y",))
    assert "".join(choice.text.split()) == '{"a":"x'
    assert choice.finish_reason == "stop"


def test_log_probabilities_are_those_of_the_model(base: LoadedBase) -> None:
    choice = greedily(base, {"const": "ab"}, 9, logprobs=1)
    assert choice.text == '"ab"'
    with torch.inference_mode():
        logits = base.model(torch.tensor([[5, *choice.token_ids]])).logits[0]
    expected = torch.log_softmax(logits, dim=-1)[range(len(choice.token_ids)), list(choice.token_ids)]
    assert choice.token_logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_a_schema_that_takes_too_much_work_fails_its_own_request_alone(
    base: LoadedBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(LIMITS, "max_lexer_states", 400)  # within the tiny model's 64 tokens
    engine = Engine(LoadedBases(base))
    params = SamplingParams(max_tokens=60, temperature=100.0, seed=1)
    hard = engine.submit(GenerateRequest("tiny", (5,), params=params, schema=text_of(HARD)))
    easy = engine.submit(ask(base, PERSON, 3))
    run(engine)
    with pytest.raises(InvalidParameter, match=r"cannot be followed: after \d+ tokens, .*too many"):
        hard.result(0)
    check_follows(easy.result(0).choices[0].text, PERSON)
    assert engine.counters()["requests"] == 0


@given(
    st.integers(0, 2**32),
    st.sets(st.integers(0, 39), min_size=1),
    st.sampled_from([0.0, 1.0, 50.0]),
    st.sampled_from([None, 1, 5]),
    st.sampled_from([0.2, 1.0]),
    st.sampled_from([0.0, 0.5]),
)
def test_only_what_is_allowed_is_drawn(
    seed: int, allowed_tokens: set[int], temperature: float, top_k: int | None, top_p: float, min_p: float
) -> None:
    logits = torch.randn(1, 40, generator=torch.Generator().manual_seed(seed)) * 10
    allowed = torch.zeros(40, dtype=torch.bool)
    allowed[list(allowed_tokens)] = True
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    [token] = sample_tokens(logits, [Draw(params, RandomStream(seed, 0), 0, allowed=allowed)])
    assert token in allowed_tokens
    everything = torch.ones(40, dtype=torch.bool)
    plain, same = (
        sample_tokens(logits, [Draw(params, RandomStream(seed, 0), 0, allowed=mask)]) for mask in (None, everything)
    )
    assert plain == same
    assert sample_tokens(logits * torch.nan, [Draw(params, RandomStream(seed, 0), 0, allowed=allowed)]) == [None]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth - 1):
        schema = {"type": "array", "items": schema}
    return schema


def chained(length: int, deep: int) -> dict[str, Any]:
    """Schemas each of which names the next, from inside of so many others."""
    named: dict[str, Any] = {f"d{length}": {"type": "null"}}
    for number in range(length):
        schema: dict[str, Any] = {"anyOf": [{"$ref": f"#/$defs/d{number + 1}"}]}
        for _ in range(deep):
            schema = {"anyOf": [schema]}
        named[f"d{number}"] = schema
    return {"$ref": "#/$defs/d0", "$defs": named}


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"uniqueItems": True}, "uniqueItems"),
        ({"properties": {"a": {"not": {}}}}, '"not"'),
        ({"items": {"multipleOf": 3}}, "'multipleOf' is not supported"),
        ({"properties": {"multipleOf": {"multipleOf": 3}}}, "'multipleOf' is not supported"),
        ({"minProperties": 1}, "'minProperties' is not supported"),
        ({"patternProperties": {"a": {"allOf": [{}]}}}, "'allOf' is not supported"),
        ({"x-guidance": {"item_separator": ";"}}, "'x-guidance' is not supported"),
        ({"properties": {"a": {"$id": "http://a/b", "$ref": "#/$defs/x"}}}, "'$id' is not supported"),
        ({"items": {"id": "http://a/b"}}, "'id' is not supported"),
        ({"allOf": [{}]}, "'allOf' is not supported"),
        ({"anyOf": [{}], "type": "object"}, "'type' beside 'anyOf' is not supported"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}, "minimum": 1}, "'minimum' beside '$ref'"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"if": {}}}}, '"if"'),
        ({"$ref": "http://127.0.0.1/x.json"}, "'$ref' names no schema of this one"),
        ({"$ref": "file:///etc/passwd"}, "'$ref' names no schema of this one"),
        ({"$ref": 5}, "'$ref' names no schema of this one"),
        ({"$ref": "#/$defs/gone"}, "gone"),
        ({"properties": {"a": {"$ref": "#/default"}}, "default": {"multipleOf": 7}}, "'$ref' names no schema"),
        ({"$ref": "#/$defs/a/const", "$defs": {"a": {"const": {"allOf": []}}}}, "'$ref' names no schema"),
        ({"$ref": "#/$defs/a%2Fdefault", "$defs": {"a": {"default": {"multipleOf": 7}}}}, "names no schema"),
        ({"$ref": "#"}, "cannot be followed"),
        ({"anyOf": []}, "anyOf is empty"),
        ({"type": "array", "prefixItems": [{"$ref": "#"}], "minItems": -1}, "positive integer for 'minItems'"),
        ({"type": "string", "format": "iri"}, "Unknown format: iri"),
        ({"type": "string", "format": ["date"]}, "Expected string for 'format'"),
        ({"type": "thing"}, "thing"),
        ({"type": "string", "pattern": "^(?=a)b$"}, "cannot be followed: regex parse error"),
        ({"type": "string", "pattern": "(a"}, "cannot be followed: regex parse error"),
        ({"type": "string", "pattern": 5}, "cannot be followed"),
        ({"type": "integer", "minimum": 2, "maximum": 1}, "cannot be followed: "),
        ({"type": "integer", "maximum": 10**400}, "number out of range"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 1}]}, "must exclude each other"),
        ({"enum": []}, "cannot be followed"),
        ({"properties": {"a": 5}}, "schema must be an object"),
        ({"properties": []}, "properties must be an object"),
        ({"anyOf": {}}, "anyOf must be an array"),
        (nested(200), "recursion limit exceeded"),
        (nested(2000), "too deep inside of each other"),
        ({"required": "a", "type": "object"}, "cannot be followed"),
        ({"const": "a\x01b"}, "a control character is not supported"),
        ({"const": "\\\x01"}, "a control character is not supported"),
        ({"enum": [1, {"a": ["\x7f"]}]}, "a control character is not supported"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(
    base: LoadedBase, grammars: Grammars, schema: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidParameter, match=re.escape(words)) as caught:
        compiled(grammars, base, schema)
    assert caught.value.param == "response_format"
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 400


def test_names_and_values_are_no_keywords() -> None:
    properties = {"allOf": {"const": {"multipleOf": 2}}, "anyOf": {"type": "string", "default": "\\u0001"}}
    validate_schema({"properties": properties, "required": ["allOf"]})


def test_the_bounds_of_a_schema() -> None:
    fits = {"enum": ["a" * (MAX_CHARS - len('{"enum":[""]}'))]}
    assert len(validate_schema(fits)) == MAX_CHARS
    with pytest.raises(TooLarge, match="at most 65536 are taken"):
        validate_schema({"enum": [fits["enum"][0] + "a"]})


@pytest.mark.parametrize(("length", "deep"), [(1300, 0), (60, 30), (500, 1)])
def test_references_that_would_overflow_the_compilers_stack_are_refused(length: int, deep: int) -> None:
    """Compiled, these end the process: llguidance 1.9.1 follows references on its stack."""
    with pytest.raises(TooLarge, match=r"levels; the maximum is 1000"):
        validate_schema(chained(length, deep))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(2000)}},
        {"anyOf": [{"type": "array", "items": {"type": "string", "maxLength": n}} for n in range(1, 900)]},
        {"enum": [f"x{n}" * 4 for n in range(4000)]},
        {"type": "string", "pattern": r"^((a{1,100}){1,100}){1,100}$"},
        {"type": "string", "pattern": "^(" + "|".join(f".*{c}.{{20}}" for c in "abcdefgh") + ")*$"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
        {"type": "string", "minLength": 10**9, "maxLength": 10**12},
        {
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}, "b": {"$ref": "#/$defs/a"}},
            "$ref": "#/$defs/a",
        },
        {
            "$defs": {
                "x": {
                    "anyOf": [{"type": "array", "items": {"$ref": "#/$defs/x"}, "maxItems": most} for most in range(30)]
                }
            },
            "$ref": "#/$defs/x",
        },
        {"const": [[[[[[[[]]]]]]]] * 500},
        {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"properties": {name: {"type": "string", "maxLength": 60_000} for name in "abc"}, "required": ["a", "b"]},
        chained(300, 0),
    ],
)
def test_hostile_schemas_are_followed_or_refused(base: LoadedBase, grammars: Grammars, schema: dict[str, Any]) -> None:
    try:
        walk, draw = GrammarState(compiled(grammars, base, schema)), random.Random(1)
        for _ in range(60):
            if walk.advance(draw.choice(walk.allowed.nonzero()[:, 0].tolist())):
                break
    except SoupError as error:
        assert error.message.startswith("The JSON schema")  # noqa: PT017  # followed is as good


# --- grammars -------------------------------------------------------------------------------------


def test_no_request_wears_a_schema_out_for_the_next_one(base: LoadedBase, grammars: Grammars) -> None:
    """States that limits count are made by walking: as many answers as there are find the schema as it was."""
    schema = {"type": "object", "properties": {"summary": {"type": "string", "maxLength": 4000}}}
    first = [written(base, compiled(grammars, base, schema), seed) for seed in range(3)]
    for seed in range(12):
        written(base, compiled(grammars, base, schema), seed)
    assert [written(base, compiled(grammars, base, schema), seed) for seed in range(3)] == first


def test_nor_does_one_choice_for_the_next(base: LoadedBase, grammars: Grammars) -> None:
    """Strings of the greatest length that a schema may have, written to their ends, each with other characters."""
    names = [f"p{number}" for number in range(5)]
    schema = {
        "type": "object",
        "required": names,
        "additionalProperties": False,
        "properties": {name: {"type": "string", "maxLength": 996 + at} for at, name in enumerate(names)},
    }
    grammar = compiled(grammars, base, schema)
    alone = [written(base, compiled(grammars, base, schema), seed, free=9000, most=9000) for seed in range(4)]
    assert [written(base, grammar, seed, free=9000, most=9000) for seed in range(4)] == alone


def test_bases_and_ends_have_grammars_of_their_own(base: LoadedBase, tmp_path: Path) -> None:
    grammars, schema = Grammars(), validate_schema({"type": "integer"})
    smaller_base = load_text(
        BaseEntry(id="tiny", source=str(build_tiny_base(tmp_path / "other", seed=3, vocab_size=290)))
    )
    plain, two_ends, smaller = (
        grammars.compile(base, (0,), schema),
        grammars.compile(base, (0, 5), schema),
        grammars.compile(smaller_base, (0,), schema),
    )
    assert (len(plain.first), len(smaller.first)) == (300, 290)
    walk, ends = GrammarState(two_ends), GrammarState(plain)
    digit = base.tokenize("7", bos=False)[0]
    for state in (walk, ends):
        state.advance(digit)
    assert (bool(walk.allowed[5]), bool(ends.allowed[5])) == (True, False)


def test_threads_get_the_same(base: LoadedBase) -> None:
    grammars, gate = Grammars(), threading.Barrier(8)

    def follow(number: int) -> str:
        gate.wait()
        return written(base, compiled(grammars, base, PERSON), number % 2)

    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(follow, range(8)))
    assert len(set(texts)) == 2


def test_a_base_without_an_end_is_refused(base: LoadedBase) -> None:
    with pytest.raises(InvalidParameter, match="no end-of-text token"):
        Grammars().compile(base, (), ANY_OBJECT)


class TestTokenizers:
    def text_of(self, base: LoadedBase, tokenizer: Any) -> BaseText:
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
        shape = base.shape.model_copy(update={"vocab_size": tokenizer.get_vocab_size() + 64})  # padded, as many are
        return BaseText(entry=base.entry, tokenizer=fast, shape=shape, bos_id=None, eos_id=fast.eos_token_id)

    def test_sentencepiece_with_bytes(self, base: LoadedBase) -> None:
        tokenizer = sentencepiece_tokenizer()
        text = self.text_of(base, tokenizer)
        for seed in range(20):
            grammar = compiled(Grammars(), text, PERSON)
            check_follows(written(text, grammar, seed), PERSON)
            assert not grammar.first[tokenizer.get_vocab_size() :].any()

    def test_a_model_that_lacks_the_tokens_that_a_schema_needs_is_refused(self, base: LoadedBase) -> None:
        small = replace(base, shape=base.shape.model_copy(update={"vocab_size": base.tokenize("0", bos=False)[0] + 1}))
        with pytest.raises(InvalidParameter, match="after 0 tokens of the answer nothing may follow"):
            compiled(Grammars(), small, PERSON)

    def test_one_whose_bytes_cannot_be_told_is_refused(self, base: LoadedBase) -> None:
        tokenizer = Tokenizer(models.WordPiece({"</s>": 0, "a": 1, "##b": 2}, unk_token="</s>"))
        tokenizer.decoder = decoders.WordPiece()
        with pytest.raises(Unavailable, match="tokenizer of base model 'tiny' cannot be used for answers in JSON"):
            compiled(Grammars(), self.text_of(base, tokenizer), PERSON)
