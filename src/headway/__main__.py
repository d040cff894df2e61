"""`python -m headway` is the command `headway`, for an environment whose scripts are not on the path."""

from headway.cli import main

main()
