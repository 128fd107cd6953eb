"""Checkpoints of the library `adapters` (AdapterHub), to and from our configurations and tensors.

Called by `soup convert`, on the client: the server sees none of them.
"""

from registry.formats.adapterhub.convert import FAMILIES, Checkpoint, checkpoint_files, is_checkpoint, read_checkpoint

__all__ = ["FAMILIES", "Checkpoint", "checkpoint_files", "is_checkpoint", "read_checkpoint"]
