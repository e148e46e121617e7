"""`python -m conveyor.serve SETTINGS`: a server from its settings as JSON; what the client starts."""

import logging
import signal
import sys

from conveyor.errors import UserError
from conveyor.processes import end_with_parent
from conveyor.serve.server import serve
from conveyor.serve.settings import ServeSettings


def main(text: str) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    end_with_parent(signal.SIGTERM)  # a client that is killed cannot stop its server any more
    try:
        return serve(ServeSettings.from_json(text), say=lambda line: print(line, file=sys.stderr, flush=True))
    except UserError as error:
        print(f"conveyor: error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
