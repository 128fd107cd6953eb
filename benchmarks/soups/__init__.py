"""The parts of `benchmarks.adaptersoup`: its setting, its cells, and what is counted of them.

The names of ways that its results and the pages about them share are here.
"""

EFFORTS = ("instant", "quick", "thorough", "tune")
ALONE = "one adapter"
