"""Published weights by name: found on this machine, else fetched from the Hugging Face hub or their publisher. No torch.

A name is timm's (`tf_efficientnet_lite0`, `resnet50.a1_in1k`), torchvision's (`torchvision/resnet50`), an address or a file.
"""

import hashlib
import http.client
import os
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from conveyor.data.formats.lock_file import exclusive
from conveyor.errors import UserError, did_you_mean
from conveyor.files import cache_folder, open_replacing, user_path
from conveyor.models import catalogue, library_models, sources
from conveyor.monitor.progress import track
from conveyor.options import Options
from conveyor.version import __version__

HUB = "https://huggingface.co"
"""The hub; the variable HF_ENDPOINT names another."""
PUBLISHER = "https://download.pytorch.org/models"
"""Of torchvision's weights; the variable CONVEYOR_TORCHVISION names another."""
SUFFIXES = (".safetensors", ".pth", ".pt", ".bin")
FINE_TUNING_NORM_MOMENTUM = 0.1
"""Norm momentum of a fine-tuning, at least."""
LARGEST = 1 << 32
"""Bytes of a file that is fetched at most."""
TAGS = {
    "efficientnet_b0": "ra_in1k", "efficientnet_b2": "ra_in1k", "efficientnet_b3": "ra2_in1k",
    "efficientnet_b4": "ra2_in1k", "efficientnet_lite0": "ra_in1k", "mobilenetv2_100": "ra_in1k",
    "mobilenetv3_large_100": "ra_in1k", "mobilenetv3_small_100": "lamb_in1k", "resnet18": "a1_in1k",
    "resnet34": "a1_in1k", "resnet26": "bt_in1k", "resnet50": "a1_in1k", "resnet101": "a1h_in1k",
    "resnet152": "a1h_in1k", "resnext50_32x4d": "a1h_in1k", "resnext101_32x8d": "tv_in1k",
    **{f"tf_efficientnet_lite{number}": "in1k" for number in range(5)},
    **{f"tf_efficientnet_b{number}": "ns_jft_in1k" for number in range(8)},
    **{f"tf_mobilenetv3_{size}_100": "in1k" for size in ("small", "large")},
}  # fmt: skip
"""Which of its weights timm means by a plain name."""
TORCHVISION = {
    "resnet18": "f37072fd", "resnet34": "b627a593", "resnet50": "0676ba61", "resnet101": "63fe2227",
    "resnet152": "394f9c45", "resnext50_32x4d": "7cdf4587", "resnext101_32x8d": "8ba56ff5", "mobilenet_v2": "b0353104",
    "mobilenet_v3_large": "8738ca79", "mobilenet_v3_small": "047dcff4", "squeezenet1_0": "b66bff10",
    "squeezenet1_1": "b8a52dc0",
}  # fmt: skip
"""The beginning of the SHA-256 of each file, which is part of its name."""


def completed(options: Options) -> Options:
    """`options` with the file that `--pretrained` means as `--weights`, a new head where the classes differ, its model."""
    asked = options.model
    if asked.pretrained is None or asked.weights is not None:
        return _for_fine_tuning(options)
    if library_models.is_library(asked.pretrained) and asked.model is None:
        model_of(asked.pretrained)  # a package that is missing is said before anything is fetched
    file = find(asked.pretrained, asked.weights_dir, download=options.data.download)
    changes: dict[str, object] = {"weights": str(file.absolute()), "replace_head": True}
    model = None if asked.model is not None else model_of(asked.pretrained)
    if model is not None:
        changes["model"] = model
    return _for_fine_tuning(options.replace(**changes))


def model_of(name: str) -> str | None:
    """The network that the weights called `name` are of: ours, else the one of timm or torchvision where it is installed."""
    bare = _bare(name)
    ours = sources.timm_model(bare) or catalogue.canonical(bare.partition(".")[0])
    if ours is not None or user_path(name).exists() or name.startswith(("https://", "http://")):
        return ours
    package = name.partition("/")[0] if library_models.is_library(name) else "timm"
    if library_models.has(package, bare):
        return f"{package}/{bare}"
    if library_models.is_library(name):
        library_models.factory(name)  # says what is missing
    return None


def _for_fine_tuning(options: Options) -> Options:
    """Options without the family's settings for long training that harm a fine-tuning of some hundred updates.

    Norm statistics that move by 1 % per update would end as mostly those of other images; features that are dropped at
    random (dropout, drop connect) cost accuracy as long as the network has not seen the images often.
    """
    asked = options.model
    name = None if asked.model is None else catalogue.canonical(asked.model)
    if not (asked.replace_head and asked.weights):
        return options
    if library_models.is_library(asked.model):
        return options if asked.norm_momentum is not None else options.replace(norm_momentum=FINE_TUNING_NORM_MOMENTUM)
    if name is None:
        return options
    entry = catalogue.entry(name)
    changes: dict[str, float] = {}
    if entry.norm.get("norm_momentum", FINE_TUNING_NORM_MOMENTUM) < FINE_TUNING_NORM_MOMENTUM:
        changes["norm_momentum"] = FINE_TUNING_NORM_MOMENTUM
    if entry.family == "efficientnet":
        changes |= {"dropout": 0.0, "survival": 1.0}
    return options.replace(**{key: value for key, value in changes.items() if getattr(asked, key) is None})


def find(name: str, weights_dir: str | None = None, *, download: bool = True) -> Path:
    """The weights called `name`: a file itself, in `weights_dir`, in a cache of this machine, or fetched into ours."""
    if user_path(name).exists():
        return user_path(name)
    if weights_dir is not None and not user_path(weights_dir).is_dir():
        raise UserError(f"--weights-dir {weights_dir} is no folder")
    address = name.startswith(("https://", "http://"))
    if not address and (not re.fullmatch(r"(?:[A-Za-z0-9-]+/)?[A-Za-z0-9][A-Za-z0-9._-]*", name) or ".." in name):
        raise UserError(f"--pretrained {name}: there is no such file, and a name has letters, digits, '.', '_' and '-'")
    for found in _local_copies(name, weights_dir):
        return found
    put = user_path(weights_dir) if weights_dir is not None else cache_folder() / "weights"
    by_hand = (
        f"put its file at {put / (_file_name(name).partition('/')[0] if address else _bare(name) + '.safetensors')}"
    )
    plain = _bare(name).partition(".")[0]
    meant = "" if address or plain in TAGS else did_you_mean(plain, TAGS)
    if not download:
        raise UserError(f"the weights {name} are not here{meant} and --no-download forbids to fetch them: {by_hand}")
    try:
        return _fetched(name)
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: what is no address
        reason = getattr(error, "reason", None) or error
        if isinstance(error, urllib.error.HTTPError) and error.code in (401, 404):
            reason = "there are none of that name"
            by_hand = f"give a name with its tag, such as resnet50.a1_in1k, or {by_hand}"
        where = getattr(error, "url", None) or _addresses(name)[0]  # what describes weights may be missing alone
        raise UserError(f"cannot fetch the weights {name}{meant} from {where} ({reason}): {by_hand}") from None


def _local_copies(name: str, weights_dir: str | None) -> Iterator[Path]:
    """Copies on this machine, the nearest first."""
    full = _full(name)
    folders = [cache_folder() / "weights", *([] if weights_dir is None else [user_path(weights_dir)])]
    for folder in reversed(folders):
        for stem in dict.fromkeys((_bare(name), _bare(full))):
            yield from (path for suffix in SUFFIXES if (path := folder / f"{stem}{suffix}").is_file())
            yield from (path for suffix in SUFFIXES if (path := folder / stem / f"model{suffix}").is_file())
        if (path := folder / _file_name(name)).is_file():
            yield path
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    hub = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    yield from sorted((hub / f"models--{full.replace('/', '--')}" / "snapshots").glob("*/model.safetensors"))
    torch_home = Path(os.environ.get("TORCH_HOME") or Path.home() / ".cache" / "torch")
    if (path := torch_home / "hub" / "checkpoints" / _file_name(name)).is_file():
        yield path


def _full(name: str) -> str:
    """`tf_efficientnet_lite0` -> `timm/tf_efficientnet_lite0.in1k`; what has an owner and a tag stays as it is."""
    owner, _, bare = name.rpartition("/")
    if owner in ("", "timm") and bare in TAGS:
        bare = f"{bare}.{TAGS[bare]}"
    elif owner in ("", "timm") and "." not in bare and library_models.has("timm", bare):
        return library_models.published(f"timm/{bare}")
    return f"{owner or 'timm'}/{bare}"


def _bare(name: str) -> str:
    return name.rpartition("/")[2]


def _file_name(name: str) -> str:
    """Where the weights stand below our cache."""
    if name.startswith(("https://", "http://")):
        return _bare(name.partition("?")[0])
    if name.startswith("torchvision/"):
        return _of_torchvision(name) or f"{_bare(name)}.pth"
    return f"{_bare(_full(name))}/model.safetensors"


def _of_torchvision(name: str) -> str | None:
    """The name of a file of torchvision's weights, which ends with the beginning of its SHA-256."""
    bare = _bare(name)
    if bare in TORCHVISION:
        return f"{bare}-{TORCHVISION[bare]}.pth"
    return _bare(library_models.published(name)) if library_models.has("torchvision", bare) else None


def _addresses(name: str) -> list[str]:
    """Where to fetch the weights, and what describes them."""
    if name.startswith(("https://", "http://")):
        return [name]
    if name.startswith("torchvision/"):
        if _of_torchvision(name) is None:
            raise UserError(
                f"--pretrained {name}: without torchvision (pip install torchvision) these of its weights are known by name: "
                f"{', '.join(TORCHVISION)}"
            )
        return [f"{os.environ.get('CONVEYOR_TORCHVISION', PUBLISHER).rstrip('/')}/{_file_name(name)}"]
    root = f"{os.environ.get('HF_ENDPOINT', HUB).rstrip('/')}/{_full(name)}/resolve/main"
    return [f"{root}/model.safetensors", f"{root}/{sources.CONFIG}"]


def _fetched(name: str) -> Path:
    """The file in our cache, complete or absent; of several processes one fetches it while the others wait."""
    target = cache_folder() / "weights" / _file_name(name)
    weights, *described = _addresses(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.parent / f".{target.name}.lock"):
        if not target.is_file():
            for address in described:  # first: weights without their description would be taken for complete
                _fetch(address, target.parent / _bare(address))
            _fetch(weights, target)
            wanted = target.stem.rpartition("-")[2] if name.startswith("torchvision/") else ""
            if not _sha256(target).startswith(wanted):
                target.unlink()
                raise UserError(f"{weights} gave another file than {target.name} (its SHA-256 differs): fetch it again")
    return target


def _fetch(address: str, target: Path) -> None:
    request = urllib.request.Request(address, headers={"User-Agent": f"conveyor/{__version__}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        size = int(answer.headers.get("Content-Length") or 0)
        if size > LARGEST:
            raise UserError(f"{address} has {size} bytes: that is no file of weights")
        with track(size or None, target.name, unit="B"), open_replacing(target) as file:
            shutil.copyfileobj(answer, file, 1 << 20)
            if size and file.tell() != size:
                raise http.client.IncompleteRead(b"", size - file.tell())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
