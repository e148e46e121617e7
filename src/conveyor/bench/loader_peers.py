"""Other loaders on the same files: random-resized crops as 8-bit batches. Each is optional.

A peer is a function (files, size, batch, threads) that sets everything up and returns a function that delivers every file
once and returns the number of images; what is set up (worker processes, traced graphs) is kept from round to round. All
sides use the same files and the same number of threads or worker processes.
"""

import importlib.util
import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from conveyor.data.feed import TrainingFeed
from conveyor.data.formats.listing import Listing
from conveyor.data.formats.stores import FolderStore
from conveyor.data.photo.centre import Floats
from conveyor.data.photo.crops import ATTEMPTS, CropRule
from conveyor.data.photo.encoded import EncodedDataset
from conveyor.numerics.allocator import keep_freed_memory
from conveyor.options.data import DataOptions
from conveyor.topology import Topology

Deliver = Callable[[], int]
Peer = Callable[[Sequence[Path], int, int, int], Deliver]


def available() -> dict[str, Peer]:
    """The peers whose libraries are installed, ourselves first."""
    peers: dict[str, Peer] = {"conveyor": conveyor, "DataLoader + Pillow": data_loader}
    for library, name, peer in (
        ("spdl", "SPDL" if _installed("spdl") and _spdl_decodes() else "SPDL + Pillow", spdl),
        ("tensorflow", "tf.data", tf_data),
        ("nvidia.dali", "DALI (CPU)", dali),
    ):
        if _installed(library):
            peers[name] = peer
    return peers


def conveyor(files: Sequence[Path], size: int, batch: int, threads: int) -> Deliver:
    keep_freed_memory()  # as a run does
    root = Path(files[0].anchor or ".")
    listing = Listing(root, ("all",), {"train": tuple((str(path.relative_to(root)), 0) for path in files)})
    dataset = EncodedDataset(
        FolderStore(listing, "train"),
        DataOptions(),
        train=True,
        crop="resized",
        image_size=size,
        channels=3,
        num_classes=1,
        class_names=(),
        seed=0,
    )
    updates = len(files) // batch

    def deliver() -> int:
        feed = TrainingFeed(dataset, Topology(batch), updates_per_epoch=updates, stop_update=updates, threads=threads)
        with feed:
            return sum(len(each) for each in feed)

    return deliver


class PillowDataset(torch.utils.data.Dataset[torch.Tensor]):
    """The usual way: open, convert, crop and resize in one step of Pillow."""

    def __init__(self, files: Sequence[Path], size: int) -> None:
        self._files = files
        self._size = size
        self._rule = CropRule.training(DataOptions(), "resized", size)

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self._files[index]) as opened:
            image = opened.convert("RGB")
        left, top, right, bottom = _random_box(self._rule, index, image.height, image.width).tolist()
        resized = image.resize((self._size, self._size), Image.Resampling.BILINEAR, box=(left, top, right, bottom))
        return torch.from_numpy(np.array(resized))


def _random_box(rule: CropRule, index: int, height: int, width: int) -> Floats:
    draws = np.random.default_rng(index).random((1, ATTEMPTS[rule.mode], 4))
    box: Floats = rule.boxes(np.array([float(height)]), np.array([float(width)]), draws)[0]
    return box


def data_loader(files: Sequence[Path], size: int, batch: int, threads: int) -> Deliver:
    loader = torch.utils.data.DataLoader(
        PillowDataset(files, size),
        batch_size=batch,
        shuffle=True,
        num_workers=threads,
        drop_last=True,
        persistent_workers=True,
    )
    return lambda: sum(len(each) for each in loader)


def spdl(files: Sequence[Path], size: int, batch: int, threads: int) -> Deliver:
    """Its own decoder where FFmpeg's libraries are installed, else its pipeline around Pillow."""
    from spdl.pipeline import PipelineBuilder

    decode, collate = _spdl_functions(files, size)

    def deliver() -> int:
        pipeline = (
            PipelineBuilder()
            .add_source(range(len(files)))
            .pipe(decode, concurrency=threads, output_order="input")
            .aggregate(batch, drop_last=True)
            .pipe(collate)
            .add_sink(2)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            return sum(len(each) for each in pipeline.get_iterator(timeout=120))

    return deliver


def _spdl_decodes() -> bool:
    """Whether SPDL's own decoder runs: it needs FFmpeg's shared libraries."""
    picture = io.BytesIO()
    Image.new("RGB", (16, 16)).save(picture, "JPEG")
    try:
        import spdl.io

        spdl.io.decode_packets(spdl.io.demux_image(picture.getvalue()))
    except Exception:
        return False
    return True


def _spdl_functions(files: Sequence[Path], size: int) -> tuple[Callable[[int], Any], Callable[[list[Any]], Any]]:
    import spdl.io

    rule = CropRule.training(DataOptions(), "resized", size)

    def decode(index: int) -> Any:
        data = files[index].read_bytes()
        with Image.open(io.BytesIO(data)) as header:
            width, height = header.size
        box = _random_box(rule, index, height, width).astype(int)
        crop = f"crop={box[2] - box[0]}:{box[3] - box[1]}:{box[0]}:{box[1]}"
        scale = f"scale={size}:{size}:flags=bilinear,format=pix_fmts=rgb24"
        return spdl.io.decode_packets(spdl.io.demux_image(data), filter_desc=f"{crop},{scale}")

    if not _spdl_decodes():
        return PillowDataset(files, size).__getitem__, torch.stack
    return decode, lambda frames: spdl.io.to_numpy(spdl.io.convert_frames(frames))


def tf_data(files: Sequence[Path], size: int, batch: int, threads: int) -> Deliver:
    import tensorflow as tf

    def decode(path: Any) -> Any:
        data = tf.io.read_file(path)
        shape = tf.image.extract_jpeg_shape(data)
        begin, extent, _ = tf.image.sample_distorted_bounding_box(
            shape, tf.zeros([1, 0, 4]), area_range=(0.08, 1.0), aspect_ratio_range=(3 / 4, 4 / 3),
            max_attempts=10, use_image_if_no_bounding_boxes=True,
        )  # fmt: skip
        y, x, _ = tf.unstack(begin)
        height, width, _ = tf.unstack(extent)
        image = tf.image.decode_and_crop_jpeg(data, tf.stack([y, x, height, width]), channels=3)
        return tf.cast(tf.image.resize(image, [size, size]), tf.uint8)

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    data = tf.data.Dataset.from_tensor_slices([str(path) for path in files])
    settings = tf.data.Options()
    settings.threading.private_threadpool_size = threads
    data = (
        data.map(decode, num_parallel_calls=threads)
        .batch(batch, drop_remainder=True)
        .prefetch(2)
        .with_options(settings)
    )
    return lambda: sum(int(each.shape[0]) for each in data)


def dali(files: Sequence[Path], size: int, batch: int, threads: int) -> Deliver:
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=batch, num_threads=threads, device_id=None)
    def pipeline() -> Any:
        encoded, _ = fn.readers.file(files=[str(path) for path in files], name="reader")
        decoded = fn.decoders.image_random_crop(encoded, device="cpu", output_type=types.RGB, random_area=[0.08, 1.0])
        return fn.resize(decoded, size=[size, size], interp_type=types.INTERP_LINEAR)

    built = pipeline()
    built.build()
    updates = len(files) // batch

    def deliver() -> int:
        for _ in range(updates):
            built.run()
        return updates * batch

    return deliver


def _installed(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is not None
    except ModuleNotFoundError:
        return False
