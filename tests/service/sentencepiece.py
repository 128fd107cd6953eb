"""A tokenizer of the kind that SentencePiece models have (Llama 2, Mistral): tokens carry the space before a word."""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
"""Tokens of single bytes, which spell characters that have no token of their own."""
WORDS = ["</s>", *BYTES, "▁", "a", "b", "▁a", "ab", "é", '"', '{"', "}"]


def sentencepiece_tokenizer() -> Tokenizer:
    """A tokenizer of the tokens WORDS, in which the id of a byte is the byte + 1."""
    model = models.BPE(
        {word: n for n, word in enumerate(WORDS)}, [("▁", "a"), ("a", "b")], byte_fallback=True, unk_token="</s>"
    )
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer
