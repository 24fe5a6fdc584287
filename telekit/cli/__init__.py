"""The command line: thin commands over the package's functions.

Exit 0 when done, 1 when the answer is a negative verdict, 2 for bad input (one message on standard error).
"""

from telekit.cli.app import main as main
