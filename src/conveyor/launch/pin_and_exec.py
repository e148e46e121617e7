"""`python -m conveyor.launch.pin_and_exec PROGRAM ARGUMENT...`: the first thing a worker runs.

Takes this worker's cores and threads from what the launcher dealt out, then becomes PROGRAM. No torch is imported:
OMP_NUM_THREADS and the affinity must be set before it is.
"""

import os
import sys

from conveyor.launch.cores import Budget, pin
from conveyor.processes import end_with_parent


def local_budget(environment: dict[str, str]) -> dict[str, str]:
    """The variables of this worker, chosen by LOCAL_RANK from the lists CONVEYOR_CORES and CONVEYOR_THREADS."""
    rank = int(environment.get("LOCAL_RANK", "0"))
    cores = environment.get("CONVEYOR_CORES", "").split(";")
    threads = environment.get("CONVEYOR_THREADS", "").split(";")
    if rank >= len(threads) or not threads[rank]:
        return {}
    mine = Budget((), int(threads[rank]))
    return {
        **mine.environment(),
        "CONVEYOR_CORES": cores[rank] if rank < len(cores) else "",
        "CONVEYOR_THREADS": threads[rank],
    }


def main(argv: list[str]) -> None:
    """Pin, set the thread budget, and become `argv`."""
    environment = dict(os.environ)
    environment.update(local_budget(environment))
    pin(environment)
    end_with_parent()
    try:
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        print(f"conveyor: cannot start {argv[0]!r}: {error.strerror}.", file=sys.stderr)
        raise SystemExit(127) from None


if __name__ == "__main__":
    main(sys.argv[1:])
