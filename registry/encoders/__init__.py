"""Encoders turn texts into vectors: `base` mean-pools the base model, `sbert` embeds sentences.

Importing this package is cheap: sentence-BERT loads its model, and torch with it, at its first use.
"""

from registry.encoders.cached import CachedEncoder, VectorCache
from registry.encoders.contract import Encoder
from registry.encoders.mean_pool import MeanPoolEncoder
from registry.encoders.sbert import SentenceBertEncoder

__all__ = ["CachedEncoder", "Encoder", "MeanPoolEncoder", "SentenceBertEncoder", "VectorCache"]
