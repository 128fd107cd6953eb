"""One lock around everything that has transformers build a model.

While it loads weights, transformers replaces functions of its own classes and of torch for the whole process, and puts
back what it found. Two loads at once can put back each other's replacements: from then on no model of the process
would tie or initialise its weights. Held by `loading`, `architecture` and the sentence-BERT encoder.
"""

from __future__ import annotations

import threading

BUILDING = threading.RLock()
"""Held while transformers builds a model, for as long as that takes."""
