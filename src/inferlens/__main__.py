"""``python -m inferlens`` is the command line."""

from inferlens.cli import main

main()
