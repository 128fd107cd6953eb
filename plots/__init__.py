"""Figures of results, drawn with matplotlib for the command line, notebooks, the demo and the pages.

Knows the values of `registry.spec`, and nothing of servers or models. Import it only where something is drawn: an
installation of the client alone has no matplotlib.
"""

from importlib.util import find_spec

if find_spec("matplotlib") is None:
    raise ImportError("Plots need matplotlib: pip install 'adaptersoup[plots]'.")
