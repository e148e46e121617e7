"""Memory that a CPU run frees stays with the process, for the next step to take again, in large pages.

The C library hands every block above 32 MB back to the system when it is freed. A training step frees and asks again for
all of its activations, so each step would have the kernel clear the same gigabytes page by page: on ResNet-50 with 16
images of 224 px, 400,000 page faults and a fifth of the step.

A step uses more memory than the processor's address tables (TLB) cover with 4 kB pages: pages of 2 MB save another twentieth
of it. Most systems give them only to memory for which they were asked for, so the heap is grown once, asked for, and freed:
it stays with the process, and pages that are never written take no memory.
"""

import ctypes
import functools
import logging

_logger = logging.getLogger(__name__)

# The numbers of <malloc.h>. The largest threshold for giving memory back is 2 GB, less than a step may free; -1 means never.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _LARGEST = -1, 2**31 - 1
_MADV_HUGEPAGE, _PAGE = 14, 2**21
_BLOCK, _BLOCKS = 2**30, 4
"""The heap of a step in large pages: what a run needs beyond it comes in usual ones."""


@functools.cache
def keep_freed_memory() -> bool:
    """Tell the C library to keep what is freed, for the whole process; says whether it could be told (glibc only).

    To be called by the main thread, whose heap it is.
    """
    try:
        libc = ctypes.CDLL(None)
        mallopt, malloc, free, madvise = libc.mallopt, libc.malloc, libc.free, libc.madvise
    except (OSError, AttributeError, TypeError):
        return False
    mallopt.argtypes, mallopt.restype = [ctypes.c_int, ctypes.c_int], ctypes.c_int
    done = bool(mallopt(_MMAP_THRESHOLD, _LARGEST)) and bool(mallopt(_TRIM_THRESHOLD, _NEVER))
    _logger.debug("freed memory is %s", "kept by the process" if done else "given back to the system")
    if done:
        malloc.argtypes, malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
        free.argtypes, free.restype = [ctypes.c_void_p], None
        madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        blocks = [block for block in (malloc(_BLOCK) for _ in range(_BLOCKS)) if block]
        for block in blocks:
            # A system without large pages refuses, and nothing changes.
            madvise(-(-block // _PAGE) * _PAGE, _BLOCK - _PAGE, _MADV_HUGEPAGE)
        for block in blocks:
            free(block)
    return done
