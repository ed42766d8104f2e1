"""`python -m specc` is the command `specc`."""

from specc.cli import main

main()
