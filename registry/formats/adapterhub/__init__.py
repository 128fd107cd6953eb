"""Adapters in the formats of other libraries, to and from ours; called by `soup convert`, on the client.

PEFT's folders need no conversion: the registry stores them as they are (`registry.formats`).
"""

from registry.formats.adapterhub.convert import FAMILIES, Checkpoint, checkpoint_files, is_checkpoint, read_checkpoint

__all__ = ["FAMILIES", "Checkpoint", "checkpoint_files", "is_checkpoint", "read_checkpoint"]
