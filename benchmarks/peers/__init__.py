"""Engines that ours is held against, each in a virtual environment of its own (`make bench-peers`).

`process` starts one and talks to it; `answering` is the loop of its process, which has none of this project's packages;
the modules named after peers are the calls of theirs, run by that loop. Requirements lie beside them.
"""
