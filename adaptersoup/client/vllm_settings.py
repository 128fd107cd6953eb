"""Settings of vLLM's plugin, which reads those of the client too; flags there are none."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from service.settings import ClientSettings


class VllmSettings(ClientSettings):
    """Where the plugin finds its server, and for which base model."""

    vllm_base: str | None = Field(
        None, description="Id, on the server, of the base model that vLLM serves; without it the plugin does nothing."
    )
    vllm_cache: Path = Field(
        Path("~/.cache/adaptersoup/vllm"), description="Folder that keeps the LoRAs vLLM has loaded, by their digest."
    )
