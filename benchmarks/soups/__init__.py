"""The steps of `benchmarks.adaptersoup`: its setting, its cells, the ladder beside them, and what is counted.

The names of ways that its results and the pages about them share are here.
"""

EFFORTS = ("instant", "quick", "thorough", "tune")
PAPER = ("uniform", "similarity", "clustering")
LADDER = ("prompt", "knn_lm", "peft", "full")
BASE, CONTROL = "base", "control"
SINGLE, GREEDY = "best single (saw the test)", "greedy (saw the test)"
ALONE = "one adapter"
