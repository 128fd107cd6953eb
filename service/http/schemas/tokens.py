"""Bodies of `/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them."""

from __future__ import annotations

from service.http.schemas.wire import ModelName, TokenIds, Wire


class TokenizeRequest(Wire):
    """`POST /tokenize`, as vLLM has it. `add_special_tokens` puts the base model's BOS in front, as completions do, and
    an encoder's CLS and SEP around the text, as embeddings do."""

    model: ModelName | None = None
    """Optional if the server has one base model."""
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Wire):
    """`POST /detokenize`, as vLLM has it."""

    model: ModelName | None = None
    """Optional if the server has one base model."""
    tokens: TokenIds


class TokenizeAnswer(Wire):
    """Token ids of a text."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeAnswer(Wire):
    """The text of token ids."""

    prompt: str


class TokenizerInfo(Wire):
    """The special tokens, the chat template and the sizes of a base model's tokenizer. Missing tokens and templates are
    null.
    """

    model: str
    base_model: str
    tokenizer_class: str
    vocab_size: int
    max_model_len: int
    bos_token_id: int | None
    eos_token_id: int | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    bos_is_added: bool
    chat_template: str | None
