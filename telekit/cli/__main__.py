"""``python -m telekit.cli``."""

from telekit.cli.app import main

main()
