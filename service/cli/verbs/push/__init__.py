"""`soup push`: adapter directories to the server, one or hundreds."""

from service.cli.verbs.push.command import push

__all__ = ["push"]
