"""`python -m conveyor.launch.worker_process FILE`: one worker of a job that `launch.run_job` began.

FILE is JSON: the options, what to run, and where the main worker puts the result. The exit code is 0 on success; every
other end is recorded as `launch.failure` describes.
"""

import json
import os
import sys
from pathlib import Path

from conveyor.launch import failure
from conveyor.processes import print_any_text


def main(path: str) -> int:
    """Run the job described by `path`; returns the exit code."""
    try:
        from conveyor.launch import run_job

        job = json.loads(Path(path).read_text(encoding="utf-8"))
        run_job.work(job)
    except BaseException as error:
        if isinstance(error, SystemExit) and error.code in (0, None):
            return 0
        return failure.record(error, os.environ)
    return 0


if __name__ == "__main__":
    print_any_text()
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of the data feed or of a broken process group must not delay the end of a failed worker.
    os._exit(code) if code else sys.exit(0)
