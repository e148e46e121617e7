"""`python -m conveyor` is the command `conveyor`."""

import sys

from conveyor.cli import main

if __name__ == "__main__":
    sys.exit(main())
