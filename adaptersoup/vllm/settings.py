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
        None, description="Id of the server's base model that vLLM runs. Unset: vLLM takes no adapters from the server."
    )
    vllm_bottlenecks: Annotated[tuple[str, ...], NoDecode] = Field(
        (), description="Kinds of bottlenecks that vLLM serves, separated by commas. Unset: only LoRAs."
    )
    vllm_cache: Path = Field(
        Path("~/.cache/adaptersoup/vllm"),
        description="Folder in which the plugin keeps the adapters that vLLM has loaded, by digest.",
    )

    @field_validator("vllm_bottlenecks", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value
