"""Lets `python -m headway` run the command `headway`, for environments whose scripts directory is not on the PATH."""

from headway.cli import main

main()
