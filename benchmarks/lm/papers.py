"""The claims of the three papers, each as a contrast that is negative if the claim holds here (`benchmarks.claims`).

Called by `findings`. Scores on GLUE and similar tasks become mean NLL on the test text of a domain. "As good as" means
at least nine tenths of the other's gain over the base model, and "better" any difference. Names are those of
`plan.variants`. `without_2-3` is the largest Houlsby adapter without layers 2 and 3, `routed` AdaMix with random routes
at inference.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.claims import Claim

MARGIN = 0.1
"""Of the other's gain, that one may lack and still be called as good."""
Contrast = Mapping[str, float]


def better(one: str, other: str) -> Contrast:
    """The contrast that one's NLL is below the other's."""
    return {one: 1.0, other: -1.0}


def as_good(one: str, other: str) -> Contrast:
    """The contrast that one has more than nine tenths of the other's gain over the base."""
    return {one: 1.0, other: MARGIN - 1.0, "base": -MARGIN}


_GLUE = "GLUE 80.0 (80.4 fully fine-tuned) with 3.6 % of the parameters a task"
_FIGURE_6 = "Houlsby et al., figure 6"
_SCALE = f"{_FIGURE_6}: robust with a standard deviation of 1e-2 and below, worse above"
_AVERAGES = "AdaMix, tables 1 and 2"
_SPARSE = "SparseAdapter"


def houlsby(largest: int, layers: int, scales: tuple[float, ...]) -> list[Claim]:
    """Claims of Parameter-efficient transfer learning for NLP, with the experiment's largest m for its 64."""
    most, half = f"houlsby_{largest}", layers // 2
    alone = {f"without_{i}-{i}": 1.0 / layers for i in range(layers)}
    every = {f"without_{i}-{i}": 1.0 for i in range(layers)}
    found = [
        Claim(
            "houlsby_as_full", f"Houlsby et al., table 1: {_GLUE}",
            f"m = {largest} has nine tenths of full fine-tuning's gain", as_good(most, "full"),
        ),
        Claim(
            "small_as_large", "Houlsby et al., section 3.6: m = 8 / 64 / 256 give 86.2 / 85.8 / 85.7",
            f"m = 8 has nine tenths of the gain of m = {largest}", as_good("houlsby_8", most),
        ),
        *(
            Claim(
                f"houlsby_over_{top}", "Houlsby et al., figures 3, 4: better than top layers at fewer parameters",
                f"m = {largest} is better than {said}", better(most, top),
            )
            for top, said in (("top_1", "training the last layer"), ("top_2", "training the last two layers"))
        ),
        Claim(
            "houlsby_over_norms", "Houlsby et al., section 3.4: LayerNorms alone lose 3.5 % (CoLA) and 4 % (MNLI)",
            "m = 8 is better than training the LayerNorms alone", better("houlsby_8", "norms"),
        ),
        Claim(
            "one_layer_matters_little", f"{_FIGURE_6}: without one layer's adapters at most 2 % are lost",
            "without one layer's adapters half of the gain stays, over layers on average",
            {**alone, most: -0.5, "base": -0.5},
        ),
        Claim(
            "all_layers_matter", f"{_FIGURE_6}: without all of them performance drops to the majority class",
            "without all layers' adapters more is lost than without each, added up",
            {**every, most: 1.0 - layers, f"without_0-{layers - 1}": -1.0},
        ),
        Claim(
            "low_layers_matter_least", f"{_FIGURE_6}: adapters on lower layers have less impact",
            "less is lost without the lower half than without the upper half",
            better(f"without_0-{half - 1}", f"without_{half}-{layers - 1}"),
        ),
    ]  # fmt: skip
    return found + [_scale_claim(scale, most) for scale in scales]


def scale_name(scale: float) -> str:
    """The variant that starts with this standard deviation."""
    return f"init_{scale:g}".replace("-", "m").replace(".", "p")


def _scale_claim(scale: float, most: str) -> Claim:
    name = scale_name(scale)
    if scale < 1e-2:
        return Claim(f"{name}_as_1em2", _SCALE, f"a start of {scale:g} is as good as 1e-2", as_good(name, most))
    return Claim(f"{name}_harms", _SCALE, f"a start of {scale:g} is worse than 1e-2", better(most, name))


ADAMIX = [
    Claim(
        "adamix_over_single", f"{_AVERAGES}: 89.9 against Pfeiffer's 88.4 (RoBERTa-large); 84.5 against 83.0 (BERT)",
        "the merged bank is better than one adapter of its size, after as many steps", better("adamix", "pfeiffer_16"),
    ),
    Claim(
        "adamix_over_single_twice", f"{_AVERAGES}: as above; a step of AdaMix is two passes",
        "and better than one adapter after as many passes", better("adamix", "pfeiffer_16_twice"),
    ),
    Claim(
        "adamix_over_single_on_a_tenth", f"{_AVERAGES}: as above; the paper does not say it of fewer data",
        "better than one adapter of its size, after as many steps on a tenth of the data",
        better("adamix_tenth", "pfeiffer_16_tenth"),
    ),
    Claim(
        "adamix_over_full", f"{_AVERAGES}: 89.9 against 88.9 for full fine-tuning",
        "the merged bank is better than full fine-tuning", better("adamix", "full"),
    ),
    Claim(
        "consistency_helps", "AdaMix, ablation: worse without consistency on 4 of 5 tasks",
        "better with the consistency loss", better("adamix", "adamix_no_consistency"),
    ),
    Claim(
        "sharing_helps", "AdaMix, ablation: worse without sharing",
        "better with a shared up-projection, on all data", better("adamix", "adamix_no_sharing"),
    ),
    Claim(
        "sharing_helps_on_a_tenth", "AdaMix, ablation: RTE, the smallest task, loses 9.4 without sharing",
        "better with a shared up-projection, on a tenth of the data",
        better("adamix_tenth", "adamix_no_sharing_tenth"),
    ),
    Claim(
        "sharing_helps_more_on_a_tenth", "AdaMix, ablation: sharing matters more the fewer data there are",
        "it gains more on a tenth of the data than on all",
        {"adamix_tenth": 1.0, "adamix_no_sharing_tenth": -1.0, "adamix": -1.0, "adamix_no_sharing": 1.0},
    ),
    Claim(
        "merging_over_routing", "AdaMix, ablation: merged better than routed at random at inference",
        "the merge is better than random routes", better("adamix", "routed"),
    ),
]  # fmt: skip

SPARSE = [
    Claim(
        "snip_40_as_dense", f"{_SPARSE}: pruned by 40 % as good as dense, or better",
        "SNIP 40 % is as good as dense", as_good("snip_40", "houlsby_16"),
    ),
    *(
        Claim(
            f"snip_over_{other}", f"{_SPARSE}: SNIP is the best of the five scores at 40 %",
            f"SNIP is better than {said}", better("snip_40", f"{other}_40"),
        )
        for other, said in (
            ("random", "random"), ("magnitude", "magnitude"), ("erdos_renyi", "Erdos-Renyi"), ("grasp", "GraSP")
        )
    ),
    *(
        Claim(
            f"snip_{share}_as_dense", f"{_SPARSE}: fine up to 80 %",
            f"SNIP {share} % is as good as dense", as_good(f"snip_{share}", "houlsby_16"),
        )
        for share in (60, 80)
    ),
    *(
        Claim(
            f"large_{factor}_over_dense", f"{_SPARSE}, Large-Sparse: 1.3 over the dense adapter of as many parameters",
            f"{factor} times as wide is better than dense", better(f"large_{factor}", "houlsby_16"),
        )
        for factor in (2, 3, 4)
    ),
    Claim(
        "large_over_full", f"{_SPARSE}, Large-Sparse: 0.6 over full fine-tuning",
        "Large-Sparse is better than full fine-tuning, over its three widths on average",
        {"large_2": 1 / 3, "large_3": 1 / 3, "large_4": 1 / 3, "full": -1.0},
    ),
    *(
        Claim(
            f"{name}_snip_as_dense", f"{_SPARSE}: 40 % pruned is as good in other structures too",
            f"{said}: SNIP 40 % is as good as dense", as_good(f"{name}_snip", name),
        )
        for name, said in (
            ("pfeiffer_16", "Pfeiffer"), ("lora", "LoRA"), ("mam", "MAM"), ("fusion", "AdapterFusion")
        )
    ),
]  # fmt: skip
FASTER = 0.25
"""Of the steps, that Large-Sparse saves at least on the way to the dense adapter's loss."""
CONVERGENCE = "SparseAdapter, Large-Sparse: converges at least 25 % faster"
