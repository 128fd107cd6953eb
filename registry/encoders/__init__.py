"""Encoders turn texts into vectors: `base` averages last hidden states of the base model, `sbert` embeds sentences.

Importing this package is cheap: sentence-BERT loads its model, and torch with it, at its first use.
"""

from registry.encoders.base_model import BaseModelEncoder
from registry.encoders.cached import CachedEncoder
from registry.encoders.contract import Encoder
from registry.encoders.sbert import SentenceBertEncoder

__all__ = ["BaseModelEncoder", "CachedEncoder", "Encoder", "SentenceBertEncoder"]
