"""Run the sequences of commands (`make conformance`; one of them: ARGS="-k t1-validate")."""

import csv
import re
import shlex

import pytest
from tests.conformance.ignored import ignored_options
from tests.conformance.running import free_port, shell
from tests.conformance.sequences import SEQUENCES, Sequence, Step
from tests.data.small import make_cifar10, make_mnist
from tests.dialects.command_lines import COMPAT

FOLDERS = {"<T1>": "tensorflow1", "<T2>": "tensorflow2", "<PT>": "pytorch", "<PO>": "popart"}
TABLE = re.compile(r"^(\[\d+\] )?(\S+) +\d+\.\d+ +(\d+\.\d+) +\d+\.\d+ +\S+ +\d+ +\S+$", re.MULTILINE)
"""A line of validation: checkpoint, epoch, top-1, top-5, loss, images, images per second."""
RANDOM = re.compile(r"random[a-z ]*weights|weights are random|^random ", re.IGNORECASE | re.MULTILINE)


def test_there_are_enough_of_them():
    assert len(SEQUENCES) >= 80
    assert len({sequence.id for sequence in SEQUENCES}) == len(SEQUENCES)
    assert all(2 <= len(sequence.steps) <= 3 for sequence in SEQUENCES)
    assert {core for sequence in SEQUENCES for core in sequence.cores} == {1, 2}


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sequences")
    make_cifar10(folder / "cifar-10-batches-bin", per_file=8)
    make_mnist(folder, train=40, test=8)
    return folder


@pytest.mark.conformance
@pytest.mark.timeout(900)
@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda sequence: sequence.id)
def test_a_sequence_of_commands(sequence: Sequence, data, tmp_path):
    said = []
    for index, step in enumerate(sequence.steps):
        text = step.command.replace("{data}", str(data)).replace("{port}", str(free_port()))
        for mark, name in FOLDERS.items():
            text = text.replace(mark, str(COMPAT / name))
        cores = sequence.cores[min(index, len(sequence.cores) - 1)]
        bound = f"taskset -c {'0' if cores == 1 else '0,1'} bash -c {shlex.quote(text)}"
        ignored = (
            ignored_options(text, tmp_path) if not step.code else []
        )  # before: the command may leave a folder behind
        code, output = shell(bound, tmp_path, {"CONVEYOR_CACHE": str(tmp_path.parent / "cache")})
        wrong = what_is_wrong(step, text, code, output, tmp_path)
        wrong += [f"{option} is accepted and ignored" for option in ignored]
        said.append(f"$ {text}\n{output[-2500:]}")
        assert not wrong, f"{sequence.id}, command {index + 1}: {'; '.join(wrong)}\n" + "\n".join(said)


def what_is_wrong(step: Step, text: str, code: int, output: str, folder) -> list[str]:
    """Everything that a user of this command would complain of."""
    wrong = [f"exit code {code}, not {step.code}"] if code != step.code else []
    wrong += ["a traceback"] if "Traceback" in output else []
    if step.expects and not re.search(step.expects, output):
        wrong.append(f"the output does not hold {step.expects!r}")
    if bool(RANDOM.search(output)) != step.random:
        wrong.append("random weights are not named" if step.random else "random weights that nobody asked for")
    if step.code or code:
        sentences = [line for line in output.splitlines() if "error:" in line]
        return wrong if len(sentences) == 1 or not step.code else [*wrong, f"{len(sentences)} lines with an error"]
    return wrong + what_is_missing(text, output, folder)


def what_is_missing(text: str, output: str, folder) -> list[str]:
    """What a command of this kind must say or leave behind."""
    if "--training False" in text or re.search(r"validat(e|ion)\.py |conveyor validate ", text):
        return validated(output, folder)
    if re.search(r"weight_avg|average", text):
        made = folder / re.search(r"(--filename|--checkpoint-output-path|--output) (\S+)", text)[2]
        return [] if any(made.rglob("model.safetensors")) else [f"no average in {made.name}"]
    if re.search(r"(train|resnet_main|restore)\.py |conveyor (train|restore)", text):
        return trained(text, output, folder)
    if "export" in text and "request" not in text:
        return [] if any((folder / "exported").glob("model.*")) else ["no exported model"]
    if "request" in text:
        return (
            []
            if re.search(r"[1-9]\d* (images|requests|answers)|throughput", output)
            else ["no figures of the requests"]
        )
    return []


def validated(output: str, folder) -> list[str]:
    """One accuracy at least, and of a checkpoint that training has validated the same one."""
    found = {match[2]: float(match[3]) for match in TABLE.finditer(output)}
    if not found:
        return ["no accuracy"]
    known = {}
    for file in folder.glob("*/validation.csv"):
        if file.parent.name in output:
            with open(file) as lines:
                known |= {line["update"]: float(line["accuracy"]) for line in csv.DictReader(lines)}
    return [
        f"checkpoint {name}: {top1} % here, {known[name]} % in training"
        for name, top1 in found.items()
        if name in known and abs(known[name] - top1) > 0.006
    ]


def trained(text: str, output: str, folder) -> list[str]:
    """A run folder that is named, with metrics, a result and (unless none was asked for) a checkpoint and an accuracy."""
    named = re.search(r"run folder: (\S+)", output)
    if named is None:
        return ["no run folder is named"]
    run = folder / named[1]
    wrong = [f"no {name}" for name in ("metrics.csv", "result.json", "options.yml") if not (run / name).is_file()]
    if "mk2_resnet8_test" not in text and not any(run.glob("checkpoints/*/manifest")):
        wrong.append("no checkpoint")
    silent = re.search(r"--no-validation|--validation False|resnet8_test", text)
    if not silent and not (run / "validation.csv").is_file():
        wrong.append("no accuracy")
    return wrong
