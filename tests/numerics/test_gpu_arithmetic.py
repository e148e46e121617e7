import pytest
import torch

from conveyor.numerics.gpu_arithmetic import gpu_arithmetic
from conveyor.numerics.precision import Precision
from conveyor.options.precision import PrecisionOptions


@pytest.mark.parametrize(("tf32", "expected"), [(False, "ieee"), (True, "tf32")])
def test_float32_is_float32_unless_asked_otherwise(tf32: bool, expected: str) -> None:
    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.deterministic
    with gpu_arithmetic(PrecisionOptions(tf32=tf32)):
        assert torch.backends.cudnn.conv.fp32_precision == torch.backends.cuda.matmul.fp32_precision == expected
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
    assert (torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.deterministic) == before


@pytest.mark.parametrize("half", ["fp16", "bf16"])
def test_half_partials_only_where_asked_and_for_the_run_alone(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch allows them by itself."""
    products, name = torch.backends.cuda.matmul, f"allow_{half}_reduced_precision_reduction"
    for before, asked in ((False, True), (True, False)):
        monkeypatch.setattr(products, name, before)
        options = PrecisionOptions(precision="16.32", half_partials=asked)
        Precision.from_options(options).apply(torch.nn.Linear(2, 2))
        assert getattr(products, name) == before
        with gpu_arithmetic(options):
            assert getattr(products, name) == asked
        assert getattr(products, name) == before
