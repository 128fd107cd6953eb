"""Settings of the plugin for vLLM: those of the client, its base model and its cache. They have no flags."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from service.settings import ClientSettings


class VllmSettings(ClientSettings):
    """The plugin's server, base model and cache folder."""

    vllm_base: str | None = Field(
        None, description="Id, on the server, of the base model that vLLM serves; without it the plugin does nothing."
    )
    vllm_cache: Path = Field(
        Path("~/.cache/adaptersoup/vllm"), description="Folder that keeps the LoRAs vLLM has loaded, by their digest."
    )
