"""The engine in a process of its own, and what it shares with the replicas on Ray.

`client` is the engine of a server: it starts `program` as a child process and sends requests to it, as messages of
`wire` over a socket (`calls`). `host` is the engine of a `plan` on the other side, also of a replica.
"""
