"""Which images are trained on, and what is done to them before the network sees them."""

from dataclasses import dataclass

from conveyor.options.field import option
from conveyor.options.units import NORMALIZATIONS, cache_budget, normalization, size_from_epoch

INTERPOLATIONS = ("bilinear", "bicubic")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """The data set, its transforms and how it is fed."""

    data: str | None = option(
        None,
        "Data set (see `conveyor data list`): digits (embedded), mnist, fashion-mnist, cifar10, cifar100, imagenet, folder, a registered name, or data of your own as FILE.py:NAME. "
        "Without it, inferred from --data-dir; digits without either.",
    )
    data_dir: str | None = option(
        None,
        "Folder with the data, or a CSV or parquet list with columns path and label; the variable DATA_DIR is used when "
        "this is not given.",
    )
    task: str = option(
        "one-label",
        "one-label: each image has one class; multi-label: any number of them, from the column labels of a list (a;b, or a "
        "list in parquet) or its columns of 0 and 1: binary cross entropy, mean average precision, and a threshold for each "
        "class, chosen on the validation images.",
        choices=("one-label", "multi-label"),
    )
    hold_out: float = option(
        0.1,
        "Of class folders and lists without a validation set: the share of each class to validate on; 1: all of it.",
        minimum=0.0,
        maximum=1.0,
    )
    folds: int | None = option(
        None,
        "Cross-validation: divide the training images into N folds, alike in every class, groups whole. One of them "
        "(--fold) is validated on, the others are trained on; a validation set of its own is left out. Without --fold, "
        "train makes a run for each and sums them up.",
        minimum=2,
    )
    fold: int | None = option(None, "Fold to validate on, 0 to N - 1 of --folds.", minimum=0)
    group_by: str | None = option(
        None,
        "Regular expression that finds an image's group (a patient, a camera) in its path: --hold-out and --folds keep "
        "groups whole. Lists of files may have a column group instead.",
    )
    exclude_images: str | None = option(
        None, "File of images to leave out: a name on each line, or a column path, as `conveyor data audit` writes it."
    )
    generated_data: bool = option(False, "Random images made once on the host and transferred like real ones.")
    synthetic_data: bool = option(False, "Random images made on the device: no host input at all.")
    download: bool = option(True, "Fetch a known small data set that is missing.", changes_result=False)
    max_train_images: int | None = option(None, "Use only the first N training images.", minimum=1)
    max_validation_images: int | None = option(None, "Use only the first N validation images.", minimum=1)
    data_percentage: float = option(100.0, "Share of the training images to use.", unit="%", above=0.0, maximum=100.0)
    skip_bad_images: bool = option(
        False, "Skip and count images that cannot be decoded instead of stopping; the next one is taken in their place."
    )
    shuffle: str = option(
        "full",
        "full: a permutation of the whole set in each epoch; shards: files shuffled, then samples inside a window of "
        "files (for TFRecord on slow disks); none: stored order.",
        choices=("full", "shards", "none"),
    )
    data_cache: str = option(
        "auto",
        "Keep raw bytes in memory: auto (when they fit), off, or a budget such as 8GiB.",
        changes_result=False,
        read=cache_budget,
    )
    loader_threads: int | None = option(
        None, "Threads that decode images.", minimum=1, changes_result=False, aliases=("num_workers",)
    )
    prefetch: int = option(4, "Micro-batches prepared ahead.", minimum=1, changes_result=False)

    train_crop: str | None = option(
        None,
        "resized: random area and aspect, then resize; distorted: the TensorFlow form of it (area from 5 %, whole image "
        "as fallback); resize-resized: shorter side to 256 first; pad: zero padding and random crop; centre: as in "
        "validation; none. Default: resized for photographs, pad for CIFAR, none for digits and MNIST.",
        choices=("resized", "distorted", "resize-resized", "pad", "centre", "none"),
    )
    crop_padding: int = option(4, "Pixels of padding on each side for --train-crop pad.", minimum=0)
    crop_fill: str = option("zero", "What the padding is made of.", choices=("zero", "reflect"))
    min_crop_area: float | None = option(
        None, "Smallest share of the image that a random crop covers.", minimum=0.0, maximum=1.0
    )
    crop_overlap: float = option(
        0.0,
        "Share of an object's bounding box that a random crop should hold: it is drawn up to 10 times until it does. Boxes "
        "come from imagenet_2012_bounding_boxes.csv beside train/, or from TFRecord; 0 takes the first draw.",
        minimum=0.0,
        maximum=1.0,
    )
    flip: str | None = option(
        None,
        "Horizontal flip in training: random, alternating (every other epoch, per sample) or none. "
        "Default: random for photographs and CIFAR.",
        choices=("random", "alternating", "none"),
    )
    augment: str = option(
        "none",
        "Further augmentation: randaugment, or trivialaugment (one operation of any strength per image, the wide space).",
        choices=("none", "randaugment", "trivialaugment"),
    )
    augment_magnitude: float = option(9.0, "Strength of randaugment, 0 to 30.", minimum=0.0, maximum=30.0)
    augment_operations: int = option(2, "Operations per image of randaugment.", minimum=1)
    color_jitter: tuple[float, ...] = option(
        (),
        "Change brightness, contrast and saturation by up to this share, in a random order: one number, or three; a "
        "fourth turns hues by up to that share of the circle.",
        minimum=0.0,
    )
    random_erasing: float = option(
        0.0, "Probability that a box of 2 to 33 % of an image is erased.", minimum=0.0, maximum=1.0
    )
    repeated_augmentation: int = option(
        1,
        "Each image of an update stands in it this many times, augmented differently; an epoch then shows this part of "
        "the images.",
        minimum=1,
    )
    balanced_sampling: bool = option(
        False, "Every class equally often in an epoch: images of rare classes repeat, augmented differently."
    )
    validation_resize: int | None = option(
        None,
        "Shorter side before the central validation crop; default: image size x 256 / 224.",
        unit="pixels",
        minimum=1,
    )
    validation_transform: str = option(
        "central",
        "central: validation images are resized and cropped in the middle; train: in-memory images (CIFAR, MNIST) get "
        "the random crops and flips of training in validation too.",
        choices=("central", "train"),
    )
    progressive_image_size: tuple[str, ...] = option(
        (),
        "Image size by epoch, as EPOCH:SIZE pairs such as 0:96 10:128 20:160; validation keeps --image-size.",
        read=size_from_epoch,
    )
    interpolation: str | None = option(
        None,
        "How photographs are resized in validation, prediction and serving. Default: bilinear, or as the file "
        "config.json beside --weights says.",
        choices=INTERPOLATIONS,
    )
    normalization: str | None = option(
        None,
        "imagenet: (x/255 - mean)/std of ImageNet; cifar: likewise of CIFAR-10; mean: subtract ImageNet's channel means "
        "only; centred: (x - 127)/128; per-image: zero mean and unit deviation for each image; unit: x/255; none; or "
        "numbers, MEAN,MEAN,MEAN/STD,STD,STD of x/255. Default: by data set, and on photographs centred for "
        "EfficientNet-Lite, or as the file config.json beside --weights says.",
        choices=NORMALIZATIONS,
        read=normalization,
    )
    normalize_on: str = option(
        "device",
        "Where images are normalised; device lets them travel as 8-bit values.",
        choices=("device", "host"),
        changes_result=False,
    )
    eight_bit_io: bool = option(True, "Move images to the device as 8-bit values.", changes_result=False)
    mixup_alpha: float = option(0.0, "Mixup with Beta(alpha, alpha); 0 is off.", minimum=0.0)
    cutmix_lambda: float = option(1.0, "Cutmix: share of the image that is kept; 1 is off.", minimum=0.0, maximum=1.0)
    cutmix_lambda_high: float | None = option(
        None, "With it, cutmix draws lambda uniformly from --cutmix-lambda to this value.", minimum=0.0, maximum=1.0
    )
    cutmix_skip_probability: float = option(0.0, "Probability that a batch has no cutmix.", minimum=0.0, maximum=1.0)
    mix_switch: bool = option(
        False, "A micro-batch has cutmix or mixup, never both: mixup where --cutmix-skip-probability left out cutmix."
    )
    cutmix_draw: str = option(
        "fixed",
        "fixed: the given lambda; exponential: drawn anew for each batch around it.",
        choices=("fixed", "exponential"),
    )
    mix_on: str = option("device", "Where mixup and cutmix are done.", choices=("device", "host"), changes_result=False)

    @property
    def multi_label(self) -> bool:
        """Whether labels are rows of 0 and 1, [B, C], and answers are sigmoids."""
        return self.task == "multi-label"
