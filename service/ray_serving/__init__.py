"""Inference on Ray Serve: replicas with an engine each, and the engine of a server that sends requests to them.

Keys, names, limits, usage and the audit stay with the server; it sends requests with the digests of adapters, and gets
tokens back. `plan` configures a replica, `wire` has the messages, `replica` runs inside of Ray, `deployment` deploys
it, `engine` is the server's side. Ray is imported in functions, only where it is used. Reasons:
docs/decisions/0021-ray.md.
"""
