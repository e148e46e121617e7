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


def test_half_partials_are_allowed_for_the_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    products = torch.backends.cuda.matmul
    monkeypatch.setattr(products, "allow_fp16_reduced_precision_reduction", False)
    options = PrecisionOptions(precision="16.32", half_partials=True)
    Precision.from_options(options).apply(torch.nn.Linear(2, 2))
    assert not products.allow_fp16_reduced_precision_reduction
    with gpu_arithmetic(options):
        assert products.allow_fp16_reduced_precision_reduction
    assert not products.allow_fp16_reduced_precision_reduction
