"""Specifications: both formats, every combination of parameters, metrics read as the format says, mistakes named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from conveyor.bench import growing
from conveyor.bench.spec import choose, read_spec
from conveyor.commands.bench import SPECS
from conveyor.errors import UserError

ORIGINAL = """
common: &common
  data:
    throughput:
      regexp: 'throughput: *(.*?) samples\\/sec'
      skip: 2
    accuracy:
      reduction_type: final
      regexp: 'accuracy: *(.*?) \\%'
  output:
    - [samples/sec, throughput]
    - [batchsize, batch]
infer:
  <<: *common
  description: |
    Inference at
    two batch sizes.
  parameters:
    batch: 1,4
    size: 32, 64
  env:
    PLACE: /data
  cmd: >-
    python3 run.py --batch {batch}
    --size {size} --dir $PLACE/x
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "benchmarks.yml"
    path.write_text(ORIGINAL)
    return path


def test_every_combination_of_parameters(spec: Path) -> None:
    (benchmark,) = read_spec(spec).values()
    assert benchmark.description == "Inference at two batch sizes."
    cases = benchmark.cases()
    assert [tuple(case.parameters.values()) for case in cases] == [("1", "32"), ("1", "64"), ("4", "32"), ("4", "64")]
    assert cases[2].command == ["python3", "run.py", "--batch", "4", "--size", "32", "--dir", "/data/x"]
    assert cases[2].name == "infer[batch=4,size=32]"
    assert cases[2].folder == spec.parent


def test_metrics_skip_and_reduce(spec: Path) -> None:
    (benchmark,) = read_spec(spec).values()
    text = "".join(f"throughput: {rate} samples/sec, accuracy: {rate / 2} %\n" for rate in (1, 2, 30, 50))
    assert benchmark.patterns["throughput"].read(text) == 40
    assert benchmark.patterns["accuracy"].read(text) == 25
    assert benchmark.patterns["throughput"].read("nothing") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: {x: 1}", "holds no benchmark"),
        ("a: {cmd: [x]}", "cmd should be one text"),
        ("a: {cmd: x, dat: {}}", "'data'"),
        ("a: {cmd: x, data: {m: {regexp: '('}}}", "regexp of 'm' is wrong"),
        ("a: {cmd: x, data: {m: {regexp: 'abc'}}}", "one group"),
        ("a: {cmd: x, data: {m: {}}}", "needs a regexp"),
        ("a: {cmd: x, data: {m: {regexp: '(a)', reduction_type: median}}}", "mean or final"),
        ("a: {cmd: x, output: [a]}", "pairs"),
        ("a: {cmd: x, output: 5}", "pairs"),
        ("a: {cmd: ''}", "cmd should be one text"),
        ("a: {cmd: 'echo \"x'}", "No closing quotation"),
        ("a: {cmdd: x}\nb: {cmd: x}", "'cmd'"),
        ("a: {cmd: x, timeout: abc}", "timeout should be a number"),
        ("a: {cmd: x, timeout: 0}", "timeout should be a number"),
        ("a: {cmd: x, data: {m: {regexp: 5}}}", "one group"),
        ("a: {cmd: x, data: {m: {regexp: '(a)', skip: x}}}", "skip of 'm'"),
        ("a: {cmd: x, data: {m: {regexp: '(a)', skip: -1}}}", "skip of 'm'"),
        ("a: {cmd: x, data: {m: {regexp: '(a)', skp: 1}}}", "'skip'"),
        ("a: {cmd: x, metrics: 5}", "metrics should be a list"),
        ("a: {cmd: x, metrics: {m: 1}}", "metrics should be a list"),
        ("a: {cmd: x, parameters: {b: []}}", "parameter 'b' should be a list"),
        ("a: {cmd: x, parameters: {b: }}", "parameter 'b' should be a list"),
        ("a: {cmd: x, parameters: {b: {c: 1}}}", "parameter 'b' should be a list"),
        ("a: {cmd: x, parameters: [[b, 1]]}", "parameters should hold"),
    ],
)
def test_mistakes_are_named(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yml"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as caught:
        read_spec(path)
    assert "wrong.yml" in str(caught.value)


def test_one_metric_needs_no_list(tmp_path: Path) -> None:
    path = tmp_path / "spec.yml"
    path.write_text("a: {cmd: x, metrics: images_per_second}")
    assert read_spec(path)["a"].metrics == ("images_per_second",)


def test_variables_of_the_shell_are_no_parameters(tmp_path: Path) -> None:
    path = tmp_path / "spec.yml"
    path.write_text("a: {cmd: 'run ${PLACE}/x {n} ${n}', parameters: {n: 3}, env: {EMPTY: }}")
    (case,) = read_spec(path)["a"].cases(environment={"PLACE": "/data", "n": "7"})
    assert case.command == ["run", "/data/x", "3", "7"]
    assert case.env == {"EMPTY": ""}
    with pytest.raises(UserError, match="No closing quotation"):
        read_spec(path)["a"].cases(environment={"PLACE": "it's"})


def test_a_first_match_that_is_no_number_is_dropped_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "spec.yml"
    path.write_text("a: {cmd: x, data: {m: {regexp: 'rate: (\\S+)', skip: 1}}}")
    pattern = read_spec(path)["a"].patterns["m"]
    assert pattern.read("rate: unknown\nrate: 2\nrate: 4\n") == 3


def test_unknown_names_and_parameters(spec: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'infer'"):
        choose(read_spec(spec), ["infr"])
    other = tmp_path / "other.yml"
    other.write_text("a: {cmd: 'run {batch}'}")
    with pytest.raises(UserError, match="batch"):
        read_spec(other)["a"].cases()
    other.write_text("a: {cmd: 'run {batc}', parameters: {batch: 1}}")
    with pytest.raises(UserError, match="did you mean 'batch'"):
        read_spec(other)["a"].cases()


@pytest.mark.parametrize(
    ("name", "words", "batches"),
    [
        ("resnet50_train_m2000", "--accumulation 1024 --micro-batch-size 16 --epochs 1", ""),
        ("resnet50_train_pod16", "--accumulation 256 --replicas 4 --micro-batch-size 16 --epochs 1", ""),
        ("resnext101_train_m2000", "--accumulation 64 --replicas 2 --micro-batch-size 6 --epochs 2", ""),
        ("resnext101_train_pod16", "--accumulation 16 --replicas 8 --micro-batch-size 6 --epochs 2", ""),
        # As published, but for the group dimension, the batch and the splits, which are those of the named configuration.
        ("efficientnet_b4_g1_train_m2000", "--accumulation 64 --group-dim 1 --micro-batch-size 3 --epochs 2", ""),
        ("efficientnet_b4_g1_train_pod16", "--accumulation 64 --replicas 4 --group-dim 1 --micro-batch-size 3 --epochs 1", ""),
        ("efficientnet_b4_g16_train_m2000", "--accumulation 40 --group-dim 16 --micro-batch-size 5 --epochs 2", ""),
        ("efficientnet_b4_g16_train_pod16", "--accumulation 40 --replicas 4 --group-dim 16 --micro-batch-size 5 --epochs 1", ""),
        ("resnet50_infer_synthetic", "--synthetic-data --model resnet50 --repeat 10", "1 4 16 32 64 90"),
        ("resnext101_infer_synthetic", "--synthetic-data --model resnext101 --repeat 10", "1 2 4 8 16"),
        ("efficientnet_b0_infer_synthetic", "--synthetic-data --model efficientnet_b0 --repeat 10", "1 8 16 32"),
        ("resnet50_infer_generated", "--generated-data --model resnet50 --replicas 4 --repeat 10", "1 4 16 32 64 80"),
        ("resnext101_infer_generated", "--generated-data --model resnext101 --replicas 4 --repeat 10", "1 2 4 8 16"),
        ("efficientnet_b0_infer_generated", "--generated-data --model efficientnet_b0 --replicas 4 --repeat 10", "1 8 16 32"),
    ],
)  # fmt: skip
def test_all_published_benchmarks_are_shipped(name: str, words: str, batches: str) -> None:
    benchmark = read_spec(SPECS / "cnns.yml")[name]
    assert benchmark.parameters.get("batch", []) == batches.split()
    for option in words.split("--")[1:]:
        assert f" --{option.strip()} " in f"{benchmark.command} "
    assert ("--replicas" in benchmark.command) == ("--replicas" in words)


@pytest.mark.parametrize("path", sorted(SPECS.glob("*.yml")), ids=lambda path: path.stem)
def test_shipped_specifications_are_right(path: Path) -> None:
    for benchmark in read_spec(path).values():
        assert benchmark.description
        assert benchmark.cases(small=True)
        assert benchmark.metrics or benchmark.patterns


def test_every_shipped_command_is_understood(conveyor: Callable[..., tuple[int, str, str]]) -> None:
    for path in sorted(SPECS.glob("*.yml")):
        for benchmark in read_spec(path).values():
            for small in (False, True):
                case = benchmark.cases(small, {"DATASETS_DIR": "/data"})[0]
                if case.command[1:3] == ["bench", "grow"]:  # has no dry run; its cases run in test_growing.py
                    assert case.command[3] in growing.MEASURES
                    continue
                code, _, error = conveyor(*case.command[1:], "--dry-run")
                assert code == 0, f"{case.name}: {error}"
