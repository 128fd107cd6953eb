"""`soup cook`: a soup for a sample, or by a recipe. Prints the model to use, which is the base where it abstains."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from registry.spec import CookRequest, HandRecipe, MaskRule, WeightedRef
from service.cli.choosing import (
    BaseOption,
    EncoderOption,
    KindOption,
    MaxOption,
    PaperOption,
    PoolMethodOption,
    PoolNamespaceOption,
    PoolTagOption,
    SetOption,
    SingleOption,
    TopOption,
    options_of,
    pool_of,
    selector_of,
    usage_error,
)
from service.cli.output import as_json, data, progress_bar, talk
from service.cli.select import comment, selection_text
from service.cli.session import Session, verb
from service.client.samples import read_texts

_NAMES = {"name": "--name", "mixing.scale": "--scale", "max_width": "--max-width"}


@verb
def cook(
    session: Session,
    sample: Annotated[
        Path | None,
        typer.Option("--sample", help='.jsonl(.gz) of {"text"}, .txt (a passage a paragraph), or - for stdin.'),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", help="Ingredients by hand.", metavar="REF=WEIGHT,...")
    ] = None,
    selector: KindOption = None,
    paper: PaperOption = False,
    single: SingleOption = False,
    encoder: EncoderOption = None,
    parameters: SetOption = None,
    max_ingredients: MaxOption = None,
    top: TopOption = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Abstain unless the soup beats the base on the sample.")
    ] = True,
    name: Annotated[str | None, typer.Option("--name", help="namespace/name of the soup.")] = None,
    mixing: Annotated[
        Literal["auto", "average", "concat", "merge"],
        typer.Option(
            "--mixing",
            help="average: the cost of one adapter; concat: exact; merge: a bank of experts, alone; auto: what fits.",
        ),
    ] = "auto",
    max_width: Annotated[
        int | None, typer.Option("--max-width", help="The widest soup that concat may make; by default 512.")
    ] = None,
    scale: Annotated[str | None, typer.Option("--scale", help="Factor on the soup's output; by default 1.")] = None,
    assume_same_init: Annotated[
        bool, typer.Option("--assume-same-init", help="Vouch for one initialisation; the recipe says so.")
    ] = False,
    masks: Annotated[
        MaskRule | None,
        typer.Option("--masks", help="The one mask of an average of pruned adapters; by default their union."),
    ] = None,
    base: BaseOption = None,
    pool_tag: PoolTagOption = None,
    pool_namespace: PoolNamespaceOption = None,
    pool_method: PoolMethodOption = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until it is cooked.")] = True,
) -> None:
    """Cook a soup for a sample, or by a recipe.

    Prints the model to use: the soup, one adapter where one is best, or the base where nothing helps.

    \b
    Examples:
      soup cook --sample contracts.jsonl
      soup cook --sample contracts.txt --selector cosine --single
      soup cook --sample contracts.jsonl --paper --no-verify --name team/contracts
      soup cook --recipe "team/law=0.5,team/finance=0.5"
      soup cook --recipe "team/law,team/contracts" --mixing concat --max-width 256
      soup cook --recipe team/law-bank --name team/law
      soup cook --recipe "team/sparse-law,team/sparse-news" --masks intersect
      soup generate "$(soup cook --sample contracts.jsonl)" "This agreement"
    """
    if sample is None and recipe is None:
        raise typer.BadParameter("Give --sample FILE to choose from, or --recipe REF=WEIGHT,... by hand.")
    choosing = selector or paper or single or encoder or parameters or max_ingredients or top
    if recipe is not None and (choosing or pool_tag or pool_namespace or pool_method):
        raise typer.BadParameter("--recipe leaves nothing to select: drop the options that choose.")
    how = _mixing(mixing, scale=scale, assume_same_init=assume_same_init, max_width=max_width, masks=masks)
    try:
        request = CookRequest(
            sample=None if sample is None else session.client.sample(read_texts(sample)),
            selector=selector_of(selector, paper=paper, encoder=encoder, parameters=parameters),
            options=options_of(single=single, max_ingredients=max_ingredients, top=top),
            pool=pool_of(base=base, tag=pool_tag, namespaces=pool_namespace, method=pool_method),
            recipe=None if recipe is None else parse_recipe(recipe),
            name=name,
            verify=verify,
            **how,
        )
    except ValidationError as error:
        raise usage_error(error, _NAMES) from None
    with progress_bar("cooking") as report:
        cooked = session.client.cook(request, wait=wait, progress=report)
    if session.json:
        as_json(cooked)
    elif cooked.get("object") == "job":
        data(cooked["id"])
        talk(f"Cooking goes on as a job: `soup jobs watch {cooked['id']}`.")
    else:
        _tell(cooked)
        data(cooked["model"])


def _mixing(
    method: str, *, scale: str | None, assume_same_init: bool, max_width: int | None, masks: str | None
) -> dict[str, Any]:
    """The fields of a request that say how to mix; raises a usage error for flags that contradict each other.

    A rule for masks asks for an average: nothing else keeps any.
    """
    if masks is not None and method not in ("auto", "average"):
        raise typer.BadParameter(f"--mixing {method} keeps no mask: drop --masks, or mix by average.")
    method = method if masks is None else "average"
    if method == "merge" and (scale is not None or assume_same_init or max_width is not None):
        raise typer.BadParameter("--mixing merge is of one bank: drop --scale, --assume-same-init and --max-width.")
    if method == "concat" and assume_same_init:
        raise typer.BadParameter("--mixing concat needs no common initialisation: drop --assume-same-init.")
    if method == "average" and max_width is not None:
        raise typer.BadParameter("--mixing average makes nothing wider: drop --max-width.")
    given = {"method": method, "scale": scale, "assume_same_init": assume_same_init or None, "masks": masks}
    fields: dict[str, Any] = {"mixing": {name: value for name, value in given.items() if value is not None}}
    return fields | ({} if max_width is None else {"max_width": max_width})


def parse_recipe(text: str) -> HandRecipe:
    """`ref=0.5,ref=0.5` (a ref alone weighs 1) as a recipe; raises a usage error."""
    found: list[WeightedRef] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        ref, equals, weight = part.partition("=")
        try:
            found.append(WeightedRef(ref=ref.strip(), weight=float(weight) if equals else 1.0))
        except (ValueError, ValidationError):
            raise typer.BadParameter(
                f"--recipe takes REF=WEIGHT with weights that are not negative, not {part!r}."
            ) from None
    if not found:
        raise typer.BadParameter("--recipe names no ingredient: write it as REF=WEIGHT,REF=WEIGHT.")
    return HandRecipe(ingredients=tuple(found))


def _tell(cooked: dict[str, Any]) -> None:
    """On stderr: why this model."""
    if cooked.get("selection"):
        talk(selection_text(cooked["selection"]))
        comment(cooked)
    if cooked.get("abstained"):
        talk(f"The base model is the answer: {cooked.get('reason')}")
    elif cooked.get("cached"):
        talk("Cooked before: the same soup is used again.")
    check = cooked.get("verification")
    if check:
        talk(
            f"On the sample: {check['difference']:+.4f} (standard error {check['standard_error']:.4f}) mean NLL per "
            f"token against the base, over {check['passages']} passages."
        )
    report = cooked.get("report") or {}
    if report and not cooked.get("abstained"):
        talk(mixing_text(cooked.get("reason"), report))
    for note in report.get("notes") or ():
        talk(f"Note: {note}")


def mixing_text(reason: str | None, report: dict[str, Any]) -> str:
    """Why this mixing, what the soup costs to run, and how far it is from the exact mixture."""
    if report.get("members") == 1:
        return reason or ""
    parts = [f"{report['relative_cost']:.2f} times the cost of one adapter"]
    if report.get("width_out"):
        parts.append(f"width {report['width_out']}")
    if report.get("residual") is not None:
        parts.append(f"{report['residual']:.2g} from the exact mixture")
    return f"{reason or ''} ({', '.join(parts)})".strip()


def ingredients_text(cooked: dict[str, Any]) -> str:
    """The chosen adapters of an answer as `domain weight`, in order of rank."""
    selected: Sequence[dict[str, Any]] = (cooked.get("selection") or {}).get("selected") or ()
    return ", ".join(f"{row['domain']} {float(row['weight']):.2f}" for row in selected)
