"""The command `conveyor`, which is `python -m conveyor` too: Ctrl-C while its own modules are imported is one line, as later."""

import sys


def main() -> int:
    """Run the command line of this process."""
    try:
        from conveyor.cli import main as run

        return run()
    except KeyboardInterrupt:  # in the first tenths of a second; later ones end in `cli.exit_code`
        print("conveyor: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
