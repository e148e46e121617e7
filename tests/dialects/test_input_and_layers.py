"""What the dialects' options for the input pipeline and for single layers do here."""

import pytest
from tests.dialects.test_meanings import IMAGENET, tf1, tf2

from conveyor.commands import data
from conveyor.dialects.scripts import translate
from conveyor.dialects.tensorflow1.models import layer_scopes
from conveyor.errors import UserError
from conveyor.models import build
from conveyor.options.parser import Parser


def test_measuring_the_input_reads_what_the_run_would_read():
    words = "--model efficientnet --model-size B4 --batch-size 5 --hostside-norm --prefetch-depth 3 --seed 4 --optimiser LARS"
    run = translate("tensorflow1", "train", [*IMAGENET, *words.split()], environment={})
    bench = translate("tensorflow1", "train", [*IMAGENET, *words.split(), "--dataset-benchmark"], environment={})
    assert bench.text().startswith("conveyor data bench --data imagenet --data-dir imagenet-data --prefetch 3 ")
    assert not any("no effect" in note for note in bench.notes)
    parser = Parser()
    data.add_arguments(parser)
    again = data.bench_options(parser.parse_args(bench.arguments()[1:]))
    assert {name: again.flat()[name] for name in data.reading_options()} == {
        name: run.options.flat()[name] for name in data.reading_options()
    }
    assert "--optimizer" not in bench.arguments(), "what does not concern the input is left out"
    small = translate("tensorflow1", "train", [*IMAGENET, "--batch-size", "32", "--dataset-benchmark"], environment={})
    assert small.text().count("--micro-batch-size 32") == 1, "our own default is another one"


@pytest.mark.parametrize("run", [tf1, tf2])
def test_batches_prepared_ahead(run):
    assert run()["prefetch"] == 4
    assert run("--prefetch-depth 2")["prefetch"] == 2
    with pytest.raises(UserError, match="--prefetch-depth is 0"):
        run("--prefetch-depth 0")


def test_squeezenet_with_bypasses():
    assert tf1("--model squeezenet")["bypass"] is None
    assert tf1("--model squeezenet --use-bypass")["bypass"] is True
    assert tf1("--model resnet")["bypass"] is None


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--model-size 50 --variable-filter b4 fc1", ("^layer4.0.", "^layer4.1.", "^layer4.2.", "^fc.")),
        ("--model efficientnet --model-size B0 --variable-filter Top", ("^conv_head.", "^bn2.", "^classifier.")),
        ("--model efficientnet --model-size B4 --variable-filter block7", ("^blocks.6.0.", "^blocks.6.1.")),
        ("--model squeezenet --variable-filter conv10 fire9", ("^classifier.1.", "^features.12.")),
    ],
)
def test_layers_that_alone_are_trained(words, wanted):
    assert tf1(words)["train_only"] == wanted
    assert tf1()["train_only"] == ()


@pytest.mark.parametrize(
    ("family", "model"),
    [("resnet --model-size 18", "resnet18"), ("efficientnet --model-size B0", "efficientnet_b0"), ("squeezenet",) * 2],
)
def test_every_parameter_belongs_to_one_named_layer(family, model):
    names = [name for name, _ in build(model, num_classes=10).named_parameters()]
    layers = layer_scopes(model)
    owners = [[layer for layer, ours in layers.items() if f"^{name}".startswith(ours)] for name in names]
    assert all(len(found) == 1 for found in owners)
    assert {found[0] for found in owners} == set(layers)
    with pytest.raises(UserError, match="--variable-filter b9 fits no layer of"):
        tf1(f"--model {family} --variable-filter b9")
