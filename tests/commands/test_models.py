"""`conveyor models` and `conveyor models show`."""

import json
from collections.abc import Callable

Run = Callable[..., tuple[int, str, str]]


def test_list(conveyor: Run) -> None:
    code, out, _ = conveyor("models")
    assert code == 0
    line = next(line for line in out.splitlines() if line.startswith("resnet50 "))
    assert line.split()[1:4] == ["25,557,032", "4.09G", "224"]


def test_list_some_as_json(conveyor: Run) -> None:
    code, out, _ = conveyor("models", "list", "lite0", "--json")
    assert code == 0
    (row,) = json.loads(out)
    assert row["name"] == "efficientnet_lite0"
    assert row["parameters"] == 4_652_008
    assert conveyor("models", "list", "nothing-like-it")[0] == 2


def test_show(conveyor: Run) -> None:
    code, out, _ = conveyor("models", "show", "cifar_resnet8", "--stages", "2")
    assert code == 0
    row = next(line for line in out.splitlines() if " layer2.0.conv1 " in line)
    assert "32x16x16" in row
    assert "b2/0" in row
    assert "for 2 stages: --splits" in out


def test_show_as_json_at_another_size(conveyor: Run) -> None:
    code, out, _ = conveyor("models", "show", "efficientnet-b0", "--image-size", "64", "--num-classes", "7", "--json")
    assert code == 0
    units = json.loads(out)["units"]
    assert units[0]["shape"] == [32, 32, 32]
    assert units[-1]["shape"] == [7]


def test_show_an_unknown_model(conveyor: Run) -> None:
    code, _, err = conveyor("models", "show", "resnt50")
    assert code == 2
    assert "resnet50" in err
    assert conveyor("models", "show")[0] == 2
