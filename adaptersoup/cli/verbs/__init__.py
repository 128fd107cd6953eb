"""The verbs of `soup`, one module each and named like it but for `SHARED_MODULES` of `adaptersoup.cli.app`,
which finds them; none imports another."""
