"""The steps of `benchmarks.adaptersoup`: its setting, its cells, the ladder beside them, and what is counted.

The names of ways that its results and the pages about them share are here.
"""

EFFORTS = ("instant", "quick", "thorough", "tune")
PAPER = ("uniform", "similarity", "clustering")
CLUSTERING_3, CLUSTERING_10, CLUSTERING_15, TWO_BEST, ENSEMBLE = VARIANTS = (
    "clustering_3",
    "clustering_10",
    "clustering_15",
    "clustering_two_best",
    "clustering_ensemble",
)
"""The paper's clustering with at most 3, 10 or 15 adapters or with the two best others, which saw the test, and the
mean of the logits of its adapters instead of their soup."""
LADDER = ("prompt", "knn_lm", "peft", "full")
BASE, CONTROL = "base", "control"
SINGLE, GREEDY = "best single (saw the test)", "greedy (saw the test)"
ALONE = "one adapter"
