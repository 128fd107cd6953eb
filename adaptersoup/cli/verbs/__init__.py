"""The verbs of `soup`, one module each and named like it; none imports another. `adaptersoup.cli.app` finds them."""
