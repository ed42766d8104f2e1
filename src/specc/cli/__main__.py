"""`python -m specc.cli` is the command `specc`."""

from specc.cli import main

main()
