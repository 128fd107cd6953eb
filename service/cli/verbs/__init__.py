"""The verbs of `soup`, one module each and named like it; none imports another. `service.cli.app` finds them."""
