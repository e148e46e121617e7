"""Copies on a stream of their own: what a GPU is asked to do, in which order."""

from contextlib import contextmanager
from typing import Any

import pytest
import torch

from conveyor.numerics.copy_stream import CopyStream


def test_without_a_gpu_it_is_a_plain_copy() -> None:
    images = torch.arange(4)
    assert CopyStream(torch.device("cpu"))(images) is images
    assert CopyStream(torch.device("meta"))(images).is_meta


def test_what_is_computed_waits_for_the_copy_and_holds_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []

    class Stream:
        def __init__(self, device: Any) -> None:
            self.name = "copying" if not done else "computing"
            done.append(f"{self.name} stream")

        def wait_stream(self, other: "Stream") -> None:
            done.append(f"{self.name} waits for {other.name}")

    class Images:
        is_cuda = False

        def pin_memory(self) -> "Images":
            done.append("page-locked")
            return self

        def to(self, device: Any, non_blocking: bool) -> "Images":
            done.append(f"copy to {device.type}, without waiting: {non_blocking}")
            return self

        def record_stream(self, stream: Stream) -> None:
            done.append(f"used by {stream.name}")

    @contextmanager
    def on(stream: Stream) -> Any:
        done.append(f"on {stream.name}")
        yield
        done.append("end")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    CopyStream(torch.device("cuda", 0))(Images())  # type: ignore[arg-type]
    assert done == [
        "copying stream", "on copying", "page-locked", "copy to cuda, without waiting: True", "end", "computing stream",
        "computing waits for copying", "used by computing",
    ]  # fmt: skip
