"""Checkpoints of the library `adapters` (AdapterHub), to and from our configurations and tensors.

Called by `soup convert`, on the client: the server sees none of them.
"""

from registry.formats.adapterhub.convert import Checkpoint, checkpoint_files, is_checkpoint, read_checkpoint
from registry.formats.adapterhub.tensors import FAMILIES

__all__ = ["FAMILIES", "Checkpoint", "checkpoint_files", "is_checkpoint", "read_checkpoint"]
