"""Measurements of this project and of its peers in one run: a table on the screen, and with `--out` a results file.

The documentation quotes only those files. Each module is one benchmark with a quick form (`make bench`); `demo.results`
defines the format of the files, and the demo imports nothing from here. Threads wait as under `soup serve`.
"""

from service.settings import calm_threads

calm_threads()
