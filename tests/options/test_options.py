"""Command line, YAML and Python give the same options; mistakes are one sentence that names the cure."""

import dataclasses
import json
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conveyor.errors import UserError
from conveyor.options import Options, specs
from conveyor.options.file import Configurations, configuration, parse_mapping
from conveyor.options.options import Spec
from conveyor.options.parser import Parser, add_config, add_options, explained, first_sentence, options_from
from conveyor.options.units import Duration


def parse(*words: str) -> Options:
    parser = Parser(prog="conveyor train")
    add_config(parser)
    add_options(parser)
    return options_from(parser.parse_args(words))


def value_for(spec: Spec) -> st.SearchStrategy[Any]:
    """A value that differs in general from the default."""
    about = spec.about
    low = next((bound for bound in (about.minimum, about.above) if bound is not None), -100)
    high = next((bound for bound in (about.maximum, about.below) if bound is not None), low + 1000)
    by_type: dict[type, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(int(low), int(high)),
        float: st.floats(low, high, exclude_min=about.above is not None, exclude_max=about.below is not None),
        str: text_for(spec),
        Fraction: st.fractions(0, 100),
        Duration: st.builds(Duration, st.fractions(0, 100), st.sampled_from(["ep", "up", "%"])),
    }
    one = by_type[spec.kind.item]
    return st.lists(one, min_size=1, max_size=3).map(tuple) if spec.kind.many else one


FORMS = {
    "lr_factors": ("bias:64", "head.weight:0.5"),
    "progressive_image_size": ("0:96", "10:128"),
    "optimizer_arguments": ("rho=0.9", "betas=0.9,0.99", "amsgrad=true"),
    "normalization": ("imagenet", "centred", "0.5,0.5,0.5/0.25,0.25,0.25"),
}
"""Texts that an option with a form of its own reads."""


def text_for(spec: Spec) -> st.SearchStrategy[str]:
    if spec.about.choices or spec.about.read is not None:
        return st.sampled_from(spec.about.choices or FORMS.get(spec.name, ("1", "2.5", "30")))
    return st.text("abc/._12", min_size=1, max_size=8)


@settings(max_examples=60)
@given(st.data())
def test_command_line_yaml_and_python_agree(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(specs())), unique=True, max_size=12))
    changes = {name: data.draw(value_for(specs()[name])) for name in names}
    options = Options().replace(**changes)
    assert Options.from_mapping(parse_mapping(options.to_yaml(), "x")) if not conflicts(options) else True
    assert Options().updated(parse_mapping(options.to_yaml(), "x")) == options
    if not conflicts(options):
        assert parse(*options.command()[2:]) == options


def conflicts(options: Options) -> bool:
    try:
        options.check()
    except UserError:
        return True
    return False


def test_every_option_is_documented() -> None:
    for spec in specs().values():
        assert len(spec.about.doc) > 10, spec.name
        assert spec.about.doc[0].isupper() or spec.about.doc[0].islower()
        if spec.default is not None:
            assert spec.coerce(spec.default) == spec.default, spec.name


def test_short_help_is_never_cut_inside_brackets() -> None:
    assert first_sentence("A share of the new statistics (0.1: a tenth). More. [0.1]") == (
        "A share of the new statistics (0.1: a tenth). [0.1]"
    )
    for spec in specs().values():
        short = first_sentence(explained(spec))
        assert short.count("(") == short.count(")"), short


def test_options_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Options().batch.replicas = 3  # type: ignore[misc]


PROMISED = [
    "--config",
    "--data",
    "--data-dir",
    "--model",
    "--image-size",
    "--num-classes",
    "--micro-batch-size",
    "--accumulation",
    "--replicas",
    "--splits",
    "--pipeline-schedule",
    "--recompute",
    "--layout",
    "--precision",
    "--epochs",
    "--updates",
    "--learning-rate",
    "--lr-schedule",
    "--warmup",
    "--optimizer",
    "--momentum",
    "--weight-decay",
    "--l2-regularization",
    "--label-smoothing",
    "--loss-scale",
    "--seed",
    "--run-dir",
    "--checkpoints-per-epoch",
    "--logs-per-epoch",
    "--validation",
    "--no-validation",
    "--dry-run",
    "--json",
    "--quiet",
]


def test_promised_names_are_there(
    conveyor: Callable[..., tuple[int, str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        conveyor("train", "--help-all")
    text = capsys.readouterr().out
    missing = [flag for flag in PROMISED if flag not in text]
    assert missing == []


def test_precedence(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("epochs: 4\nreplicas: 3\nseed: 9\n")
    options = parse("--config", str(file), "--replicas", "5")
    assert (options.length.epochs, options.batch.replicas, options.run.seed) == (4.0, 5, 9)
    assert options.batch.micro_batch_size == Options().batch.micro_batch_size


def test_what_a_user_gives_takes_the_place_of_a_configurations_option_that_excludes_it(
    conveyor: Callable[..., tuple[int, str, str]],
) -> None:
    """`cifar10_fast` has epochs and an accumulation; two options of one place still exclude each other."""
    code, out, err = conveyor(
        "train", "--config", "cifar10_fast", "--updates", "8", "--generated-data", "--dry-run", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["updates_total"] == 8
    code, out, err = conveyor(
        "train", "--pretrained", "tf_efficientnet_lite0", "--updates", "8", "--epochs", "2", "--dry-run"
    )
    assert code == 2
    assert "--updates 8 and --epochs 2" in err


def test_configurations_inherit() -> None:
    configurations = Configurations.from_files(
        {
            "a.yml": "base-net: {replicas: 2, epochs: 3}\nbig: {base: base-net, replicas: 4}\nhuge: {base: big, micro-batch-size: 2}"
        }
    )
    assert configurations.resolve("huge") == {"replicas": 4, "epochs": 3, "micro_batch_size": 2}


def test_a_file_with_several_configurations(tmp_path: Path) -> None:
    file = tmp_path / "mine.yml"
    file.write_text("one: {epochs: 2}\ntwo: {base: one, replicas: 2}\n")
    mapping, where = configuration(f"{file}:two")
    assert mapping == {"epochs": 2, "replicas": 2}
    assert str(file) in where


MISTAKES = [
    (["--micro-batch-siz", "4"], ["--micro-batch-siz"]),
    (["--microbatchsize", "4"], ["--microbatchsize", "--micro-batch-size"]),
    (["--micro-batch-size", "four"], ["micro-batch-size", "four", "whole number"]),
    (["--micro-batch-size", "0"], ["micro-batch-size", "smallest value is 1"]),
    (["--micro-batch-size", "1.5"], ["micro-batch-size", "1.5"]),
    (["--optimizer", "momentun"], ["optimizer", "momentun", "momentum"]),
    (["--precision", "16.33"], ["precision", "16.33", "16.32"]),
    (["--precision", "32.16"], ["precision", "32.16"]),
    (["--warmup", "5 weeks"], ["warmup", "5 weeks", "5ep"]),
    (["--logs-per-epoch", "-1"], ["logs-per-epoch", "negative"]),
    (["--logs-per-epoch", "1/2/3"], ["logs-per-epoch", "1/2/3"]),
    (["--label-smoothing", "1.5"], ["label-smoothing", "largest value is 1"]),
    (["--updates", "5", "--epochs", "2"], ["--updates", "--epochs", "exclude"]),
    (["--accumulation", "5", "--global-batch-size", "20"], ["--accumulation", "--global-batch-size"]),
    (["--generated-data", "--synthetic-data"], ["--generated-data", "--synthetic-data"]),
    (["--config", "resnet50_16ipus_8k_bn_pipelin"], ["there is no configuration"]),
    (["--config", "nowhere.yml"], ["nowhere.yml"]),
    (["--learning-rate", "nan"], ["learning-rate", "give a finite number"]),
    (["--max-time", "-5s"], ["max-time", "'-5s' is not a time", "30min"]),
    (["--warmup", "-1ep"], ["warmup", "'-1ep' is not a duration", "5ep"]),
    (["--data-dir", ""], ["data-dir is empty", "leave the option out"]),
    (["--run-dir", ""], ["run-dir is empty", "leave the option out"]),
    (["--epochs"], ["--epochs"]),
    (["surplus"], ["surplus"]),
]


@pytest.mark.parametrize(("words", "expected"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_mistakes_on_the_command_line(
    words: list[str], expected: list[str], conveyor: Callable[..., tuple[int, str, str]]
) -> None:
    if words == ["--micro-batch-siz", "4"]:
        assert parse(*words).batch.micro_batch_size == 4  # a unique prefix is enough
        return
    code, out, error = conveyor("train", *words)
    assert code == 2
    assert out == ""
    assert error.startswith("conveyor: error: ")
    assert len(error.strip().splitlines()) == 1
    for word in expected:
        assert word in error


YAML_MISTAKES = [
    ("replica: 2", ["replica", "replicas"]),
    ("replicas: two", ["replicas", "two"]),
    ("replicas: [1, 2]", ["replicas", "one value"]),
    ("epochs: yes please", ["epochs"]),
    ("validation: maybe", ["validation", "maybe"]),
    ("replicas: 2\nreplicas: 3", ["stands twice"]),
    ("- a\n- b", ["name: value"]),
    ("a: [1", ["line", "YAML"]),
    ("replicas: {a: 1}", ["replicas"]),
    ("12: 3", ["12"]),
    ("seed: true", ["seed", "True"]),
    ("!!python/object/apply:os.system ['true']", ["YAML"]),
]


@pytest.mark.parametrize(("text", "expected"), YAML_MISTAKES, ids=[text for text, _ in YAML_MISTAKES])
def test_mistakes_in_files(
    text: str, expected: list[str], tmp_path: Path, conveyor: Callable[..., tuple[int, str, str]]
) -> None:
    file = tmp_path / "wrong.yml"
    file.write_text(text)
    code, _, error = conveyor("train", "--config", file, "--dry-run")
    assert code == 2
    assert len(error.strip().splitlines()) == 1
    assert "wrong.yml" in error
    for word in expected:
        assert word in error


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: {base: b}\nb: {base: a}", "circle"),
        ("a: {base: c}", "no configuration 'c'"),
        ("a: {base: [b]}", "one name"),
        ("a: 3", "option: value"),
    ],
)
def test_mistakes_in_inheritance(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        Configurations.from_files({"wrong.yml": text}).resolve("a")
    assert "wrong.yml" in str(caught.value)


def test_aliases_mean_the_option_everywhere() -> None:
    """On the command line, in a file and in Python; the equivalent command uses the one name."""
    assert parse("--shards", "4", "--iterations", "10") == Options().replace(stages=4, updates=10)
    assert Options.from_mapping({"shards": 4}) == Options().replace(stages=4)
    assert "--stages" in Options().replace(shards=4).command("train")
    names = [name for spec in specs().values() for name in (spec.name, *spec.about.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("words", "training"),
    [
        (["--training", "False"], False),
        (["--training=false"], False),
        (["--training", "True"], True),
        (["--no-training"], False),
        (["--training"], True),
    ],
)
def test_switches_can_be_spelled_out(words: list[str], training: bool) -> None:
    assert parse(*words, "--model", "resnet8") == Options().replace(training=training, model="resnet8")


def test_only_switches_take_true_and_false() -> None:
    """A word after an option with a value is that value; after anything else it is a mistake."""
    assert parse("--run-dir", "False").run.run_dir == "False"
    with pytest.raises(UserError, match="there is no argument False"):
        parse("--training", "False", "False")


@pytest.mark.parametrize("value", ["-3", "-0.5", "-.5", "-1e-3", "-3.25E+2"])
def test_negative_numbers_are_values(value: str) -> None:
    with pytest.raises(UserError, match=f"^lr-values is {float(value):g}; the smallest value is 0$"):
        parse("--lr-values", "1", value)
    assert parse("--seed", "-3").run.seed == -3


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("clip_norm", 0, "clip-norm is 0; give a number above 0"),
        ("momentum", 2, "momentum is 2; give a number below 1"),
        ("data_percentage", 0, "data-percentage is 0%; give a number above 0%"),
    ],
)
def test_bounds_that_are_no_values_themselves(name: str, value: float, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        Options().replace(**{name: value})
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("learning_rate", "1/0"),
        ("learning_rate", "inf"),
        ("mixup_alpha", float("inf")),
        ("epochs", "inf"),
        ("updates", "1e400"),
        ("seed", 2**64),
        ("seed", -(2**63) - 1),
        ("max_time", "1.2.3"),
        ("max_time", "-5"),
        ("bucket_size", ".."),
        ("data_cache", "lots"),
        ("average_last", [0]),
        ("min_crop_area", 5),
        ("validation_resize", -1),
        ("splits", [["layer2"]]),
        ("clip_norm", 0),
        ("clip_norm", -1),
        ("clip_norm", "nan"),
        ("momentum", 2),
        ("momentum", 1),
        ("momentum", -0.1),
        ("momentum", "nan"),
        ("beta1", 1),
        ("beta2", 1),
        ("rmsprop_decay", 1),
        ("rmsprop_decay_per_sample", 0),
        ("lars_eta", 0),
        ("ema_decay", 1),
        ("average_decay", [0.9, 1]),
        ("average_decay", [-0.1]),
        ("lr_power", -1),
        ("lr_values", [0.1, -0.1]),
        ("lr_decay", 0),
        ("lr_factors", ["bias:64", "head:0"]),
        ("loss_scale", "0"),
        ("loss_scale", "-8"),
        ("loss_scale", "nan"),
        ("loss_scale", "16..100"),
        ("dropout", 1),
        ("width_coefficient", 0),
        ("depth_coefficient", 0),
        ("data_percentage", 0),
        ("progressive_image_size", ["0:96", "10:0"]),
        ("device_ids", [-1]),
        ("device_mapping", [0, -1]),
    ],
)
def test_a_value_that_no_run_can_use_is_refused_before_the_run(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^{name.replace('_', '-')}"):
        Options().replace(**{name: value})


def test_a_key_of_a_configuration_that_is_no_text_is_one_sentence() -> None:
    entry = Configurations.from_files({"mine.yml": "fast:\n  5: 3\n"}).resolve("fast")
    with pytest.raises(UserError, match="there is no option '5'"):
        Options().updated(entry, "mine.yml:fast")


def test_an_unknown_configuration_says_where_the_names_are() -> None:
    with pytest.raises(UserError, match="conveyor configs"):
        configuration("zzzz")


def test_a_normalisation_is_a_name_or_numbers() -> None:
    """`none` is a name of its own here, not the absence of a value."""
    numbers = "0.5,0.5,0.5/0.25,0.25,0.25"
    for text, expected in (("none", "none"), ("ImageNet", "imagenet"), (numbers, numbers)):
        assert Options.from_mapping({"normalization": text}).data.normalization == expected
    assert Options.from_mapping({"normalization": None}).data.normalization is None
    for wrong in ("imagnet", "0.5/0.5", "0,0,0/0,1,1", "a,b,c/1,1,1"):
        with pytest.raises(UserError):
            Options.from_mapping({"normalization": wrong})


def test_short_spellings_of_half_precision() -> None:
    short = Options().replace(precision="bf16")
    assert short == Options().replace(precision="16.32", half_type="bfloat16")
    assert short.replace(precision="fp16") == Options().replace(precision="16.32", half_type="float16")
    assert "16.32" in short.to_yaml()
    with pytest.raises(UserError, match="leave one of them out"):
        Options().replace(precision="bf16", half_type="float16")
