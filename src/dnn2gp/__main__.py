"""python -m dnn2gp: the command line."""

from dnn2gp.apps.cli import main

main()
