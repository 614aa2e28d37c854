"""The program: `vicinal`, and `python -m vicinal`."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being imported ends it as Ctrl-C does later."""
    try:
        from .cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
