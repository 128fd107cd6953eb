"""`soup export`: writes an adapter or soup as a directory that another program loads.

All programs load PEFT's files, except llama.cpp, whose file depends on the base model's architecture. vLLM loads
bottlenecks too, as LoRAs on layers that the plugin adds.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from adaptersoup.cli.output import progress_bar
from adaptersoup.cli.remote import RefArgument, Remote, verb
from adaptersoup.client.answers import architecture_of
from registry.errors import Incompatible, Unavailable
from registry.formats import CARD_FILE, CONFIG_FILE, GGUF_FILE, WEIGHTS_FILE, AdapterDirectory, check_place, place_files
from registry.formats.directory import config_json
from registry.formats.peft.writing import is_peft_config
from registry.spec import AdapterConfig, BottleneckConfig, LoraConfig

Program = Literal["peft", "vllm", "lorax", "llamacpp"]
NAMES: dict[Program, str] = {"peft": "PEFT", "vllm": "vLLM", "lorax": "LoRAX", "llamacpp": "llama.cpp"}


@dataclass(frozen=True)
class Reader:
    """The options that name the program that will read the files."""

    peft: Annotated[bool, typer.Option("--peft", help="For PEFT: LoRAs and prefixes.")] = False
    vllm: Annotated[bool, typer.Option("--vllm", help="For vLLM: LoRAs and bottlenecks.")] = False
    lorax: Annotated[bool, typer.Option("--lorax", help="For LoRAX: LoRAs.")] = False
    llamacpp: Annotated[bool, typer.Option("--llamacpp", help="For llama.cpp: LoRAs, as a GGUF file.")] = False

    def program(self) -> Program:
        """The one program that is named; raises BadParameter for none or several."""
        programs = [program for program in NAMES if getattr(self, program)]
        if len(programs) != 1:
            raise typer.BadParameter(f"Name one program: {', '.join('--' + name for name in NAMES)}.")
        return programs[0]


@verb
def export(
    remote: Remote,
    ref: RefArgument,
    directory: Annotated[Path, typer.Argument(help="Directory to write.", metavar="DIR")],
    reader: Reader,
    force: Annotated[bool, typer.Option("--force", help="Replace the contents of DIR.")] = False,
) -> None:
    """Write an adapter for another program.

    Prints the command that loads the directory. For vLLM and LoRAX, all modules of a LoRA get one rank and one scale:
    ranks are padded with zeros, and scales go into the weights, in fp32. For vLLM with the plugin (adaptersoup[vllm])
    bottlenecks become LoRAs. For llama.cpp a LoRA becomes a GGUF file in fp32; the base model must be of the families
    llama, mistral, qwen2, qwen3 or gpt2.

    \b
    Examples:
      soup export team/law law --peft
      soup export team/soup@prod soup --vllm --force
      soup export team/law law --llamacpp
    """
    program = reader.program()
    check_installed(program)  # before anything is pulled
    check_place(directory, replace=force, advice="replace it with --force")
    with TemporaryDirectory(prefix="soup-export-") as temporary, progress_bar(f"pulling {ref}") as report:
        folder = remote.client.pull_directory(ref, Path(temporary) / "pulled", progress=report)
        files = exported(folder, program, name=ref, base_model=remote.client.base_model)
    place_files(directory, files, replace=force)
    line = command_line(folder, program, str(directory), ref.partition("@")[0].rpartition("/")[2])
    answer = {"object": "folder", "path": str(directory), "files": sorted(files), "load": line}
    remote.answer(answer, str(directory), note=f"{NAMES[program]} loads it with: {line}")


ENGINES: frozenset[Program] = frozenset({"vllm", "lorax"})
"""Programs that load only LoRAs with one rank and one scale for all modules."""
LOADS: dict[Program, str] = {
    "peft": "LoRAs and prefixes that are not pruned",
    "vllm": "bottlenecks, and LoRAs that are not pruned",
}
"""The adapters that a program loads, if it loads more than LoRAs."""
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values of vLLM's `--max-lora-rank`; it refuses larger LoRAs."""


def check_installed(program: Program) -> None:
    """Import the modules that write the program's files; raises Unavailable, or ModuleNotFoundError without torch."""
    if program in ENGINES:
        import_module("registry.adapters.lora_ranks")
    if program != "llamacpp":
        return
    try:
        import_module("registry.adapters.lora_gguf")
    except ModuleNotFoundError as error:
        if error.name != "gguf":
            raise
        raise Unavailable("`soup export --llamacpp` needs gguf: pip install 'adaptersoup[gguf]'.") from None


def exported(
    folder: AdapterDirectory, program: Program, *, name: str, base_model: Callable[[str], Mapping[str, Any]]
) -> dict[str, bytes]:
    """The contents of the files that the program loads, by name; `base_model` gets a base model by its id.

    Raises Incompatible if the program cannot load the adapter.
    """
    if program == "vllm" and isinstance(folder.config, BottleneckConfig):
        _check_rank(folder.config, program)
        return _bottleneck(folder, folder.config, base_model(str(folder.base_model)))
    if not is_peft_config(folder.config) or (program != "peft" and not isinstance(folder.config, LoraConfig)):
        loads = LOADS.get(program, "LoRAs that are not pruned")
        raise Incompatible(f"{NAMES[program]} loads {loads}, and this adapter is of the kind {folder.config.method!r}.")
    if isinstance(folder.config, LoraConfig) and program in ENGINES:
        _check_rank(folder.config, program)
        return _for_engine(folder, folder.config)
    if isinstance(folder.config, LoraConfig) and program == "llamacpp":
        return _gguf(folder, folder.config, base_model(str(folder.base_model)), name)
    return _files(folder)


def command_line(folder: AdapterDirectory, program: Program, path: str, name: str) -> str:
    """The command, or expression, that loads the exported directory `path`; vLLM serves it as `name`."""
    base = folder.recorded_base or folder.base_model or "BASE"
    if program == "vllm":
        max_rank = next(rank for rank in VLLM_RANKS if rank >= largest_rank(folder.config))
        served = f"--enable-lora --max-lora-rank {max_rank} --lora-modules {shlex.quote(f'{name}={path}')}"
        return f"{_plugin(folder.config)}vllm serve {shlex.quote(base)} {served}"
    if program == "llamacpp":
        return f"llama-server --model BASE.gguf --lora {shlex.quote(f'{path}/{GGUF_FILE}')} over {base}"
    if program == "lorax":
        return f'"parameters": {{"adapter_id": "{path}", "adapter_source": "local"}} in a request to LoRAX over {base}'
    return f'PeftModel.from_pretrained(model, "{path}") over {base}'


def _plugin(config: AdapterConfig) -> str:
    """The variables of the plugin in a command line, which only bottlenecks need."""
    if not isinstance(config, BottleneckConfig):
        return ""
    from registry.adapters.bottleneck_lora import kind_of

    return f"VLLM_PLUGINS=adaptersoup SOUP_VLLM_BOTTLENECKS={kind_of(config).name} "


def largest_rank(config: AdapterConfig) -> int:
    """The largest rank among the modules of a LoRA, or of a bottleneck as a LoRA."""
    return config.width + 1 if isinstance(config, BottleneckConfig) else config.width


def _check_rank(config: AdapterConfig, program: Program) -> None:
    rank = largest_rank(config)
    if program == "vllm" and rank > VLLM_RANKS[-1]:
        is_lora = isinstance(config, LoraConfig)
        adapter = (
            f"LoRA has rank {rank}" if is_lora else f"bottleneck of width {config.width} becomes one of rank {rank}"
        )
        raise Incompatible(
            f"vLLM loads LoRAs of rank {VLLM_RANKS[-1]} at most, and this {adapter}: cook the soup with a smaller "
            "--max-width, or recompress it."
        )


def _for_engine(folder: AdapterDirectory, config: LoraConfig) -> dict[str, bytes]:
    """The files for an engine that reads rank and scale only from `r` and `lora_alpha`."""
    from adaptersoup.vllm.lora_files import uniform_files
    from registry.adapters.lora_ranks import is_uniform

    files = _files(folder)
    if is_uniform(config):
        return files
    return files | uniform_files(config, files[WEIGHTS_FILE], json.loads(files[CONFIG_FILE]))


def _bottleneck(folder: AdapterDirectory, config: BottleneckConfig, base: Mapping[str, Any]) -> dict[str, bytes]:
    """The files for vLLM, whose layers of zeros depend on the base model's family."""
    from adaptersoup.vllm.lora_files import lora_files

    model_type = _architecture(folder, base)["model_type"]
    return lora_files(config, folder.weights.read_bytes(), model_type) | _card(folder)


def _gguf(folder: AdapterDirectory, config: LoraConfig, base: Mapping[str, Any], name: str) -> dict[str, bytes]:
    """The files for llama.cpp, whose order of rows and names of tensors depend on the base model's architecture."""
    from registry.adapters.lora_gguf import GgufBase, gguf_file
    from registry.adapters.weights import load_tensors

    architecture = _architecture(folder, base)
    gguf_base = GgufBase(architecture["model_type"], layers=architecture["layers"], head=architecture["head_size"])
    file = gguf_file(config, load_tensors(folder.weights.read_bytes()), gguf_base, name=name)
    return {GGUF_FILE: file, **_card(folder)}


def _architecture(folder: AdapterDirectory, base: Mapping[str, Any]) -> Mapping[str, Any]:
    """The base model's architecture; raises Incompatible for another base model than the adapter's."""
    if base["fingerprint"] != folder.base_fingerprint:
        raise Incompatible(
            f"The adapter was made for a base model with fingerprint {folder.base_fingerprint}, but "
            f"{folder.base_model!r} now has fingerprint {base['fingerprint']}."
        )
    return architecture_of(base)


def _files(folder: AdapterDirectory) -> dict[str, bytes]:
    """PEFT's files of a directory."""
    config = config_json(json.loads((folder.path / CONFIG_FILE).read_bytes()))
    return {CONFIG_FILE: config, WEIGHTS_FILE: folder.weights.read_bytes()} | _card(folder)


def _card(folder: AdapterDirectory) -> dict[str, bytes]:
    card = folder.path / CARD_FILE
    return {CARD_FILE: card.read_bytes()} if card.is_file() else {}
