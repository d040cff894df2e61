"""Lets `python -m headway` run the command `headway`, for environments whose scripts are not on the PATH."""

from headway.cli import main

main()
