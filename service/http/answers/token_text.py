"""Token ids as the strings, bytes and character offsets that log-probability answers show.

Called by completions and chat. A token that is part of a character has no text of its own; it is shown as the
vocabulary spells it, so that different tokens never look the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from registry.base_model import BaseText

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenText:
    """Strings of one base model's tokens."""

    def __init__(self, base: BaseText) -> None:
        self._tokenizer = base.tokenizer
        self._seen: dict[int, tuple[str, bytes | None]] = {}

    def text(self, token: int) -> str:
        """The token as text."""
        return self._look(token)[0]

    def data(self, token: int) -> list[int] | None:
        """The UTF-8 bytes the token stands for, None where the vocabulary does not say."""
        found = self._look(token)[1]
        return None if found is None else list(found)

    def decode(self, tokens: Sequence[int]) -> str:
        """Several tokens as one text, special tokens included: the text that `offsets` counts in."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def offsets(self, tokens: Sequence[int], *, start: int = 0) -> list[int]:
        """The character at which each token begins, counted from `start`."""
        found: list[int] = []
        position = start
        for token in tokens:
            found.append(position)
            text, data = self._look(token)
            # continuation bytes (0b10......) begin no character
            position += len(text) if data is None else sum(byte & 0xC0 != 0x80 for byte in data)
        return found

    def _look(self, token: int) -> tuple[str, bytes | None]:
        if token not in self._seen:
            self._seen[token] = self._read(token)
        return self._seen[token]

    def _read(self, token: int) -> tuple[str, bytes | None]:
        text = str(self._tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False))
        spelled = str(self._tokenizer.convert_ids_to_tokens(token))
        if REPLACEMENT not in text:
            return text, text.encode()
        table = _byte_letters()
        if all(letter in table for letter in spelled):
            return spelled, bytes(table[letter] for letter in spelled)
        return spelled, None


@cache
def _byte_letters() -> dict[str, int]:
    """GPT-2's spelling of bytes in byte-level vocabularies: printable Latin-1 is itself, the rest from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
