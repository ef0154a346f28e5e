"""The `dnn2gp` command, also run by `python -m dnn2gp`."""

import sys


def main() -> None:
    """Run the command line, with a short message if its packages are missing or Ctrl-C is pressed during imports."""
    from dnn2gp.support.errors import MissingExtraError

    try:
        from dnn2gp.apps.cli import run
    except MissingExtraError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
