"""The one way to draw: figures of results, made with matplotlib for the command line, notebooks, the demo and pages.

Knows the values of `registry.spec` and nothing of servers or models. Imported only where something is drawn, since an
install of the client alone has no matplotlib.
"""

from importlib.util import find_spec

if find_spec("matplotlib") is None:
    raise ImportError("Plots need matplotlib: pip install 'adaptersoup[plots]'.")
