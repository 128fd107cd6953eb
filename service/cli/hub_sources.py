"""Sources of `soup push` that are on a model hub: downloaded, where there are any, by a client that is an extra."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from registry.errors import Unavailable
from service.cli.output import talk
from service.client.hub_names import is_hub


def local_folders(sources: Sequence[Path]) -> AbstractContextManager[Sequence[Path]]:
    """While open, the sources as directories of this machine: those named `hub:OWNER/NAME[@revision]` are downloaded.

    Raises Unavailable where the hub's client is not installed, and, when it is opened, what the download raises.
    """
    named = [source for source in sources if is_hub(source)]
    if not named:
        return nullcontext(sources)
    try:
        from service.client.hub_download import directories
    except ModuleNotFoundError as error:
        if error.name != "huggingface_hub":
            raise
        raise Unavailable(f"{named[0]} needs huggingface_hub: pip install 'adaptersoup[hub]'.") from None
    talk(f"downloading {', '.join(map(str, named))}")
    return directories(sources)
