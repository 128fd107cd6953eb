"""Measurements: ours and its peers in one run, a table on the screen, and with `--out` a results file.

The documentation quotes those files and nothing else. Each module is one benchmark with a quick form (`make bench`);
`demo.results` is the form of the files, and the demo imports nothing from here. Threads wait as under `soup serve`.
"""

from service.settings import calm_threads

calm_threads()
