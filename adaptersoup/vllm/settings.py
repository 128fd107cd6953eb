"""Settings of the plugin for vLLM: those of the client, what vLLM serves, and its cache. They have no flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator
from pydantic_settings import NoDecode

from service.settings import ClientSettings


class VllmSettings(ClientSettings):
    """The plugin's server, base model, kinds of bottlenecks and cache folder."""

    vllm_base: str | None = Field(
        None, description="Id, on the server, of the base model that vLLM serves; none: vLLM asks no server."
    )
    vllm_bottlenecks: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Kinds of bottlenecks that vLLM serves, separated by commas; none: LoRAs only."
    )
    vllm_cache: Path = Field(
        Path("~/.cache/adaptersoup/vllm"),
        description="Folder that keeps the adapters vLLM has loaded, by their digest.",
    )

    @field_validator("vllm_bottlenecks", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value
