"""Token ids as the strings, bytes and character offsets of log-probabilities in answers.

Called by completions and chat. A token that is only a fragment of a character has no text; it is given as the
vocabulary spells it, so that only a letter and the byte token of the same letter look the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from registry.base_model import BaseText

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenText:
    """Texts and bytes of one base model's tokens, each read from the tokenizer once."""

    def __init__(self, base: BaseText) -> None:
        self._tokenizer = base.tokenizer
        self._cache: dict[int, tuple[str, bytes | None]] = {}

    def text(self, token: int) -> str:
        """Return the token as text."""
        return self._text_and_bytes(token)[0]

    def data(self, token: int) -> list[int] | None:
        """Return the UTF-8 bytes the token stands for, None if the vocabulary does not tell."""
        data = self._text_and_bytes(token)[1]
        return None if data is None else list(data)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return tokens as one text, special tokens included: the text that `offsets` refers to."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def offsets(self, tokens: Sequence[int], *, start: int = 0) -> list[int]:
        """Return the character offset of each token, counted from `start`."""
        offsets: list[int] = []
        position = start
        for index, token in enumerate(tokens):
            offsets.append(position)
            text, data = self._text_and_bytes(token)
            # continuation bytes (0b10......) begin no character
            position += len(text) if data is None else sum(byte & 0xC0 != 0x80 for byte in data)
            if index == 0 and REPLACEMENT not in (alone := self.decode([token])):
                position = start + len(alone)
        return offsets

    def _text_and_bytes(self, token: int) -> tuple[str, bytes | None]:
        if token not in self._cache:
            self._cache[token] = self._read(token)
        return self._cache[token]

    def _read(self, token: int) -> tuple[str, bytes | None]:
        alone = self.decode([token])
        if REPLACEMENT not in alone:
            text = self.decode([token, token])[len(alone) :]  # with the space that is dropped at the start of a text
            return text, text.encode()
        spelled = str(self._tokenizer.convert_ids_to_tokens(token))
        if byte := re.fullmatch("<0x([0-9A-F]{2})>", spelled):
            return spelled, bytes.fromhex(byte[1])
        table = _byte_letters()
        if all(letter in table for letter in spelled):
            return spelled, bytes(table[letter] for letter in spelled)
        return spelled, None


@cache
def _byte_letters() -> dict[str, int]:
    """Return GPT-2's letters for bytes in byte-level vocabularies: printable Latin-1 as is, others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    unprintable = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(unprintable)}
