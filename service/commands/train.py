"""`soup train`: an adapter for the texts of a domain, trained here and written as a directory to push.

It needs no server. Torch is imported when training begins, not for the help.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from pydantic import ValidationError

from registry.errors import Conflict, InvalidParameter, NotFound
from service.commands.output import as_json as print_json
from service.commands.output import data, progress_bar, talk

if TYPE_CHECKING:
    from registry.base_model import LoadedBase
    from registry.spec import BaseEntry
    from training.loop import Recipe
    from training.trainer import Trained

Structure = Literal["bapna_firat", "houlsby", "pfeiffer", "parallel"]
SAMPLE = 200


def train(
    texts: Annotated[Path, typer.Option("--texts", help='Training text: .jsonl(.gz) of {"text"}.')],
    valid: Annotated[Path, typer.Option("--valid", help="Other text of the domain; the best state on it is kept.")],
    out: Annotated[Path, typer.Option("--out", help="Adapter directory to write.")],
    base_folder: Annotated[
        Path | None, typer.Option("--base-folder", help="Folder of the base model; or --bases and --base.")
    ] = None,
    bases: Annotated[Path | None, typer.Option("--bases", help="Allowlist of base models (SOUP_BASES).")] = None,
    base: Annotated[str | None, typer.Option("--base", help="Id of the base model in the allowlist.")] = None,
    domain: Annotated[str | None, typer.Option("--domain", help="Domain label; by default the folder's name.")] = None,
    structure: Annotated[Structure, typer.Option("--structure", help="Structure of the adapter.")] = "bapna_firat",
    bottleneck: Annotated[int, typer.Option("--bottleneck", min=1, help="Width of the bottleneck.")] = 64,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Updates.")] = 200,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Blocks in a step.")] = 8,
    block: Annotated[int | None, typer.Option("--block", min=2, help="Tokens in a block; at most the context.")] = None,
    learning_rate: Annotated[float, typer.Option("--lr", help="Highest learning rate.")] = 1e-3,
    init: Annotated[
        Literal["near_identity", "linear", "zero_up"] | None,
        typer.Option("--init", help="How tensors start; by default near_identity, for parallel zero_up."),
    ] = None,
    init_seed: Annotated[
        int, typer.Option("--init-seed", min=0, help="Only adapters that share it can be averaged.")
    ] = 0,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the order of the data and of the sample.")] = 0,
    sample: Annotated[
        int, typer.Option("--sample", min=0, help="Training passages to put beside the weights; 0 for none.")
    ] = SAMPLE,
    as_json: Annotated[bool, typer.Option("--json", help="Print directory and record as JSON.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="Overwrite the directory if it is there.")] = False,
) -> None:
    """Train an adapter on texts of a domain.

    Adapters that are to be averaged need the same base, structure and --init-seed: then they start from the same
    tensors, and the directory says so. Prints the directory, which `soup push` takes.

    \b
    Examples:
      soup train --base-folder models/gpt2 --texts law.jsonl --valid law-valid.jsonl --out adapters/law
      soup train --bases bases.toml --base small --texts a.jsonl.gz --valid b.jsonl.gz --out adapters/a --steps 500
      soup push adapters/law --name team/law --wait
    """
    if out.exists() and not replace and (not out.is_dir() or any(out.iterdir())):
        raise Conflict(f"{out} exists and is not empty: choose another directory, or add --replace.")
    from training.texts import draw

    entry = _entry(base_folder, bases, base)
    loaded, trained, passages = _train(
        entry,
        (texts, valid),
        structure=structure,
        bottleneck=bottleneck,
        numbers={"steps": steps, "batch": batch, "learning_rate": learning_rate, "data_seed": seed, "block": block},
        init=init or ("zero_up" if structure == "parallel" else "near_identity"),
        init_seed=init_seed,
    )
    _write(
        out,
        loaded,
        trained,
        domain=domain or out.resolve().name,
        base_id=base,
        passages=draw(passages, sample, seed=seed),
        replace=replace,
    )
    talk(
        f"Perplexity on validation text: {trained.record['valid_perplexity_before']:.2f} before, "
        f"{trained.record['valid_perplexity']:.2f} after (step {trained.record['best_step']})."
    )
    if as_json:
        print_json({"object": "folder", "path": str(out), **trained.provenance.model_dump(mode="json")})
    else:
        data(str(out))


def _entry(base_folder: Path | None, bases: Path | None, base: str | None) -> BaseEntry:
    """The base model to train on, from a folder or the allowlist."""
    from registry.base_model import read_allowlist
    from registry.spec import BaseEntry
    from service.settings import Settings

    if base_folder is not None:
        if base is not None or bases is not None:
            raise typer.BadParameter("Give --base-folder, or --bases and --base.")
        if not base_folder.is_dir():
            raise NotFound(f"{base_folder} is not a directory: --base-folder names the folder of a base model.")
        return BaseEntry(id="local", source=str(base_folder.resolve()))
    path = bases or Settings().bases
    if path is None:
        raise typer.BadParameter("Which base model? Give --base-folder, or --bases (SOUP_BASES) and --base.")
    entries = read_allowlist(path)
    if base is None and len(entries) == 1:
        return next(iter(entries.values()))
    if base not in entries:
        raise NotFound(f"--base must be one of {', '.join(sorted(entries))} ({path}).", param="base")
    return entries[base]


def _train(
    entry: BaseEntry, files: tuple[Path, Path], *, structure: Structure, bottleneck: int,
    numbers: dict[str, int | float | None], init: Literal["near_identity", "linear", "zero_up"], init_seed: int,
) -> tuple[LoadedBase, Trained, list[str]]:  # fmt: skip
    """The base, what was trained on it, and the texts it was trained on."""
    from registry.adapters import paper_config
    from registry.base_model import load_base
    from training.texts import read_texts
    from training.trainer import train_adapter

    texts, valid_texts = read_texts(files[0]), read_texts(files[1])
    loaded = load_base(entry)
    recipe = _recipe(numbers, loaded.shape.context)
    with progress_bar("training") as report:
        trained = train_adapter(
            loaded, paper_config(structure, bottleneck=bottleneck), texts, valid_texts, recipe=recipe,
            init_seed=init_seed, init=init, progress=report,
        )  # fmt: skip
    return loaded, trained, texts


def _recipe(numbers: dict[str, int | float | None], context: int) -> Recipe:
    from training.loop import Recipe

    given = {name: value for name, value in numbers.items() if value is not None}
    try:
        return Recipe.model_validate({"block": min(context, 512), **given})
    except ValidationError as error:
        found = error.errors(include_url=False)[0]
        name = str(found["loc"][0])
        raise InvalidParameter(f"{name}: {found['msg']}.", param=name) from None


def _write(
    out: Path, loaded: LoadedBase, trained: Trained, *, domain: str, base_id: str | None, passages: Sequence[str],
    replace: bool,
) -> None:  # fmt: skip
    from registry.adapters.weights import save_tensors
    from registry.folder import write_folder

    write_folder(
        out,
        config=trained.config,
        domain=domain,
        weights=save_tensors(trained.tensors),
        base_model=base_id,
        base_fingerprint=loaded.shape.fingerprint,
        provenance=trained.provenance,
        texts=passages or None,
        replace=replace,
    )
