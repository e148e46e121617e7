"""Images and labels: finding, decoding, augmenting and feeding them. `open_dataset` is the entry; it brings torch in."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conveyor.data.open import open_dataset

__all__ = ["open_dataset"]


def __getattr__(name: str) -> Any:
    if name == "open_dataset":
        from conveyor.data.open import open_dataset

        return open_dataset
    raise AttributeError(f"module 'conveyor.data' has no attribute {name!r}")
