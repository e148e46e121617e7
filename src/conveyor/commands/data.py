"""`conveyor data`: list, fetch, verify, convert and measure data sets."""

import argparse
import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import Any

from conveyor.errors import UserError
from conveyor.files import user_path
from conveyor.layout import usable_cores
from conveyor.monitor.progress import say
from conveyor.monitor.table import format_table
from conveyor.options import Options, specs
from conveyor.options.parser import add_config, add_options, add_word, count, options_from
from conveyor.options.units import many

HELP = "List, fetch, verify, convert and measure data sets."
BENCH_BATCH = 128
"""Images per batch of `bench` when none are asked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="list|get|verify|build-tfrecords|audit|bench", required=True)

    listing = actions.add_parser("list", help="the known data sets and where their files are")
    listing.add_argument("--data-dir", help="look only in this folder")
    listing.add_argument("--json", action="store_true", help="JSON instead of text")

    get = actions.add_parser("get", help="fetch a small data set, or say where a copy is")
    get.add_argument("name", help="mnist, fashion-mnist, cifar10 or cifar100")
    get.add_argument("--data-dir", help="where to put it; default: the cache folder")
    get.add_argument(
        "--mirror", action="append", help="fetch from this address instead of the publisher's (repeatable)"
    )

    verify = actions.add_parser("verify", help="check counts, checksums and that every image can be decoded")
    verify.add_argument("folder", help="folder of a data set")
    verify.add_argument("--no-decode", dest="decode", action="store_false", help="do not decode the images")
    verify.add_argument("--threads", type=count, default=usable_cores(), help="images checked at a time")
    verify.add_argument("--json", action="store_true", help="JSON instead of text")

    build = actions.add_parser("build-tfrecords", help="class folders into TFRecord files of ImageNet's layout")
    build.add_argument("source", help="folder with train/ and validation/ (or val/), one folder per class in each")
    build.add_argument("target", help="folder for the files; what is complete there is kept")
    build.add_argument("--train-shards", type=count, default=1024, help="files for training [1024]")
    build.add_argument("--validation-shards", type=count, default=128, help="files for validation [128]")
    build.add_argument("--threads", type=count, default=8, help="files written at a time [8]")
    build.add_argument("--class-texts", help="file with lines of a class folder's name and its text")
    build.add_argument("--bounding-boxes", help="CSV file of filename,xmin,ymin,xmax,ymax (0..1)")

    audit = actions.add_parser(
        "audit", help="duplicates, leaks into validation, broken and odd pictures, doubtful labels, class balance"
    )
    add_word(audit, "data_dir", "FOLDER", "as --data-dir FOLDER")
    audit.add_argument(
        "--answers", nargs="+", default=[], metavar="FILE", help="of validate --answers: doubtful labels"
    )
    audit.add_argument(
        "--out", default="audit", metavar="FOLDER", help="for audit.html, audit.csv, exclude.txt [audit]"
    )
    audit.add_argument("--threads", type=count, default=usable_cores(), help="images looked at at a time")
    add_config(audit)
    add_options(audit, names=reading_options())

    bench = actions.add_parser("bench", help="images per second of the input pipeline, by stage")
    bench.add_argument("--batches", type=count, default=20, help="batches to deliver [20]")
    bench.add_argument("--threads", type=count, help="loader threads; default: the cores for photographs, else 1")
    bench.add_argument("--peers", action="store_true", help="compare with other loaders on the same photographs")
    bench.add_argument("--rounds", type=count, default=3, help="with --peers: rounds over all sides [3]")
    bench.add_argument("--out", metavar="FOLDER", help="with --peers: write a benchmark record into this folder")
    bench.add_argument("--images", type=count, default=512, help="with --peers: files per round [512]")
    bench.add_argument("--json", action="store_true", help="JSON instead of text")
    add_config(bench)
    add_options(bench, names=reading_options())


def reading_options() -> tuple[str, ...]:
    """The options of a run that say what is read, and how; `bench` takes them all."""
    data = (name for name, spec in specs().items() if spec.section == "data")
    return (*data, "model", "image_size", "in_channels", "micro_batch_size", "seed")


def run(arguments: argparse.Namespace) -> int:
    action = {
        "list": _list,
        "get": _get,
        "verify": _verify,
        "build-tfrecords": _build,
        "audit": _audit,
        "bench": _peers if getattr(arguments, "peers", False) else _bench,
    }[arguments.action]
    return action(arguments)


def _list(arguments: argparse.Namespace) -> int:
    from conveyor.data import catalogue
    from conveyor.data.formats import locate
    from conveyor.data.formats.sources import SOURCES

    rows: list[dict[str, Any]] = []
    for name, info in catalogue.known().items():
        where = "embedded" if name == "digits" else None
        if name in SOURCES:
            found = locate.search(name, Path(arguments.data_dir) if arguments.data_dir else None)
            where = str(found.folder) if found else None
        rows.append(
            {
                "name": name,
                "train_images": info.train_images,
                "validation_images": info.validation_images,
                "classes": info.num_classes,
                "image_size": info.image_size,
                "channels": info.channels,
                "where": where,
                "fetchable": name in SOURCES,
                "title": info.title,
            }
        )
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return 0
    lines = []
    for row in rows:
        size = f"{row['image_size']}x{row['image_size']}x{row['channels']}"
        place = row["where"] or ("not here" if row["fetchable"] else "give --data-dir")
        counts = [f"{row['train_images']:,}", f"{row['validation_images']:,}", row["classes"]]
        lines.append([row["name"], *counts, size, place])
    print(format_table(["name", "train", "validation", "classes", "size", "where"], lines, rule=False, fold=True))
    print()
    if any(row["fetchable"] and not row["where"] for row in rows):
        say("not here: `conveyor data get NAME` fetches one")
    say("folder: any folder with train/ and validation/ (or val/), one folder of images per class: --data-dir FOLDER")
    return 0


def _get(arguments: argparse.Namespace) -> int:
    from conveyor.data import catalogue
    from conveyor.data.formats import acquire, locate
    from conveyor.data.formats.sources import SOURCES

    name = catalogue.canonical_name(arguments.name)
    if name == "digits":
        print("digits are part of the package: nothing to fetch")
        return 0
    if name == "imagenet":
        from conveyor.data.formats import tfrecord_dataset

        roots = [user_path(arguments.data_dir)] if arguments.data_dir else list(locate.usual_roots())
        here = next((records for root in roots if (records := tfrecord_dataset.find_folder(root)) is not None), None)
        if here is not None:
            print(f"imagenet is here: {here} (name it with --data-dir)")
            return 0
    if name not in SOURCES:
        raise UserError(f"{name} cannot be fetched: get it from its publisher and name its folder with --data-dir")
    folder = user_path(arguments.data_dir) if arguments.data_dir else None
    found = locate.search(name, folder)
    if found is not None:
        print(f"{name} is here: {found.folder}")
        return 0
    copy = acquire.get(name, folder or locate.default_folder(), arguments.mirror)
    print(f"{name} is now in {copy.folder}")
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    from conveyor.data.verify import verify

    report = verify(user_path(arguments.folder), decode=arguments.decode, threads=arguments.threads)
    if arguments.json:
        content = {**dataclasses.asdict(report), "folder": str(report.folder), "data": report.name, "good": report.good}
        del content["name"]
        print(json.dumps(content, indent=1))
        return 0 if report.good else 1
    found = [many(report.files, "file", ","), many(report.classes, "class")]
    if len(report.images) > 1:  # one split alone are class folders of which --hold-out takes a share when a run starts
        found += [f"{many(count, 'image', ',')} for {split}" for split, count in report.images.items()]
    print(f"{report.name} in {report.folder}: {', '.join(found)}")
    for problem in report.problems:
        print(f"bad: {problem}")
    print("everything is in order" if report.good else many(len(report.problems), "problem"))
    return 0 if report.good else 1


def _audit(arguments: argparse.Namespace) -> int:
    """0: nothing to leave out; 1: exclude.txt names images."""
    from conveyor.data.audit import Pictures, audit
    from conveyor.report.audit_page import write_audit

    pictures = Pictures(options_from(arguments))
    out = user_path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)  # one that cannot be written is told before a million images are read
    found = audit(pictures, [_existing(name) for name in arguments.answers], arguments.threads)
    for line in write_audit(out, pictures, found):
        say(line)
    excluded = len({one.path for one in found if one.exclude})
    say(
        f"see {out}/audit.html; {many(excluded, 'image')} to leave out: conveyor train --exclude-images {out}/exclude.txt"
    )
    return 1 if excluded else 0


def _build(arguments: argparse.Namespace) -> int:
    from conveyor.data.formats.boxes import NO_BOXES, read_boxes
    from conveyor.data.formats.tfrecord_builder import BuildOptions, build_tfrecords, read_class_texts

    options = BuildOptions(
        train_shards=arguments.train_shards,
        validation_shards=arguments.validation_shards,
        threads=arguments.threads,
        class_texts=read_class_texts(_existing(arguments.class_texts)) if arguments.class_texts else {},
        boxes=read_boxes(_existing(arguments.bounding_boxes)) if arguments.bounding_boxes else NO_BOXES,
    )
    counts = build_tfrecords(Path(arguments.source), Path(arguments.target), options)
    print(f"{arguments.target}: {counts['train']:,} images for training, {counts['validation']:,} for validation")
    return 0


def _bench(arguments: argparse.Namespace) -> int:
    from conveyor.bench.loader_speed import measure

    found = measure(bench_options(arguments), arguments.batches, arguments.threads)
    if arguments.json:
        rates = {"feed": found.feed.to_json(), "whole": found.whole.to_json(), "bound": found.bound.to_json()}
        print(json.dumps({**rates, "stages": found.stages}, indent=1))
        return 0
    named = {"delivered": found.feed, "delivered and prepared": found.whole, "bound: one cached batch": found.bound}
    rows = [[name, f"{rate.per_second:,.0f}", f"{rate.per_cpu_second:,.0f}"] for name, rate in named.items()]
    print(format_table(["", "images/s", "images/CPU-s"], rows, rule=False))
    for stage in ("read", "decode", "resize", "wait"):
        if stage in found.stages:
            print(f"  {stage:<32}{found.stages[stage] / found.stages['images'] * 1e6:>10,.0f} us/image")
    return 0


def bench_options(arguments: argparse.Namespace) -> Options:
    """The options of `bench`, with `BENCH_BATCH` when no batch is given."""
    return options_from(arguments, Options().replace(micro_batch_size=BENCH_BATCH))


def _peers(arguments: argparse.Namespace) -> int:
    """Compare the loaders in alternating rounds."""
    from conveyor.bench import loader_comparison
    from conveyor.bench.tables import PEER_TITLES, peers_rows

    options = bench_options(arguments)
    if not options.data.data_dir:
        raise UserError("bench --peers needs photographs: name their folder with --data-dir")
    files = _photographs(Path(options.data.data_dir), arguments.images)
    batch = min(options.batch.micro_batch_size, len(files))
    if not files:
        raise UserError(f"there are no .jpg or .jpeg files below {options.data.data_dir}")
    record = loader_comparison.measure(
        files[: len(files) // batch * batch], size=options.model.image_size or 224, batch=batch,
        threads=arguments.threads or usable_cores(), rounds=arguments.rounds,
    )  # fmt: skip
    if arguments.out:
        print(f"wrote {record.save(Path(arguments.out))}", file=sys.stderr)
    print(record.to_json() if arguments.json else format_table(PEER_TITLES, peers_rows([record]), rule=False))
    return 0


def _photographs(folder: Path, count: int) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder")
    found = (path for path in sorted(folder.resolve().rglob("*")) if path.suffix.lower() in (".jpg", ".jpeg"))
    return list(itertools.islice(found, count))


def _existing(path: str) -> Path:
    if not Path(path).is_file():
        raise UserError(f"{path} does not exist")
    return Path(path)
