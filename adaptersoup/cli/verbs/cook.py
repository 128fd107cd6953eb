"""`soup cook`: cooks a soup for a sample, or by a recipe, and prints the model to use: the base if it abstains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from adaptersoup.cli.flags import Flag, Flags, ParsedFlags, usage_error
from adaptersoup.cli.output import as_json, data, progress_bar, talk
from adaptersoup.cli.plot_flag import PlotOption, save_plot
from adaptersoup.cli.remote import SAMPLE_FORMS, Remote, verb
from adaptersoup.cli.selection_flags import POOL, SELECTION, SELECTOR, options_of, pool_of, selector_of
from adaptersoup.cli.selection_text import talk_about_soup
from adaptersoup.client.samples import read_texts
from adaptersoup.values import Soup
from registry.errors import Unavailable
from registry.spec import MIXING_REQUESTS, CookRequest, HandRecipe, WeightedRef
from service.http.schemas.reading import body_of

COOK = Flags(
    CookRequest,
    {
        **SELECTION.only(*SELECTOR),
        "effort": Flag(
            "effort",
            "instant compares texts; quick weighs adapters by gradients; thorough weighs more; tune also trains on the "
            "sample (the server's default).",
        ),
        "also": Flag("also", "quick, thorough: another adapter to weigh, beside those of the pool; repeatable."),
        "control": Flag(
            "control",
            "quick, thorough: also weigh random adapters of the same size, as a baseline.",
            switch=True,
        ),
        "budget_seconds": Flag("budget.seconds", "Approximate limit in seconds for weighing or training."),
        "budget_passes": Flag("budget.passes", "Approximate limit in passes of the base model over the sample."),
        "budget_tokens": Flag(
            "budget.tokens",
            "Approximate limit in tokens; with its gradient, a token counts as more than 3 in weighing, and as 5 in "
            "tune.",
        ),
        "passes": Flag("tuning.passes", "tune: maximum epochs over the sample."),
        "rate": Flag("tuning.rate", "tune: learning rate of AdamW."),
        "target_modules": Flag(
            "tuning.target_modules",
            "tune: modules of a LoRA to train: all-linear (default), or those of the pool's LoRAs.",
        ),
        "keep": Flag("keep", "tune: add the tuned adapter to the pool, with this domain."),
        "verify": Flag(
            "verify",
            "Abstain unless the soup beats the base model on the sample.",
            "--verify/--no-verify",
            show_default=True,
        ),
        "name": Flag("name", "Name of the soup, as namespace/name."),
        "owner": Flag("owner", "Owner of the name, such as a team or an address."),
        "mixing": Flag(
            "mixing.method",
            "auto chooses. At the cost of one adapter: average, align, ties, dare, slerp, fisher, regmean, and nearly "
            "exact recompress. Exact, but wider: concat. Learnt changes, times --scale: task_arithmetic. For a bank of "
            "experts: merge.",
            show_default=True,
        ),
        "max_width": Flag(
            "max_width",
            "Maximum width of a soup by concat or recompress; by default {default}.",
            limits=(None, None),
        ),
        "width": Flag("mixing.width", "Width of a soup by recompress; by default that of its widest ingredient."),
        "seed": Flag("mixing.seed", "Random seed of recompress and dare; by default {default}."),
        "density": Flag("mixing.density", "Fraction of the entries that ties and dare keep."),
        "init_seed": Flag(
            "mixing.init_seed", "Seed of the start that task_arithmetic adds to, if the adapters do not record it."
        ),
        "by_inputs": Flag(
            "mixing.by_inputs", "Recompress LoRAs by the inputs of their modules on their samples.", switch=True
        ),
        "off_diagonal": Flag("mixing.off_diagonal", "Factor on the off-diagonal second moments in regmean."),
        "scale": Flag("mixing.scale", "Factor on the soup's output; by default {default}."),
        "assume_same_init": Flag(
            "mixing.assume_same_init",
            "Treat the adapters as if they started from the same tensors; recorded in the recipe.",
        ),
        "masks": Flag("mixing.masks", "Mask of an average of pruned adapters; by default the union of their masks."),
        **SELECTION.only(*POOL),
    },
    {
        "Effort": (
            "also",
            "control",
            "budget_seconds",
            "budget_passes",
            "budget_tokens",
            "passes",
            "rate",
            "target_modules",
            "keep",
        ),
        "Mixing": (
            "mixing",
            "max_width",
            "width",
            "seed",
            "density",
            "init_seed",
            "by_inputs",
            "off_diagonal",
            "scale",
            "assume_same_init",
            "masks",
        ),
    },
)


@verb
def cook(
    remote: Remote,
    sample: Annotated[Path | None, typer.Option(help=SAMPLE_FORMS)] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Mix these adapters, instead of choosing for a sample.", metavar="REF=WEIGHT,...")
    ] = None,
    *,
    flags: Annotated[ParsedFlags, COOK],
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the soup is cooked.")] = True,
    plot: PlotOption = None,
) -> None:
    """Cook a soup for a sample, or by a recipe.

    Prints the model to use: the soup, a single adapter if it is best, or the base model if nothing helps. --plot draws
    the ingredients and the comparison with the base model.

    \b
    Examples:
      soup cook --sample contracts.jsonl
      soup cook --sample contracts.jsonl --effort quick --plot contracts.svg
      soup cook --sample contracts.jsonl --effort thorough --also team/general --control
      soup cook --sample contracts.jsonl --effort tune --keep contracts --name team/contracts
      soup cook --sample contracts.txt --selector cosine --single
      soup cook --sample contracts.jsonl --paper --no-verify --name team/contracts
      soup cook --recipe "team/law=0.5,team/finance=0.5"
      soup cook --recipe "team/law,team/contracts" --mixing concat --max-width 256
      soup cook --recipe team/law-bank --name team/law
      soup cook --recipe "team/sparse-law,team/sparse-news" --masks intersect
      soup generate "$(soup cook --sample contracts.jsonl)" "This agreement"
    """
    if sample is None and recipe is None:
        raise typer.BadParameter("Give --sample FILE to choose adapters for, or --recipe REF=WEIGHT,... to mix.")
    if recipe is not None and flags.present(*SELECTOR, *POOL[1:]):
        raise typer.BadParameter("--recipe names the adapters: drop the options that choose them.")
    if plot is not None and not wait:
        raise typer.BadParameter("--plot needs the cooked soup: drop --no-wait.")
    fields = _mixing_fields(flags)
    try:
        request = CookRequest(
            sample=None if sample is None else remote.client.sample(read_texts(sample)),
            selector=selector_of(flags),
            options=options_of(flags),
            pool=pool_of(flags),
            recipe=None if recipe is None else parse_recipe(recipe),
            **fields,
        )
    except ValidationError as error:
        raise usage_error(error, COOK.by_path) from None
    if wait:
        with progress_bar("cooking") as report:
            begun = remote.client.begin_cook(request, progress=report)
        cooked = remote.follow("cooking", begun)
    else:
        cooked = remote.client.cook(request, wait=False)
    if remote.json:
        as_json(cooked)
    elif cooked.get("object") == "job":
        data(cooked["id"])
        talk(f"Cooking goes on as a job: `soup jobs watch {cooked['id']}`.")
    else:
        try:
            talk_about_soup(body_of(Soup, cooked))
        except Unavailable as error:  # of an older server: the soup is there all the same
            talk(error.message)
        data(cooked["model"])
    save_plot(plot, lambda: body_of(Soup, cooked).plot())


def _mixing_fields(flags: ParsedFlags) -> dict[str, Any]:
    """The fields of a request without those of the selection; raises a usage error for a flag of another method."""
    fields = {name: value for name, value in flags.nested().items() if name not in ("selector", "options", "pool")}
    mixing = fields["mixing"]
    if "masks" in flags and mixing["method"] == "auto":
        mixing["method"] = "average"  # no other method keeps masks
    method = mixing["method"]
    supporting = {
        COOK.by_path[f"mixing.{name}"]: [
            key for key, request in MIXING_REQUESTS.items() if name in request.model_fields
        ]
        for name in mixing
    }
    if "max_width" in flags:
        supporting["--max-width"] = [key for key, request in MIXING_REQUESTS.items() if request.widens]
    for flag, methods in supporting.items():
        if method not in methods:
            raise typer.BadParameter(f"--mixing {method} does not take {flag}: drop it, or use {', '.join(methods)}.")
    return fields


def parse_recipe(text: str) -> HandRecipe:
    """The recipe `ref=0.5,ref=0.5`, in which a ref without a weight has 1; raises a usage error."""
    ingredients: list[WeightedRef] = []
    for item in filter(None, map(str.strip, text.split(","))):
        ref, equals, weight = item.partition("=")
        try:
            ingredients.append(WeightedRef(ref=ref.strip(), weight=float(weight) if equals else 1.0))
        except (ValueError, ValidationError):
            raise typer.BadParameter(
                f"--recipe takes REF=WEIGHT with weights that are not negative, not {item!r}."
            ) from None
    if not ingredients:
        raise typer.BadParameter("--recipe names no ingredient: write it as REF=WEIGHT,REF=WEIGHT.")
    return HandRecipe(ingredients=tuple(ingredients))
