"""`soup push`: adapter directories to the server, one or hundreds."""

from adaptersoup.cli.verbs.push.command import push

__all__ = ["push"]
