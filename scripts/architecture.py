"""Write docs/architecture.md: what each package does (its own docstring) and who imports whom, read from the source."""

import ast
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
SOURCE = HERE / "src" / "conveyor"
PAGE = HERE / "docs" / "architecture.md"

LAYERS = [
    ("Entry points", ["cli", "ray", "api", "dialects"]),
    ("One module for each command", ["commands"]),
    ("Around a run", ["launch", "bench", "report", "plan", "serve", "request"]),
    ("The life of a run", ["run"]),
    ("How good a model is", ["evaluate"]),
    ("Training, and answers", ["training", "infer"]),
    ("Between workers, between stages", ["world", "pipeline", "checkpoint", "spec"]),
    ("Parts", ["data", "models", "optim", "numerics"]),
    ("Measuring, and what a run shows", ["measure", "monitor"]),
    ("Where and what", ["layout", "topology"]),
    ("The vocabulary", ["options"]),
    ("Ground", ["tree", "hooks", "interrupt", "remote", "files", "scratch", "processes", "errors", "version"]),
]
"""Each imports only from its own layer or those below it: read by the test and by the page."""

WORDS = {
    "topology": "the logical shape of a run: micro-batch, accumulation, replicas, stages; with options and seed it decides every bit",
    "micro-batch": "the B images that one slot brings to the network",
    "accumulation": "the A micro-batches of one replica whose gradients are summed before an update",
    "replica": "one of the R logical copies of the model that share an update; it needs no device of its own",
    "stage": "one of the S consecutive parts into which the layers of the model are cut",
    "slot": "one micro-batch of an update, numbered a * R + r; an update has A * R",
    "group": "neighbouring slots that share one pass through the network; a leaf of the tree of sums",
    "layout": "lanes x depth: the worker processes that a run has on the machines at hand; it changes no result",
    "lane": "the workers that compute some of the groups of every update, with all stages among them",
    "depth": "the number of workers of a lane; with 1 the one worker holds the whole model",
    "worker": "one process of a run, (lane, stage), rank = lane * depth + stage",
    "update": "one change of the weights, by B * A * R images",
    "event": "what happens between updates: a log line, a validation, a checkpoint",
    "run": "one training from update 0 to its end, with its folder, however often it is interrupted",
    "dialect": "the options, names and log lines of an older program, translated into ours",
}
"""All the words that are this program's own."""

CHANGES = [
    ("an option of batches, pipelines and layout", ["options/batch.py"]),
    ("an option of length, events and run folder", ["options/run.py"]),
    ("an option of data", ["options/data.py"]),
    ("an option of the model", ["options/model.py"]),
    ("an option of optimiser, loss and schedule", ["options/optimizer.py"]),
    ("an option of precision", ["options/precision.py"]),
    ("the command line: help, unknown options and suggestions", ["options/parser.py"]),
    ("what an option may say besides its value: other names (aliases), choices, limits", ["options/field.py"]),
    ("options in YAML files", ["options/file.py"]),
    ("the arithmetic of batches, epochs and events", ["topology.py"]),
    ("what follows from the options, and what --dry-run prints", ["spec/resolving.py", "spec/run_spec.py"]),
    ("what a run is refused for before it starts", ["spec/checks.py", "run/preflight.py"]),
    ("model, image size, classes, normalisation where no option says them", ["data/subject.py"]),
    ("lanes, depth and number of threads of a run, and who computes which groups", ["layout.py"]),
    ("which cores a worker is pinned to", ["launch/cores.py"]),
    ("the SLURM script, Kubernetes manifest or SkyPilot task of a training job", ["launch/slurm_script.py", "launch/kubernetes.py", "launch/skypilot.py"]),
    ("addresses on object stores, and what is uploaded when", ["remote/front.py", "remote/mirror.py"]),
    ("training inside Ray Train", ["ray.py"]),
    ("how workers are started, and by which launchers", ["launch/run_job.py", "launch/rank.py", "launch/agent.py"]),
    ("how workers meet and prove that they belong to the job", ["launch/rendezvous.py", "launch/messages.py"]),
    ("how a worker that is gone is noticed; which one is told as lost", ["launch/watch.py", "launch/store.py"]),
    ("what SIGTERM, SIGUSR1, SIGHUP and Ctrl-C do to a run, and how soon", ["training/signals.py", "training/late.py", "training/polling.py"]),
    ("what is validated, written and said when a run ends or is stopped", ["run/finish.py"]),
    ("communication between workers", ["world/world.py", "world/distributed.py"]),
    ("the tree in whose order gradients are summed", ["tree.py"]),
    ("the sum of gradients within a lane, and its buckets", ["world/gradients.py"]),
    ("the sum of gradients over lanes", ["world/exchange.py"]),
    ("what workers keep and pass on when one dies", ["training/handover.py"]),
    ("whether workers are started again after a failure, and what is said", ["launch/failure.py", "launch/agent.py"]),
    ("whether a job was started before", ["world/restarts.py"]),
    ("what a worker does from start to end", ["run/worker.py"]),
    ("where a run begins: new, resumed, restored", ["run/start.py"]),
    ("which options of a stored run may change", ["run/stored_options.py"]),
    ("the train loop", ["training/loop.py"]),
    ("the order of transforms on a model", ["training/build_model.py"]),
    ("forward and backward of the whole model", ["training/whole_model_lane.py"]),
    ("forward and backward of a stage", ["training/stage_lane.py", "pipeline/runtime.py"]),
    ("which layers of a network a stage may begin at: one rule for all networks", ["models/graph.py"]),
    ("what each of them costs; their names", ["models/units.py", "models/splits.py", "models/library_names.py"]),
    ("automatic splits: where a model is cut into stages", ["pipeline/balance.py"]),
    ("for which runs layers are timed for that, and which places a run allows; how a model is cut", ["run/autosplit.py", "training/split_units.py", "pipeline/cut.py"]),
    ("the order of forward and backward passes in a pipeline", ["pipeline/schedules.py"]),
    ("the loss, top-1 and top-5", ["training/loss.py"]),
    ("clipping, loss scale and what follows the gradients", ["training/update.py", "numerics/loss_scale.py"]),
    ("the update of SGD, Adam, RMSprop; of LARS, LAMB, Muon", ["optim/rules.py", "optim/lars.py", "optim/lamb.py", "optim/muon.py"]),
    ("which weights a rule gets with which rate and decay; an optimiser class of somebody else's", ["optim/optimizer.py", "optim/foreign.py"]),
    ("the learning rate over time", ["optim/schedule.py"]),
    ("averages of weights", ["optim/average.py", "run/averages.py"]),
    ("when a run stops, logs, validates and saves", ["training/stopping.py", "training/events.py"]),
    ("a network's layers", ["models/resnet.py", "models/efficientnet.py", "models/mobilenet.py", "models/squeezenet.py"]),
    ("batch norm, whose statistics move once per update, and group norm; the sum of the statistics over workers", ["models/layers/norms.py", "world/norm_statistics.py"]),
    ("a network's name, sizes and scales", ["models/catalogue.py"]),
    ("published weights by --pretrained; norm momentum and dropout of a fine-tuned model", ["data/pretrained.py"]),
    ("the default optimiser, rate, decay and epochs of fine-tuning", ["options/layers.py"]),
    ("how foreign weights are read", ["models/weights.py", "models/sources.py"]),
    ("models of timm and torchvision; which layers of others are replaced", ["models/library_models.py", "models/layers/adopt.py"]),
    ("data and models of a user's own", ["data/user_data.py", "models/user_module.py"]),
    ("number formats", ["numerics/precision.py", "numerics/half_ops.py"]),
    ("which convolutions run in half on a CPU, found by measuring", ["numerics/half_choice.py"]),
    ("whether a processor has half at all; the kernels", ["numerics/half_policy.py", "numerics/half_native.py"]),
    ("TF32 and cuDNN on a GPU; copies to it", ["numerics/gpu_arithmetic.py", "numerics/copy_stream.py"]),
    ("compiled blocks", ["numerics/compiled.py"]),
    ("rounding, to nearest and stochastic: both files, with equal bits", ["numerics/rounding.py", "numerics/native/rounding.c"]),
    ("random numbers", ["numerics/keyed.py"]),
    ("recomputation", ["numerics/recompute.py"]),
    ("the arithmetic of training on a CPU", ["numerics/convolution.py", "numerics/norm_act.py", "numerics/native/"]),
    ("which data sets there are, and the epochs, crop, flip and normalisation that one brings", ["data/catalogue.py"]),
    ("how a data set is opened", ["data/open.py"]),
    ("lists of images in CSV and parquet", ["data/formats/lists.py"]),
    ("class folders", ["data/formats/folders.py"]),
    ("reading and writing a TFRecord; what its examples hold; a folder of such files", ["data/formats/tfrecord.py", "data/formats/tfrecord_example.py", "data/formats/tfrecord_dataset.py"]),
    ("parquet and tar shards", ["data/formats/packed.py"]),
    ("what data verify and data audit find", ["data/verify.py", "data/audit.py"]),
    ("which images are held out, and which fold each is in", ["data/formats/listing.py"]),
    ("which rule divides a data set: hold-out, folds, groups, excluded images", ["data/formats/divide.py"]),
    ("a run for each fold; a search over options; how sure a difference is", ["run/folds.py", "launch/sweep.py", "measure/paired.py"]),
    ("how batches are put together, the padding of the last one, loader threads", ["data/loader.py", "data/feed.py"]),
    ("EXIF orientation", ["data/photo/exif.py"]),
    ("the order of samples", ["data/order.py"]),
    ("how a crop of a JPEG is decoded, in C; without that function; any other photograph", ["data/photo/fused.py", "data/native/jpeg_crop.c", "data/photo/jpeg.py", "data/photo/decode.py"]),
    ("the random and central crops of photographs", ["data/photo/crops.py"]),
    ("the order of augmentation, mixing and normalisation", ["data/transform/prepare.py"]),
    ("flips and shifts", ["data/transform/geometry.py"]),
    ("RandAugment and TrivialAugment; what their operations do to the pixels", ["data/transform/randaugment.py", "data/transform/operations.py", "data/native/change.h"]),
    ("mixup and cutmix", ["data/transform/mixing.py"]),
    ("normalisation", ["data/transform/normalize.py"]),
    ("colour jitter", ["data/transform/jitter.py"]),
    ("random erasing", ["data/transform/erasing.py"]),
    ("class weights", ["data/labels.py"]),
    ("the teacher of a distillation", ["run/teacher.py"]),
    ("how accuracy is counted", ["evaluate/accuracy.py"]),
    ("several labels for each image: average precision, thresholds", ["evaluate/multi_label.py"]),
    ("confusion.json, and the surest mistakes", ["evaluate/mistakes.py"]),
    ("the files of a checkpoint, and when one is damaged", ["checkpoint/folder.py"]),
    ("which checkpoint is meant: best, last, an update", ["checkpoint/choice.py", "checkpoint/store.py"]),
    ("log lines", ["monitor/observers.py", "monitor/log_style.py"]),
    ("columns of metrics.csv and validation.csv; the format of their numbers", ["monitor/records.py", "monitor/csvfile.py"]),
    ("TensorBoard and Weights & Biases", ["monitor/trackers.py"]),
    ("the list of runs; how they are deleted, and the names of what they write", ["commands/runs.py", "run/folder.py", "monitor/run_files.py"]),
    ("the parts of the report", ["report/sections.py"]),
    ("its verdict", ["report/verdict.py"]),
    ("the page that they make; report --watch", ["report/page.py", "report/watch.py"]),
    ("the reliability picture and the calibration error in the report; the one in validation's records", ["report/sections.py", "report/inputs.py", "evaluate/calibration.py"]),
    ("heat maps (Grad-CAM): computed, for which images, drawn in the report", ["evaluate/heat_map.py", "run/examples.py", "report/images.py"]),
    ("opening a model for inference", ["infer/load.py"]),
    ("which inference engine is used", ["infer/engines/auto.py"]),
    ("the precision of answers, and the accuracy that a bfloat16 or int8 model must keep; how an 8-bit model is made, and which layers stay in float; which kinds can be 8-bit", ["infer/precision.py", "infer/quantize.py", "infer/sensitivity.py", "infer/quantize_process.py"]),
    ("exports", ["infer/export.py"]),
    ("the answers of predict: their fields; the table and CSV", ["infer/predict.py", "commands/predict.py"]),
    ("the temperature fitted on validation, and how sure a model is", ["evaluate/calibration.py"]),
    ("addresses of the HTTP server, and the limits of a request; too many requests (429)", ["serve/app.py", "serve/settings.py", "serve/errors.py", "serve/batching.py"]),
    ("/metrics; the Dockerfile and manifests of a server, as templates and filled in", ["serve/metrics.py", "serve/templates", "serve/manifests.py"]),
    ("the pages at / and /docs", ["serve/page.html", "serve/page.js", "serve/page.css", "serve/docs.html"]),
    ("which Host and Origin headers the server accepts", ["serve/hosts.py"]),
    ("when a new version is taken into service, and whether its agreement is enough; how that is counted", ["serve/service.py", "serve/agreement.py"]),
    ("batches and queues of the server, its engine processes", ["serve/batching.py", "serve/pool.py", "serve/service.py"]),
    ("the Open Inference Protocol over HTTP", ["serve/protocols/http_v2.py"]),
    ("TensorFlow Serving's protocol over HTTP", ["serve/protocols/http_tf.py"]),
    ("gRPC: the service, its messages", ["serve/protocols/grpc_server.py", "serve/protocols/protos.py"]),
    ("what a plan proposes", ["plan/choose.py", "plan/planner.py"]),
    ("the micro-batch that memory holds", ["plan/batch_size.py"]),
    ("the simulated cluster; its failures", ["plan/simulator.py", "plan/failures.py"]),
    ("a benchmark beside peers", ["measure/rounds.py", "bench/training_peers.py", "bench/inference_peers.py"]),
    ("the page benchmarks/README.md: its text and head; its rows; a ratio", ["bench/page.py", "bench/tables.py", "bench/records.py"]),
    ("an older program's options: their rows, and what they mean together", ["dialects/tensorflow1/table.py", "dialects/tensorflow1/translate.py"]),
    ("the same of the three others: rows; meanings", ["dialects/tensorflow2/table.py", "dialects/pytorch/table.py", "dialects/popart/table.py", "dialects/tensorflow2/translate.py", "dialects/pytorch/translate.py", "dialects/popart/translate.py"]),
    ("an older program's log lines and CSV columns", ["dialects/log_lines.py"]),
    ("how any dialect is read and translated", ["dialects/reader.py", "dialects/table.py", "dialects/translation.py"]),
    ("the version of torch, and what is used of its private parts", ["numerics/foreach.py", "pipeline/schedules.py", "launch/agent.py"]),
]  # fmt: skip
"""A behaviour, and the files that decide it."""

WAY = [
    ("data", "the samples of a slot by number, decoded, put together and augmented",
     ["data/order.py: slot_indices", "data/photo/encoded.py: EncodedDataset.read", "data/loader.py: Loader.__next__",
      "data/transform/prepare.py: Prepare.__call__"]),
    ("models", "images to logits, through the layers of the network", ["models/resnet.py: ResNet.forward"]),
    ("numerics", "the arithmetic of each layer, in the run's precision, and its backward pass",
     ["numerics/convolution.py: forward", "numerics/half_ops.py: convolution"]),
    ("pipeline", "with depth > 1 only: what one stage sends to the next", ["pipeline/runtime.py: Pipeline.run"]),
    ("world", "gradients of the groups summed in the order of the tree, over all lanes; the table of their figures over all workers",
     ["world/gradients.py: GradientSum.leaf", "world/gradients.py: GradientSum.finish",
      "world/distributed.py: ProcessWorld.sum_over_all"]),
    ("optim", "the sum becomes new weights", ["optim/optimizer.py: Optimizer.step"]),
    ("training", "loss and hits of the group, in the table since its forward pass; the table goes into the log point",
     ["training/loss.py: tally", "training/meter.py: Meter.add", "training/events.py: Events.after_update"]),
    ("monitor", "a line of metrics.csv in the run folder", ["monitor/observers.py: CsvWriter.log"]),
    ("report", "the run folder as a page", ["report/inputs.py: read_run", "report/page.py: write_report"]),
]  # fmt: skip
"""One sample from disk to report: package, what happens there, functions. `WholeModelLane.gradients` drives the middle."""

TEXT = """# Architecture

Made by `scripts/architecture.py`, which holds the words and the rows of "Where to look"; packages, their texts and their imports
are read from the source. A test keeps the page current.

`options -> topology -> layout -> launch -> worker: data -> model (precision, recompute, stages) -> slot gradients -> tree
-> optimiser -> events (log, checkpoint, validate) -> run folder`
"""

DRIVEN = """`training/whole_model_lane.py: WholeModelLane.gradients` drives what lies between data and optimiser (with depth > 1:
`training/stage_lane.py: StageLane.gradients`); a sample passes each package once."""

PACKAGES = """## Packages

Each imports only from its own layer or those below it.
"""


def main() -> None:
    text = page()
    if "--check" in sys.argv:
        sys.exit(
            0
            if PAGE.exists() and PAGE.read_text() == text
            else "docs/architecture.md is stale: run scripts/architecture.py"
        )
    PAGE.write_text(text)


def page() -> str:
    lines = [TEXT, "## Words", "", "| word | what |", "|---|---|"]
    lines += [f"| {word} | {what} |" for word, what in WORDS.items()]
    lines += ["", "## Where to look", "", "| to change | look at |", "|---|---|"]
    lines += [f"| {what} | {', '.join(f'`{file}`' for file in files)} |" for what, files in CHANGES]
    lines += ["", "## One sample's way from disk to report", "", DRIVEN, ""]
    lines += ["| package | what | functions |", "|---|---|---|"]
    lines += [f"| {name} | {what} | {', '.join(f'`{one}`' for one in functions)} |" for name, what, functions in WAY]
    lines += ["", PACKAGES]
    for title, names in LAYERS:
        lines += [f"### {title}", "", "| package | what | imports |", "|---|---|---|"]
        for name in names:
            files = sorted((SOURCE / name).rglob("*.py")) if (SOURCE / name).is_dir() else [SOURCE / f"{name}.py"]
            if not files or not files[0].exists():
                continue
            sources = [file.read_text() for file in files]
            first = (SOURCE / name / "__init__.py") if (SOURCE / name).is_dir() else files[0]
            about = (
                (ast.get_docstring(ast.parse(first.read_text())) or "")
                .split("\n\n")[0]
                .replace("\n", " ")
                .replace("|", "\\|")
            )
            used = sorted(set().union(*(imports(source) for source in sources)) - {name})
            lines.append(f"| `{name}` | {about} | {', '.join(used)} |")
        lines.append("")
    return "\n".join(lines)


def imports(source: str) -> set[str]:
    """Our packages that a source text imports."""
    known = {name for _, names in LAYERS for name in names}
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            names = parts[1:2] or [alias.name for alias in node.names] if parts[0] == "conveyor" else []
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".")[1] for alias in node.names if alias.name.startswith("conveyor.")]
        else:
            continue
        found.update(name for name in names if name in known)
    return found


if __name__ == "__main__":
    main()
