"""`python -m adaptersoup.cli`: the command `soup` where its script is not on the path."""

from adaptersoup.cli.app import main

main()
