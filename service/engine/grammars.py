"""JSON mode: constrain sampling to tokens that keep an answer valid JSON of the requested schema.

A `Grammar` is a schema compiled by llguidance for the tokenizer of one base model; `Grammars` compiles them, in the
threads that serve requests. A `GrammarState` is the position of one answer in a grammar, used by the engine's thread.
The work and memory of each step are bounded (`LIMITS`): a schema that needs more ends its own request with an error.
Reasons: docs/decisions/0055-json-mode.md.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any, TypeVar

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from registry.base_model import BaseText
from registry.errors import InvalidParameter, Unavailable
from service.engine.json_schema import PARAM, schema_error

Made = TypeVar("Made")
MAX_TOKENIZERS = 16
MAX_COMPILATIONS = 4
"""Schemas; one takes milliseconds, a hostile one up to some hundred megabytes and seconds."""
ANY_OBJECT = '{"type":"object"}'
"""The schema of `json_object`."""
WHITESPACE = r"(\n[ \t]{0,32}| )"
"""What may stand between two signs of JSON: one space, or a line break with its indentation. Unbounded, an answer of
nothing else would be one, and small models give it."""
ESCAPES = 'nrtbf\\"'
"""What may follow a backslash. With `\\u` the name of a property could be written in a way that the compiler does not
know for it, and its value be of another type than its schema says."""
COMPILER_OPTIONS: Any = {
    "whitespace_pattern": WHITESPACE,
    "json_allowed_escapes": ESCAPES,
    "lenient": False,
    "coerce_one_of": False,
}
"""Options of the compiler for every schema."""
LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,  # 4 ms
    "step_max_items": 20_000,  # 1 ms
    "max_items_in_row": 2_000,  # about 500 optional properties
    "max_lexer_states": 50_000,  # about nine for each character of a string whose length is bounded
    "max_grammar_size": 200_000,
}


class Grammar:
    """A JSON schema, compiled for one tokenizer and for one request.

    All of its walks share the states that limits count: for a schema that may be followed there are enough of them for
    every walk, and of a hostile one no other request finds fewer.
    `first` are the tokens that an answer may begin with: (vocabulary,).

    Raises InvalidParameter for a schema that cannot be followed.
    """

    def __init__(self, tokenizer: LLTokenizer, vocabulary: int, schema: str) -> None:
        self.schema = schema
        self._vocabulary = vocabulary
        try:
            source = LLMatcher.grammar_from_json_schema(schema, overrides=COMPILER_OPTIONS)
        except ValueError as error:  # a number beyond any that it knows, or schemas too deep inside of each other
            raise schema_error(_first_line(str(error))) from error
        limits: dict[str, Any] = {**LIMITS, "verbose_errors": False}
        self._start = LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(**limits))
        if self._start.is_error():
            raise schema_error(_problem(self._start.get_error()))
        self.first = self.allowed(self._start, 0)

    def begin(self) -> LLMatcher:
        """A matcher at the beginning of an answer."""
        return self._start.deep_copy()

    def allowed(self, matcher: LLMatcher, position: int) -> Tensor:
        """Which tokens may be token `position` of an answer: bool (vocabulary,); raises InvalidParameter for none."""
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise _stuck(matcher, position)
        found = torch.from_numpy(np.unpackbits(bits, count=self._vocabulary, bitorder="little").view(np.bool_))
        if not bool(found.any()):
            raise _no_way_on(position)
        return found


class GrammarState:
    """The place of one answer in a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._matcher: LLMatcher | None = None  # a request that waits holds none
        self._position = 0
        self._allowed: Tensor | None = grammar.first

    @property
    def allowed(self) -> Tensor:
        """Which tokens may follow: bool (vocabulary,).

        Found out when it is first asked for; raises InvalidParameter for none, or where the limits do not suffice.
        """
        if self._allowed is None:
            assert self._matcher is not None
            self._allowed = self._grammar.allowed(self._matcher, self._position)
        return self._allowed

    def take(self, token: int) -> bool:
        """Go on by a token that was allowed; whether the answer is complete, and nothing may follow.

        Raises InvalidParameter where this takes more work than the limits leave.
        """
        matcher = self._grammar.begin() if self._matcher is None else self._matcher
        self._matcher = matcher
        self._position += 1
        if not matcher.consume_token(token):
            raise _stuck(matcher, self._position)
        if matcher.is_stopped():
            self._matcher = None
            return True
        self._allowed = None
        return False


class Grammars:
    """Makes grammars in the threads that serve requests; the tokenizers used last are kept."""

    def __init__(self) -> None:
        self._building = threading.Lock()  # of a tokenizer, which holds up every thread
        self._compiling = threading.Semaphore(MAX_COMPILATIONS)
        self._tokenizers: OrderedDict[Any, LLTokenizer] = OrderedDict()

    def grammar(self, base: BaseText, ends: tuple[int, ...], schema: str) -> Grammar:
        """The grammar of a checked schema for a base model whose answers end with one of `ends`.

        Raises InvalidParameter for a schema that cannot be followed, and for a base model without an end.
        """
        if not ends:
            raise InvalidParameter(
                f"Base model '{base.entry.id}' has no token that ends a text, which answers in JSON need.", param=PARAM
            )
        of = (base.shape.fingerprint, ends)
        with self._building:
            held = self._tokenizers
            if of not in held:
                held[of] = tokenizer_of(base, ends)
            held.move_to_end(of)
            if len(held) > MAX_TOKENIZERS:
                held.popitem(last=False)
            tokenizer = held[of]
        with self._compiling:
            return Grammar(tokenizer, base.shape.vocab_size, schema)


def tokenizer_of(base: BaseText, ends: tuple[int, ...]) -> LLTokenizer:
    """The bytes of a base model's tokens; raises Unavailable for a tokenizer of which they cannot be told."""
    backend = base.tokenizer.backend_tokenizer
    size = max(base.shape.vocab_size, backend.get_vocab_size(with_added_tokens=True))
    try:
        return LLTokenizer(backend.to_str(), n_vocab=size, eos_token=list(ends), slices=LLTokenizer.json_slices())
    except ValueError as error:
        raise Unavailable(
            f"The tokenizer of base model '{base.entry.id}' cannot be used for answers in JSON: "
            f"{_first_line(str(error))}.",
            param=PARAM,
        ) from error


def _no_way_on(position: int) -> InvalidParameter:
    return schema_error(f"after {position} tokens of the answer nothing may follow, and it is not complete")


def _stuck(matcher: LLMatcher, position: int) -> InvalidParameter:
    """The error of a matcher in its state of error."""
    said = _first_line(matcher.get_error())
    return _no_way_on(position) if said.startswith("NoExtension") else schema_error(f"after {position} tokens, {said}")


def _problem(message: str) -> str:
    """What the library says of a schema, but for what would name an option that nobody here can set."""
    if message.startswith("oneOf"):
        return "the alternatives of a 'oneOf' must exclude each other, as by a property with another 'const' in each"
    return _first_line(message)


def _first_line(message: str) -> str:
    """The beginning of what the library says, which may go on with the schema and its own state."""
    return message.partition("\n")[0].strip().rstrip(".")[:300]
