"""`conveyor export`: a run as ONNX, OpenVINO, PyTorch or SavedModel files."""

import argparse
import dataclasses
from importlib.util import find_spec
from typing import TYPE_CHECKING

from conveyor.errors import UserError, did_you_mean
from conveyor.infer import AnswerPrecision
from conveyor.infer.asked_precision import AskedPrecision, add_infer_precision, asked_precision
from conveyor.infer.metadata import FORMATS
from conveyor.layout import usable_cores
from conveyor.monitor.progress import say
from conveyor.options.parser import add, add_checkpoint, add_settings

if TYPE_CHECKING:
    from torch import Tensor

    from conveyor.infer.loaded import Loaded

BATCH = 32
HELP = "Write a trained model as ONNX, OpenVINO, PyTorch or SavedModel files, compared with the original."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN|CHECKPOINT", help="A run or a checkpoint.")
    add_checkpoint(parser)
    parser.add_argument("--out", metavar="DIR", help="New or empty folder for the export.")
    add(parser, "--format", "onnx", "{onnx,openvino,torch,saved-model}", "Form of the files.")
    add(parser, "--batch", "free", "N|free", "Fix the batch size in the graph.")
    parser.add_argument("--name", help="Name of the model; default: that of the run.")
    add_infer_precision(parser, default="float32")
    parser.add_argument("--int8", action="store_true", help="The same as --infer-precision int8.")
    add_settings(parser, AskedPrecision, "calibration_images", "check_images", "weight_bits")
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="Fit a temperature on the validation images and divide the logits by it: confidence then means accuracy.",
    )
    parser.add_argument(
        "--abstain",
        type=float,
        metavar="PERCENT",
        help="Mark answers as unsure below the confidence at which the others are right this often on validation images.",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="Where the data set is, when not where the run had it.")


def run(arguments: argparse.Namespace) -> int:
    from conveyor.infer.target import check_target

    check_target(arguments.out)  # before the model is loaded: a mistake should cost no time
    if arguments.format not in FORMATS:
        raise UserError(f"--format cannot be {arguments.format!r}{did_you_mean(arguments.format, FORMATS)}")
    if arguments.format != "torch" and find_spec("onnxscript") is None:
        raise UserError(f"exporting as {arguments.format} needs more packages: pip install 'conveyor[export]'")
    batch = _batch(arguments.batch)
    if arguments.int8:
        if arguments.infer_precision not in (None, AnswerPrecision.INT8):
            raise UserError(
                f"--int8 and --infer-precision {arguments.infer_precision} exclude each other: give one of them"
            )
        arguments.infer_precision = AnswerPrecision.INT8
    wanted = asked_precision(arguments)
    from conveyor.infer.export import export
    from conveyor.infer.load import load
    from conveyor.infer.precision import fit

    loaded = load(arguments.model, arguments.checkpoint)
    if chosen := loaded.spec.get("chosen"):
        say(chosen)
    if arguments.name:
        if "/" in arguments.name:
            raise UserError(
                f"--name {arguments.name!r} cannot be a part of a server's addresses: give one without slashes"
            )
        loaded = dataclasses.replace(loaded, spec={**loaded.spec, "name": arguments.name})
    if arguments.calibrate or arguments.abstain is not None:
        loaded = _calibrated(loaded, arguments)
    fitted = None
    if wanted.infer_precision not in (None, AnswerPrecision.FLOAT32):
        if wanted.infer_precision != AnswerPrecision.BFLOAT16 and arguments.format not in ("onnx", "openvino"):
            raise UserError("8-bit models are written as onnx or openvino: add --format onnx or --format openvino")
        say("trying out what other precisions cost and gain")
        fitted = fit(loaded, wanted, batch=batch or 8, threads=usable_cores(), fixed=batch, say=say)
    exported = export(loaded, arguments.out, arguments.format, batch=batch, fitted=fitted)
    for note in exported.notes:
        say(note)
    say(exported.text())
    return 0


def _calibrated(loaded: "Loaded", arguments: argparse.Namespace) -> "Loaded":
    """The model with the temperature and the threshold of abstaining that its validation images give."""
    import torch

    from conveyor.evaluate import calibration
    from conveyor.infer.accuracy import answers, data_options, in_order
    from conveyor.infer.engines.engine import open_named

    wanted = arguments.abstain
    if loaded.thresholds is not None:
        raise UserError("--calibrate and --abstain are for one label per image: a multi-label model has its thresholds")
    if wanted is not None and not 0 < wanted <= 100:
        raise UserError(f"--abstain {wanted:g}: give a share of right answers, above 0 and up to 100 %")
    engine = open_named(loaded.source, "torch", batch=BATCH, threads=usable_cores())
    parts = in_order(loaded, data_options(loaded, arguments.data_dir), BATCH)
    logits, labels = (torch.from_numpy(part) for part in answers(engine, parts))
    found: dict[str, float] = {"calibration_images": len(labels)}
    temperature = calibration.fit_temperature(logits, labels) if arguments.calibrate else 1.0
    if arguments.calibrate:
        before, after = (100 * _error(logits / t, labels) for t in (1.0, temperature))
        found |= {"temperature": temperature, "ece_before": before, "ece": after}
        say(f"temperature {temperature:.4f}: calibration error {before:.2f} -> {after:.2f} % on {len(labels)} images")
    if wanted is not None:
        chosen = calibration.abstain_threshold(logits / temperature, labels, wanted / 100)
        if chosen is None:
            raise UserError(f"--abstain {wanted:g}: not even the surest answers are right so often; give less")
        found |= {"abstain_below": chosen[0], "abstain_accuracy": wanted, "abstain_coverage": 100 * chosen[1]}
        say(f"abstains below a confidence of {chosen[0]:.4f}: {100 * chosen[1]:.1f} % of the images are answered")
    return dataclasses.replace(loaded, spec={**loaded.spec, **found})


def _error(logits: "Tensor", labels: "Tensor") -> float:
    from conveyor.evaluate import calibration

    confidence, answer = logits.softmax(dim=1).max(dim=1)
    return calibration.expected_calibration_error(calibration.counted(confidence, answer == labels))


def _batch(text: str) -> int | None:
    if text == "free":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--batch {text!r} is neither a number of images nor 'free'")
    return int(text)
