"""A signal after a model of OpenVINO has come and gone reaches its handler."""

PROGRAM = """
import ctypes, signal
from tests.infer.engines.test_engine import IMAGES, PREPROCESSING
from tests.infer.small import small_source
from conveyor.infer.engines import signal_stack
from conveyor.infer.engines.engine import open_engine

def current():
    stack = signal_stack._Stack()
    ctypes.CDLL(None).sigaltstack(None, ctypes.byref(stack))
    return stack.ss_sp, stack.ss_flags, stack.ss_size

heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
before = current()
engine = open_engine(small_source(PREPROCESSING), "openvino", batch=5, threads=1)
engine(IMAGES)
assert current() == before, (current(), before)
engine.close()
del engine
signal.raise_signal(signal.SIGTERM)
print(heard)
"""


def test_a_signal_is_heard_after_openvino_was_used(python):
    done = python(PROGRAM)
    assert (done.returncode, done.stdout) == (0, "[15]\n"), done.stderr
