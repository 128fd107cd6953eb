"""Takes probes: reads the fixed texts of a base model through the engine, with an adapter, at other scales, and alone.

Called by the job that embeds an adapter's sample, and when `soup doctor` asks for a probe. `registry.probes` compares
what is stored.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from registry.adapters.loadable import LoadableAdapter, Tensors
from registry.adapters.weights import scale_output
from registry.base_model import BaseText
from registry.catalogue.rows import AdapterRow
from registry.names import sha256_digest
from registry.probes.scale_fit import SCALES
from registry.probes.texts import probe_texts
from registry.spec import SCALED_TEXTS, STORED_TOKENS, AdapterProbe, BaseProbe, NextTokens, Readings
from registry.stored.adapters import loadable
from service.engine import GenerateRequest, SamplingParams
from service.engine.request import TopTokens
from service.engine.text_calls import has_bos
from service.engine.text_support import check_supports_text, why_no_text
from service.services import Services

log = logging.getLogger("soup.probes")

ONE_TOKEN = SamplingParams(max_tokens=1, temperature=0.0, logprobs=STORED_TOKENS)
FRAGMENT = "\N{REPLACEMENT CHARACTER}"
"""In the text of a token that is a fragment of a character; it is stored as the vocabulary spells it."""
PLACES = 4
"""Decimals of a stored log-probability."""


def probe_embedded(services: Services, row: AdapterRow) -> None:
    """Take the probe of an adapter whose sample was just embedded.

    Where that fails, or the base model is not in memory, the probe is taken when `soup doctor` asks for it.
    """
    try:
        is_loaded = row.base_model in services.engine.loaded_bases()
        if is_loaded and why_no_text(services.bases[row.base_model].text.shape, row.config) is None:
            take_probe(services, row, owner=row.created_by)
    except Exception:
        log.warning("no probe was taken of %s", row.ref, exc_info=True)


def take_probe(services: Services, row: AdapterRow, *, owner: str | None = None) -> tuple[BaseProbe, AdapterProbe]:
    """The stored probes of an adapter and its base model, taken now as far as they are missing, for the key `owner`.

    Raises InvalidParameter for an adapter that continues no text, Busy, Unavailable, and what the engine raises.
    """
    with services.registry.database.read() as catalogue:
        base, probe = catalogue.probes.base(row.base_fingerprint), catalogue.probes.adapter(row.digest)
    if base is None or probe is None:
        reader = _Reader.of(services, row, owner)
        base = base or reader.base()
        probe = probe or reader.adapter(loadable(row, services.registry.blobs), base.texts)
        _store(services, row, base, probe)
    return base, probe


def take_scaled_probe(services: Services, row: AdapterRow, *, owner: str | None = None) -> AdapterProbe:
    """The probe of an adapter with readings at other scales of its update, if it has one; raises as `take_probe`."""
    base, probe = take_probe(services, row, owner=owner)
    if probe.scales or not row.config.scalable:
        return probe
    reader = _Reader.of(services, row, owner)
    probe = reader.at_scales(loadable(row, services.registry.blobs), probe, base.texts)
    _store(services, row, base, probe)
    return probe


def _store(services: Services, row: AdapterRow, base: BaseProbe, probe: AdapterProbe) -> None:
    """Store probes unless the adapter was purged meanwhile; one with other scales is kept."""
    with services.registry.database.write() as catalogue:
        if not catalogue.adapters.has_digest(row.digest):
            return
        if catalogue.probes.base(row.base_fingerprint) is None:
            catalogue.probes.put(row.base_fingerprint, base)
        stored = catalogue.probes.adapter(row.digest)
        if stored is None or (probe.scales and not stored.scales):
            catalogue.probes.put(row.digest, probe)


@dataclass(frozen=True)
class _Reader:
    """Readings of one base model, for the key `owner`."""

    services: Services
    text: BaseText
    owner: str | None

    @classmethod
    def of(cls, services: Services, row: AdapterRow, owner: str | None) -> _Reader:
        """The reader of an adapter's base model; raises InvalidParameter for an adapter that continues no text."""
        text = services.bases[row.base_model].text
        check_supports_text(text.shape, row.config, row.ref)
        return cls(services, text, owner)

    def base(self) -> BaseProbe:
        """The probe of the base model alone."""
        text = self.text
        texts = probe_texts(text.shape.vocab_size, partial(text.tokenize, bos=False), self._decode)
        prompts = [text.tokenize(prompt) for prompt in texts]
        if not has_bos(text):
            return BaseProbe(texts=texts, readings=self._read([(prompts, None)])[0])
        first = prompts[:SCALED_TEXTS]
        without, doubled = [ids[1:] for ids in first], [[ids[0], *ids] for ids in first]
        readings = self._read([(prompts, None), (without, None), (doubled, None)])
        return BaseProbe(texts=texts, readings=readings[0], without_bos=readings[1], with_two_bos=readings[2])

    def adapter(self, adapter: LoadableAdapter, texts: Sequence[str]) -> AdapterProbe:
        """The probe of an adapter at its own scale alone."""
        prompts = [self.text.tokenize(prompt) for prompt in texts]
        return AdapterProbe(readings=self._read([(prompts, adapter)])[0])

    def at_scales(self, adapter: LoadableAdapter, probe: AdapterProbe, texts: Sequence[str]) -> AdapterProbe:
        """The probe with the readings of the first texts at each of SCALES."""
        prompts = [self.text.tokenize(prompt) for prompt in texts[:SCALED_TEXTS]]
        adapter = replace(adapter, load=cache(adapter.load))  # every scaled copy loads it
        readings = self._read([(prompts, _scaled(adapter, scale)) for scale in SCALES])
        return AdapterProbe(readings=probe.readings, scales=SCALES, scaled=tuple(readings))

    def _read(self, models: Sequence[tuple[Sequence[list[int]], LoadableAdapter | None]]) -> list[Readings]:
        """The readings of prompts by each model, all in the engine at once."""
        requests = [
            GenerateRequest(self.text.entry.id, tuple(ids), adapter=adapter, params=ONE_TOKEN, owner=self.owner)
            for prompts, adapter in models
            for ids in prompts
        ]
        tickets = iter(self.services.engine.submit_all(requests))
        return [
            tuple(self._tokens(next(tickets).result().choices[0].top_logprobs[0]) for _ in ids) for ids, _ in models
        ]

    def _tokens(self, top: TopTokens) -> NextTokens:
        """The next tokens by their text, the likeliest first."""
        tokens: NextTokens = {}
        for token, logprob in top:
            text = self._decode([token])
            if FRAGMENT in text:
                text = str(self.text.tokenizer.convert_ids_to_tokens(token))
            if text and "\x00" not in text:
                tokens.setdefault(text, min(0.0, round(logprob, PLACES)))
        return tokens

    def _decode(self, ids: Sequence[int]) -> str:
        tokenizer = self.text.tokenizer
        return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _scaled(adapter: LoadableAdapter, scale: float) -> LoadableAdapter:
    """The adapter with its output multiplied by `scale`."""

    def load() -> Tensors:
        return scale_output(adapter.load(), adapter.config, scale)

    digest = sha256_digest(f"{adapter.digest} {scale!r}".encode())
    return replace(adapter, digest=digest, load=load, stored=None)
