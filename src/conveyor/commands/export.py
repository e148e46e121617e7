"""`conveyor export`: a run as ONNX, OpenVINO, PyTorch or SavedModel files."""

import argparse
import dataclasses

from conveyor.errors import UserError
from conveyor.options.parser import add_checkpoint

HELP = "Write a trained model as ONNX, OpenVINO, PyTorch or SavedModel files, compared with the original."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="RUN|CHECKPOINT", help="A run or a checkpoint.")
    add_checkpoint(parser)
    parser.add_argument("--out", metavar="DIR", help="New or empty folder for the export.")
    parser.add_argument(
        "--format", default="onnx", metavar="{onnx,openvino,torch,saved-model}", help="Form of the files. [onnx]"
    )
    parser.add_argument("--batch", metavar="N|free", default="free", help="Fix the batch size in the graph. [free]")
    parser.add_argument("--name", help="Name of the model; default: that of the run.")
    parser.add_argument("--int8", action="store_true", help="Quantise to 8 bits with real images of the data set.")
    parser.add_argument(
        "--calibration-images", type=int, default=256, metavar="N", help="Images that set the ranges of --int8. [256]"
    )
    parser.add_argument(
        "--check-images", type=int, default=1000, metavar="N", help="Validation images that check --int8. [1000]"
    )
    parser.add_argument(
        "--max-drop", type=float, default=1.0, metavar="X", help="Most points of top-1 that --int8 may cost. [1]"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="Where the data set is, when not where the run had it.")


def run(arguments: argparse.Namespace) -> int:
    from conveyor.infer.target import check_target

    check_target(arguments.out)  # before the model is loaded: a mistake should cost no time
    batch = _batch(arguments.batch)
    _check_int8(arguments)
    from conveyor.infer.export import export
    from conveyor.infer.load import load

    loaded = load(arguments.model, arguments.checkpoint)
    print(loaded.spec.get("chosen", ""), flush=True)
    if arguments.name:
        loaded = dataclasses.replace(loaded, spec={**loaded.spec, "name": arguments.name})
    quantizer = images = None
    if arguments.int8:
        from conveyor.infer import accuracy
        from conveyor.infer.quantize import Quantizer

        options, names = accuracy.data_options(loaded, arguments.data_dir), loaded.class_names
        calibration = accuracy.sample(options, "train", loaded.preprocessing, arguments.calibration_images, names)
        check = accuracy.sample(options, "validation", loaded.preprocessing, arguments.check_images, names)
        quantizer = Quantizer(calibration.images, check, arguments.max_drop, batch)
        images = check.images[:8]
    exported = export(loaded, arguments.out, arguments.format, batch=batch, quantize=quantizer, images=images)
    for note in exported.notes:
        print(note)
    print(exported.text())
    return 0


def _check_int8(arguments: argparse.Namespace) -> None:
    for option in ("calibration_images", "check_images"):
        if getattr(arguments, option) < 1:
            raise UserError(f"--{option.replace('_', '-')} {getattr(arguments, option)}: give at least 1")
    if not arguments.max_drop >= 0:  # of "not a number" too: it would let everything pass
        raise UserError(f"--max-drop {arguments.max_drop:g}: give the points that --int8 may cost, 0 or more")


def _batch(text: str) -> int | None:
    if text == "free":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--batch {text!r} is neither a number of images nor 'free'")
    return int(text)
