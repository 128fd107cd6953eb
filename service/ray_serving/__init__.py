"""Inference on Ray Serve: replicas that hold an engine each, and the engine of a server that sends its requests there.

The server keeps everything that concerns people: keys, names, limits, usage, the audit. What it sends is a request of
its engine with the digest of an adapter, and what comes back are tokens. `plan` is what a replica is built of, `wire`
what travels, `replica` the part inside of Ray, `deployment` puts it there, `engine` is the server's side. Ray is
imported in functions, where somebody asked for it. Reasons: docs/decisions/0059-ray-serves-digests.md.
"""
