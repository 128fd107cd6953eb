"""JSON mode: constrain sampling to tokens that keep an answer valid JSON of the requested schema.

A `Grammar` is a schema compiled by llguidance for the tokenizer of one base model; `Grammars` compiles them, in the
threads that serve requests. A `GrammarState` is the position of one answer in a grammar, used by the engine's thread.
The work and memory of each step are bounded (`LIMITS`): a schema that needs more ends its own request with an error.
Reasons: docs/decisions/0016-bos-and-json.md.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from torch import Tensor

from registry.base_model import BaseText
from registry.errors import InvalidParameter, Unavailable
from service.engine.json_schema import PARAM, schema_error

MAX_COMPILATIONS = 4
"""Schemas that are compiled at once: one takes milliseconds, a hostile one seconds and some hundred megabytes."""
WHITESPACE = r"(\n[ \t]{0,32}| )"
"""Whitespace between JSON tokens: one space, or a line break with indentation. Bounded, since small models would fill
their answer with nothing else."""
ESCAPES = 'nrtbf\\"'
"""Characters that may follow a backslash. With `\\u` a property's name could be spelt in a way that the compiler does
not match, and its value would escape its schema."""
COMPILER_OPTIONS: Any = {
    "whitespace_pattern": WHITESPACE,
    "json_allowed_escapes": ESCAPES,
    "lenient": False,
    "coerce_one_of": False,
}
LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,  # 4 ms
    "step_max_items": 20_000,  # 1 ms
    "max_items_in_row": 2_000,  # about 500 optional properties
    "max_lexer_states": 50_000,  # about nine for each character of a string whose length is bounded
    "max_grammar_size": 200_000,
}


class Grammar:
    """A JSON schema, compiled for one tokenizer and one request; raises InvalidParameter for one that cannot be.

    Its states share the lexer states that `LIMITS` counts: they suffice for all choices of a request with a reasonable
    schema, and a hostile one exhausts no other request's. `first` is bool (vocabulary,): the tokens that may begin an
    answer.
    """

    def __init__(self, tokenizer: LLTokenizer, vocabulary: int, schema: str) -> None:
        self._vocabulary = vocabulary
        try:
            source = LLMatcher.grammar_from_json_schema(schema, overrides=COMPILER_OPTIONS)
        except ValueError as error:  # a number out of its range, or schemas nested too deep
            raise schema_error(_first_line(str(error))) from error
        limits: dict[str, Any] = {**LIMITS, "verbose_errors": False}
        self._start = LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(**limits))
        if self._start.is_error():
            raise schema_error(_problem(self._start.get_error()))
        self.first = self.allowed(self._start, 0)

    def begin(self) -> LLMatcher:
        """Return a matcher at the beginning of an answer."""
        return self._start.deep_copy()

    def allowed(self, matcher: LLMatcher, position: int) -> Tensor:
        """Tokens that may follow at `position`, as bool (vocabulary,); raises InvalidParameter if none may."""
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise _matcher_error(matcher, position)
        mask = torch.from_numpy(np.unpackbits(bits, count=self._vocabulary, bitorder="little").view(np.bool_))
        if not bool(mask.any()):
            raise _dead_end(position)
        return mask


class GrammarState:
    """The position of one answer in a grammar."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._matcher: LLMatcher | None = None  # none while the request waits, to save memory
        self._position = 0
        self._allowed: Tensor | None = grammar.first

    @property
    def allowed(self) -> Tensor:
        """Tokens that may follow, as bool (vocabulary,), computed at the first use.

        Raises InvalidParameter if none may, or if the computation exceeds the limits.
        """
        if self._allowed is None:
            assert self._matcher is not None
            self._allowed = self._grammar.allowed(self._matcher, self._position)
        return self._allowed

    def advance(self, token: int) -> bool:
        """Consume an allowed token; return True if the answer is complete and nothing may follow.

        Raises InvalidParameter if this exceeds the limits.
        """
        matcher = self._grammar.begin() if self._matcher is None else self._matcher
        self._matcher = matcher
        self._position += 1
        if not matcher.consume_token(token):
            raise _matcher_error(matcher, self._position)
        if matcher.is_stopped():
            self._matcher = None
            return True
        self._allowed = None
        return False


class Grammars:
    """Compiles grammars in the threads that serve requests; caches the tokenizers."""

    def __init__(self) -> None:
        self._tokenizer_lock = threading.Lock()  # building one blocks all threads
        self._compiling = threading.Semaphore(MAX_COMPILATIONS)
        self._tokenizers: dict[Any, LLTokenizer] = {}

    def compile(self, base: BaseText, stop_ids: tuple[int, ...], schema: str) -> Grammar:
        """Compile a validated schema for a base model whose answers end with one of `stop_ids`.

        Raises InvalidParameter for a schema that cannot be followed, and for a base model without a stop token.
        """
        if not stop_ids:
            raise InvalidParameter(
                f"Base model '{base.entry.id}' has no end-of-text token, which answers in JSON need.", param=PARAM
            )
        key = (base.shape.fingerprint, stop_ids)
        with self._tokenizer_lock:
            if key not in self._tokenizers:
                self._tokenizers[key] = build_tokenizer(base, stop_ids)
            tokenizer = self._tokenizers[key]
        with self._compiling:
            return Grammar(tokenizer, base.shape.vocab_size, schema)


def build_tokenizer(base: BaseText, stop_ids: tuple[int, ...]) -> LLTokenizer:
    """Build llguidance's form of a base model's tokenizer; raises Unavailable if it does not support it."""
    backend = base.tokenizer.backend_tokenizer
    size = max(base.shape.vocab_size, backend.get_vocab_size(with_added_tokens=True))
    try:
        return LLTokenizer(backend.to_str(), n_vocab=size, eos_token=list(stop_ids), slices=LLTokenizer.json_slices())
    except ValueError as error:
        raise Unavailable(
            f"The tokenizer of base model '{base.entry.id}' cannot be used for answers in JSON: "
            f"{_first_line(str(error))}.",
            param=PARAM,
        ) from error


def _dead_end(position: int) -> InvalidParameter:
    return schema_error(f"after {position} tokens of the answer nothing may follow, and it is not complete")


def _matcher_error(matcher: LLMatcher, position: int) -> InvalidParameter:
    """The error of a matcher that failed at token `position`."""
    message = _first_line(matcher.get_error())
    if message.startswith("NoExtension"):
        return _dead_end(position)
    return schema_error(f"after {position} tokens, {message}")


def _problem(message: str) -> str:
    """The library's message, replaced where it would name an option that callers cannot set."""
    if message.startswith("oneOf"):
        return "the alternatives of a 'oneOf' must exclude each other, as by a property with another 'const' in each"
    return _first_line(message)


def _first_line(message: str) -> str:
    """The first line of the library's message, which may continue with the schema and its own state."""
    return message.partition("\n")[0].strip().rstrip(".")[:300]
