import socket
import sys

import pytest

from conveyor.serve.connections import backlog, refuse_new
from conveyor.serve.server import bind

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="socket filters are Linux's")


def test_those_on_the_doorstep_are_served_and_nobody_new_comes_in() -> None:
    with bind("127.0.0.1", 0) as listener:
        listener.listen(8)
        address = listener.getsockname()
        with socket.create_connection(address, timeout=5) as early:
            early.sendall(b"hello")
            assert backlog(listener) == 1
            refuse_new(listener)
            with pytest.raises(TimeoutError):
                socket.create_connection(address, timeout=0.3).close()
            assert backlog(listener) == 1
            served, _ = listener.accept()
            with served:
                assert served.recv(5) == b"hello"
                served.sendall(b"answer")
            assert early.recv(10) == b"answer"
            assert backlog(listener) == 0
