"""`python -m service.cli`: the command `soup` where its script is not on the path."""

from service.cli.app import main

main()
