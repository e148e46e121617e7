"""How much memory this process has needed."""

import resource
import sys


def peak_resident() -> int:
    """Bytes: the most memory that was resident since this program started.

    Linux passes `ru_maxrss` on to a program that a process starts in its place, so a small run started by a large program
    would report that program's peak. The high-water mark of the address space begins anew.
    """
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    # Bytes on macOS, KiB elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
