"""The options of `conveyor.train` and `conveyor.validate` as keyword arguments, for editors and type checkers.

Made by scripts/typed_options.py from the declarations; a test keeps it current.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict


class DataOptions(TypedDict, total=False):
    """Every option by its name; what is left out has its default."""

    data_dir: str | Path | None
    """Folder with the data, or a CSV or parquet list with columns path and label."""
    task: Literal["one-label", "multi-label"]
    """one-label: each image has one class. [one-label]"""
    hold_out: float
    """Of class folders and lists without a validation set. [0.1]"""
    folds: int | None
    """Cross-validation."""
    fold: int | None
    """Fold to validate on, 0 to N - 1 of --folds."""
    group_by: str | None
    """Regular expression that finds an image's group (a patient, a camera) in its path."""
    exclude_images: str | None
    """File of images to leave out."""
    generated_data: bool
    """Random images made once on the host and transferred like real ones."""
    synthetic_data: bool
    """Random images made on the device."""
    download: bool
    """Fetch a known small data set that is missing. [on]"""
    max_train_images: int | None
    """Use only the first N training images."""
    max_validation_images: int | None
    """Use only the first N validation images."""
    data_percentage: float
    """Share of the training images to use. [100.0%]"""
    skip_bad_images: bool
    """Skip and count images that cannot be decoded instead of stopping."""
    shuffle: Literal["full", "shards", "none"]
    """full: a permutation of the whole set in each epoch. [full]"""
    data_cache: str
    """Keep raw bytes in memory. [auto]"""
    loader_threads: int | None
    """Threads that decode images."""
    prefetch: int
    """Micro-batches prepared ahead. [4]"""
    train_crop: Literal["resized", "distorted", "resize-resized", "pad", "centre", "none"] | None
    """resized: random area and aspect, then resize."""
    crop_padding: int
    """Pixels of padding on each side for --train-crop pad. [4]"""
    crop_fill: Literal["zero", "reflect"]
    """What the padding is made of. [zero]"""
    min_crop_area: float | None
    """Smallest share of the image that a random crop covers."""
    crop_overlap: float
    """Share of an object's bounding box that a random crop should hold. [0.0]"""
    flip: Literal["random", "alternating", "none"] | None
    """Horizontal flip in training."""
    augment: Literal["none", "randaugment", "trivialaugment"]
    """Further augmentation. [none]"""
    augment_magnitude: float
    """Strength of randaugment, 0 to 30. [9.0]"""
    augment_operations: int
    """Operations per image of randaugment. [2]"""
    color_jitter: Sequence[float]
    """Change brightness, contrast and saturation by up to this share, in a random order."""
    random_erasing: float
    """Probability that a box of 2 to 33 % of an image is erased. [0.0]"""
    repeated_augmentation: int
    """Each image of an update stands in it this many times, augmented differently. [1]"""
    balanced_sampling: bool
    """Every class equally often in an epoch."""
    validation_resize: int | None
    """Shorter side before the central validation crop."""
    validation_transform: Literal["central", "train"]
    """central: validation images are resized and cropped in the middle. [central]"""
    progressive_image_size: Sequence[str]
    """Image size by epoch, as EPOCH:SIZE pairs such as 0:96 10:128 20:160."""
    interpolation: Literal["bilinear", "bicubic"] | None
    """How photographs are resized in validation, prediction and serving."""
    normalization: Literal["imagenet", "cifar", "mean", "centred", "per-image", "unit", "none"] | None
    """imagenet: (x/255 - mean)/std of ImageNet."""
    normalize_on: Literal["device", "host"]
    """Where images are normalised. [device]"""
    eight_bit_io: bool
    """Move images to the device as 8-bit values. [on]"""
    mixup_alpha: float
    """Mixup with Beta(alpha, alpha); 0 is off. [0.0]"""
    cutmix_lambda: float
    """Cutmix: share of the image that is kept. [1.0]"""
    cutmix_lambda_high: float | None
    """With it, cutmix draws lambda uniformly from --cutmix-lambda to this value."""
    cutmix_skip_probability: float
    """Probability that a batch has no cutmix. [0.0]"""
    mix_switch: bool
    """A micro-batch has cutmix or mixup, never both."""
    cutmix_draw: Literal["fixed", "exponential"]
    """fixed: the given lambda. [fixed]"""
    mix_on: Literal["device", "host"]
    """Where mixup and cutmix are done. [device]"""
