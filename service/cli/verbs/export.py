"""`soup export`: an adapter or soup to a directory that another program loads."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from registry.formats import check_place, place_files
from service.cli.exported_files import NAMES, Program, check_installed, command_line, exported
from service.cli.output import progress_bar
from service.cli.remote import RefArgument, Remote, verb
from service.client.transfer import pull_folder


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
    check_place(directory, replace=force, how="replace it with --force")
    with TemporaryDirectory(prefix="soup-export-") as beside, progress_bar(f"pulling {ref}") as report:
        folder = pull_folder(remote.client, ref, Path(beside) / "pulled", progress=report)
        files = exported(folder, program, name=ref, base_model=remote.client.base_model)
    place_files(directory, files, replace=force)
    line = command_line(folder, program, str(directory), ref.partition("@")[0].rpartition("/")[2])
    answer = {"object": "folder", "path": str(directory), "files": sorted(files), "load": line}
    remote.answer(answer, str(directory), said=f"{NAMES[program]} loads it with: {line}")
