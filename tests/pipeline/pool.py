"""Worker processes that stay alive for a whole test session: torch is imported once in each, cases run one by one.

Run as a script it is one such worker. A case is a function `case(rank, **arguments)` in some file; it runs with
torch.distributed initialised for the asked number of workers and returns something that `torch.save` can carry.
"""

import importlib.util
import io
import json
import os
import selectors
import socket
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

SIZE = 4
TIMEOUT_S = 1200
"""No limit of its own for a case: pytest ends a slow one. Sixty updates can take minutes."""
PATIENCE_S = 10
"""What the peers of a worker that has failed get: they would wait for it, as its process goes on."""


class Pool:
    """The parent's side: start once, `run` cases."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.cases = 0
        self.workers: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        self._start()

    def _start(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GLOO_SOCKET_IFNAME": "lo"}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        for rank in range(SIZE):
            ours, theirs = socket.socketpair()
            words = [str(rank), str(self.store.port), str(theirs.fileno())]
            command = [sys.executable, "-W", "error::RuntimeWarning", __file__, *words]
            process = subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()])
            theirs.close()
            ours.settimeout(TIMEOUT_S)
            self.workers.append((process, ours))

    def run(self, case: Any, workers: int, **arguments: Any) -> list[Any]:
        """The results of `case` on `workers` processes, by rank."""
        self.cases += 1
        order = {
            "file": case.__code__.co_filename,
            "case": case.__name__,
            "workers": workers,
            "number": self.cases,
            "arguments": arguments,
        }
        for process, connection in self.workers[:workers]:
            assert process.poll() is None, "a worker of the pool is gone"
            send(connection, json.dumps(order).encode())
        results = self._answers(workers)
        errors = [one["error"] for one in results.values() if "error" in one]
        if len(results) < workers:
            self._start_again()
        # The first own error; the others only lost a peer.
        errors.sort(key=lambda text: "onnection closed" in text or "peer" in text)
        assert not errors, errors[0]
        return [results[rank]["result"] for rank in range(workers)]

    def _answers(self, workers: int) -> dict[int, Any]:
        """By rank; after an error not of all of them."""
        import torch

        found: dict[int, Any] = {}
        with selectors.DefaultSelector() as selector:
            for rank, (_, connection) in enumerate(self.workers[:workers]):
                selector.register(connection, selectors.EVENT_READ, rank)
            while len(found) < workers:
                failed = any("error" in one for one in found.values())
                ready = selector.select(PATIENCE_S if failed else TIMEOUT_S)
                if not ready:
                    return found
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    found[key.data] = torch.load(io.BytesIO(receive(key.fileobj)), weights_only=True)  # type: ignore[arg-type]
        return found

    def _start_again(self) -> None:
        """Workers that wait for one that failed are of no more use."""
        for process, connection in self.workers:
            connection.close()
            process.kill()
            process.wait()
        self.workers.clear()
        self._start()

    def close(self) -> None:
        for _, connection in self.workers:
            connection.close()
        for process, _ in self.workers:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def send(connection: socket.socket, data: bytes) -> None:
    connection.sendall(len(data).to_bytes(8, "little") + data)


def receive(connection: socket.socket) -> bytes:
    length = int.from_bytes(_exactly(connection, 8), "little")
    return _exactly(connection, length)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        part = connection.recv(min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def work(rank: int, port: int, connection: socket.socket) -> None:
    """The worker's side: until the parent closes the connection."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    while True:
        try:
            order = json.loads(receive(connection))
        except EOFError:
            return
        answer: dict[str, Any]
        try:
            dist.init_process_group(
                "gloo",
                store=dist.PrefixStore(str(order["number"]), store),
                rank=rank,
                world_size=order["workers"],
                timeout=timedelta(seconds=40),
            )
            case = getattr(_module(order["file"]), order["case"])
            answer = {"result": case(rank, **order["arguments"])}
        except Exception:
            answer = {"error": traceback.format_exc()}
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
        buffer = io.BytesIO()
        torch.save(answer, buffer)
        send(connection, buffer.getvalue())


def _module(file: str) -> Any:
    name = "pool_" + Path(file).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


if __name__ == "__main__":
    work(int(sys.argv[1]), int(sys.argv[2]), socket.socket(fileno=int(sys.argv[3])))
