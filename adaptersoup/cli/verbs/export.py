"""`soup export`: an adapter or soup to a directory that another program loads, or a refusal.

llama.cpp alone gets another file than PEFT's, and has to know how the base model is built.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

from adaptersoup.cli.output import progress_bar
from adaptersoup.cli.remote import RefArgument, Remote, verb
from adaptersoup.client.transfer import pull_folder
from registry.errors import Incompatible, Unavailable
from registry.formats import CARD_FILE, CONFIG_FILE, GGUF_FILE, WEIGHTS_FILE, AdapterDirectory, check_place, place_files
from registry.formats.directory import config_json
from registry.formats.peft.writing import is_peft_config
from registry.spec import LoraConfig


@verb
def export(
    remote: Remote,
    ref: RefArgument,
    directory: Annotated[Path, typer.Argument(help="Directory to write.", metavar="DIR")],
    peft: Annotated[bool, typer.Option("--peft", help="For PEFT: LoRAs and prefixes.")] = False,
    vllm: Annotated[bool, typer.Option("--vllm", help="For vLLM: LoRAs.")] = False,
    lorax: Annotated[bool, typer.Option("--lorax", help="For LoRAX: LoRAs.")] = False,
    llamacpp: Annotated[bool, typer.Option("--llamacpp", help="For llama.cpp: LoRAs, as a GGUF file.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace what DIR holds.")] = False,
) -> None:
    """Write an adapter for another program.

    Says how that program loads the directory. vLLM and LoRAX get one rank and one scale for all modules of a LoRA:
    where an adapter has several, ranks are filled up with zeros and scales go into the weights, in fp32. llama.cpp gets
    a GGUF file in fp32, for base models of the families llama, mistral, qwen2, qwen3 and gpt2.

    \b
    Examples:
      soup export team/law law --peft
      soup export team/soup@prod soup --vllm --force
      soup export team/law law --llamacpp
    """
    asked: dict[Program, bool] = {"peft": peft, "vllm": vllm, "lorax": lorax, "llamacpp": llamacpp}
    wanted = [program for program, given in asked.items() if given]
    if len(wanted) != 1:
        raise typer.BadParameter(f"Say for which program: one of {', '.join('--' + name for name in NAMES)}.")
    (program,) = wanted
    check_installed(program)  # what is missing is said before anything is pulled
    check_place(directory, replace=force, advice="replace it with --force")
    with TemporaryDirectory(prefix="soup-export-") as beside, progress_bar(f"pulling {ref}") as report:
        folder = pull_folder(remote.client, ref, Path(beside) / "pulled", progress=report)
        files = exported(folder, program, name=ref, base_model=remote.client.base_model)
    place_files(directory, files, replace=force)
    line = command_line(folder, program, str(directory), ref.partition("@")[0].rpartition("/")[2])
    answer = {"object": "folder", "path": str(directory), "files": sorted(files), "load": line}
    remote.answer(answer, str(directory), note=f"{NAMES[program]} loads it with: {line}")


Program = Literal["peft", "vllm", "lorax", "llamacpp"]
NAMES: dict[Program, str] = {"peft": "PEFT", "vllm": "vLLM", "lorax": "LoRAX", "llamacpp": "llama.cpp"}
ENGINES: frozenset[Program] = frozenset({"vllm", "lorax"})
"""Those that get one rank and one scale for all modules."""
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What `--max-lora-rank` can be; a larger LoRA is refused by vLLM."""


def check_installed(program: Program) -> None:
    """Import what the program's files are made with; raises Unavailable, or ModuleNotFoundError without torch."""
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
    """The files that the program loads, by name; `base_model` gives what the server says of one, by its id.

    Raises Incompatible, in one sentence, for what it cannot load.
    """
    if not is_peft_config(folder.config) or (program != "peft" and not isinstance(folder.config, LoraConfig)):
        loads = "LoRAs and prefixes that are not pruned" if program == "peft" else "LoRAs that are not pruned"
        raise Incompatible(f"{NAMES[program]} loads {loads}, and this adapter is of the kind {folder.config.method!r}.")
    if isinstance(folder.config, LoraConfig) and program in ENGINES:
        _check_rank(folder.config, program)
        return _for_engine(folder, folder.config)
    if isinstance(folder.config, LoraConfig) and program == "llamacpp":
        return _gguf(folder, folder.config, base_model(str(folder.base_model)), name)
    return _files(folder, {})


def command_line(folder: AdapterDirectory, program: Program, place: str, name: str) -> str:
    """How the exported directory `place` is loaded, under `name` where it has one there."""
    base = folder.recorded_base or folder.base_model or "BASE"
    if program == "vllm":
        assert isinstance(folder.config, LoraConfig)
        most = next(rank for rank in VLLM_RANKS if rank >= largest_rank(folder.config))
        served = f"--enable-lora --max-lora-rank {most} --lora-modules {shlex.quote(f'{name}={place}')}"
        return f"vllm serve {shlex.quote(base)} {served}"
    if program == "llamacpp":
        return f"llama-server --model BASE.gguf --lora {shlex.quote(f'{place}/{GGUF_FILE}')} over {base}"
    if program == "lorax":
        return f'"parameters": {{"adapter_id": "{place}", "adapter_source": "local"}} in a request to LoRAX over {base}'
    return f'PeftModel.from_pretrained(model, "{place}") over {base}'


def largest_rank(config: LoraConfig) -> int:
    """The largest rank of a module."""
    return max(module.rank for module in config.modules().values())


def _check_rank(config: LoraConfig, program: Program) -> None:
    rank = largest_rank(config)
    if program == "vllm" and rank > VLLM_RANKS[-1]:
        raise Incompatible(
            f"vLLM loads LoRAs of rank {VLLM_RANKS[-1]} at most, and this one has rank {rank}: cook the soup with a "
            f"smaller --max-width, or recompress it."
        )


def _for_engine(folder: AdapterDirectory, config: LoraConfig) -> dict[str, bytes]:
    """The files for an engine that takes rank and scale from `r` and `lora_alpha` alone."""
    from registry.adapters.lora_ranks import is_uniform, uniform
    from registry.adapters.weights import load_tensors, save_tensors

    if is_uniform(config):
        return _files(folder, {})
    even, tensors = uniform(config, load_tensors(folder.weights.read_bytes()))
    rank = largest_rank(even)
    said = {"r": rank, "lora_alpha": rank, "use_rslora": False, "rank_pattern": {}, "alpha_pattern": {}}
    return _files(folder, said) | {WEIGHTS_FILE: save_tensors(tensors)}


def _gguf(folder: AdapterDirectory, config: LoraConfig, base: Mapping[str, Any], name: str) -> dict[str, bytes]:
    """The files for llama.cpp, whose rows and names depend on how the base model is built."""
    from registry.adapters.lora_gguf import GgufBase, gguf_file
    from registry.adapters.weights import load_tensors

    if base["fingerprint"] != folder.base_fingerprint:
        raise Incompatible(
            f"This adapter is of a base model with the fingerprint {folder.base_fingerprint}, and "
            f"{folder.base_model!r} has {base['fingerprint']} now."
        )
    built = base.get("architecture")
    if built is None:
        raise Unavailable(
            f"The server does not say how {folder.base_model!r} is built, as servers of this version do: update it."
        )
    of = GgufBase(built["model_type"], layers=built["layers"], head=built["head_size"])
    file = gguf_file(config, load_tensors(folder.weights.read_bytes()), of, name=name)
    return {GGUF_FILE: file, **_card(folder)}


def _files(folder: AdapterDirectory, said: dict[str, Any]) -> dict[str, bytes]:
    """PEFT's files of a directory, with these fields of its configuration changed."""
    config = json.loads((folder.path / CONFIG_FILE).read_bytes())
    files = {CONFIG_FILE: config_json({**config, **said}), WEIGHTS_FILE: folder.weights.read_bytes()}
    return files | _card(folder)


def _card(folder: AdapterDirectory) -> dict[str, bytes]:
    card = folder.path / CARD_FILE
    return {CARD_FILE: card.read_bytes()} if card.is_file() else {}
