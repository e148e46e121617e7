"""The options of `conveyor.train` and `conveyor.validate` as keyword arguments, for editors and type checkers.

Made by scripts/typed_options.py from the declarations; a test keeps it current.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict


class DataOptions(TypedDict, total=False):
    """Every option by its name; what is left out has its default."""

    data_dir: str | Path | None
    """Folder with the data, or a CSV or parquet list with columns path and label; the variable DATA_DIR is used when
    this is not given."""
    task: Literal["one-label", "multi-label"]
    """one-label: each image has one class; multi-label: any number of them, from the column labels of a list (a;b, or
    a list in parquet) or its columns of 0 and 1: binary cross entropy, mean average precision, and a threshold for
    each class, chosen on the validation images. [one-label]"""
    hold_out: float
    """Of class folders and lists without a validation set: the share of each class to validate on; 1: all of it.
    [0.1]"""
    folds: int | None
    """Cross-validation: divide the training images into N folds, alike in every class, groups whole. One of them
    (--fold) is validated on, the others are trained on; a validation set of its own is left out. Without --fold, train
    makes a run for each and sums them up."""
    fold: int | None
    """Fold to validate on, 0 to N - 1 of --folds."""
    group_by: str | None
    """Regular expression that finds an image's group (a patient, a camera) in its path: --hold-out and --folds keep
    groups whole. Lists of files may have a column group instead."""
    exclude_images: str | None
    """File of images to leave out: a name on each line, or a column path, as `conveyor data audit` writes it."""
    generated_data: bool
    """Random images made once on the host and transferred like real ones."""
    synthetic_data: bool
    """Random images made on the device: no host input at all."""
    download: bool
    """Fetch a known small data set that is missing. [on]"""
    max_train_images: int | None
    """Use only the first N training images."""
    max_validation_images: int | None
    """Use only the first N validation images."""
    data_percentage: float
    """Share of the training images to use. [100.0%]"""
    skip_bad_images: bool
    """Skip and count images that cannot be decoded instead of stopping; the next one is taken in their place."""
    shuffle: Literal["full", "shards", "none"]
    """full: a permutation of the whole set in each epoch; shards: files shuffled, then samples inside a window of
    files (for TFRecord on slow disks); none: stored order. [full]"""
    data_cache: str
    """Keep raw bytes in memory: auto (when they fit), off, or a budget such as 8GiB. [auto]"""
    loader_threads: int | None
    """Threads that decode images."""
    prefetch: int
    """Micro-batches prepared ahead. [4]"""
    train_crop: Literal["resized", "distorted", "resize-resized", "pad", "centre", "none"] | None
    """resized: random area and aspect, then resize; distorted: the TensorFlow form of it (area from 5 %, whole image
    as fallback); resize-resized: shorter side to 256 first; pad: zero padding and random crop; centre: as in
    validation; none. Default: resized for photographs, pad for CIFAR, none for digits and MNIST."""
    crop_padding: int
    """Pixels of padding on each side for --train-crop pad. [4]"""
    crop_fill: Literal["zero", "reflect"]
    """What the padding is made of. [zero]"""
    min_crop_area: float | None
    """Smallest share of the image that a random crop covers."""
    crop_overlap: float
    """Share of an object's bounding box that a random crop should hold: it is drawn up to 10 times until it does.
    Boxes come from imagenet_2012_bounding_boxes.csv beside train/, or from TFRecord; 0 takes the first draw. [0.0]"""
    flip: Literal["random", "alternating", "none"] | None
    """Horizontal flip in training: random, alternating (every other epoch, per sample) or none. Default: random for
    photographs and CIFAR."""
    augment: Literal["none", "randaugment", "trivialaugment"]
    """Further augmentation: randaugment, or trivialaugment (one operation of any strength per image, the wide space).
    [none]"""
    augment_magnitude: float
    """Strength of randaugment, 0 to 30. [9.0]"""
    augment_operations: int
    """Operations per image of randaugment. [2]"""
    color_jitter: Sequence[float]
    """Change brightness, contrast and saturation by up to this share, in a random order: one number, or three; a
    fourth turns hues by up to that share of the circle."""
    random_erasing: float
    """Probability that a box of 2 to 33 % of an image is erased. [0.0]"""
    repeated_augmentation: int
    """Each image of an update stands in it this many times, augmented differently; an epoch then shows this part of
    the images. [1]"""
    balanced_sampling: bool
    """Every class equally often in an epoch: images of rare classes repeat, augmented differently."""
    validation_resize: int | None
    """Shorter side before the central validation crop; default: image size x 256 / 224."""
    validation_transform: Literal["central", "train"]
    """central: validation images are resized and cropped in the middle; train: in-memory images (CIFAR, MNIST) get the
    random crops and flips of training in validation too. [central]"""
    progressive_image_size: Sequence[str]
    """Image size by epoch, as EPOCH:SIZE pairs such as 0:96 10:128 20:160; validation keeps --image-size."""
    interpolation: Literal["bilinear", "bicubic"] | None
    """How photographs are resized in validation, prediction and serving. Default: bilinear, or as the file config.json
    beside --weights says."""
    normalization: Literal["imagenet", "cifar", "mean", "centred", "per-image", "unit", "none"] | None
    """imagenet: (x/255 - mean)/std of ImageNet; cifar: likewise of CIFAR-10; mean: subtract ImageNet's channel means
    only; centred: (x - 127)/128; per-image: zero mean and unit deviation for each image; unit: x/255; none; or
    numbers, MEAN,MEAN,MEAN/STD,STD,STD of x/255. Default: by data set, and on photographs centred for EfficientNet-
    Lite, or as the file config.json beside --weights says."""
    normalize_on: Literal["device", "host"]
    """Where images are normalised; device lets them travel as 8-bit values. [device]"""
    eight_bit_io: bool
    """Move images to the device as 8-bit values. [on]"""
    mixup_alpha: float
    """Mixup with Beta(alpha, alpha); 0 is off. [0.0]"""
    cutmix_lambda: float
    """Cutmix: share of the image that is kept; 1 is off. [1.0]"""
    cutmix_lambda_high: float | None
    """With it, cutmix draws lambda uniformly from --cutmix-lambda to this value."""
    cutmix_skip_probability: float
    """Probability that a batch has no cutmix. [0.0]"""
    mix_switch: bool
    """A micro-batch has cutmix or mixup, never both: mixup where --cutmix-skip-probability left out cutmix."""
    cutmix_draw: Literal["fixed", "exponential"]
    """fixed: the given lambda; exponential: drawn anew for each batch around it. [fixed]"""
    mix_on: Literal["device", "host"]
    """Where mixup and cutmix are done. [device]"""
