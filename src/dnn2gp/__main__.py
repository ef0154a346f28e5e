"""python -m dnn2gp: the command line."""

from dnn2gp.cli import main

main()
