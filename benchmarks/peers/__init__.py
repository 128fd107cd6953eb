"""Engines that are compared with ours, each in its own virtual environment (`make bench-peers`).

`process` starts a peer and communicates with it. `answering` is the loop of its process, which has none of this
project's packages. Modules named after peers have the calls that the loop runs; requirements are in the same folder.
"""
