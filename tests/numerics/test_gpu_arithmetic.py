import pytest
import torch

from conveyor.numerics.gpu_arithmetic import gpu_arithmetic


@pytest.mark.parametrize(("tf32", "expected"), [(False, "ieee"), (True, "tf32")])
def test_float32_is_float32_unless_asked_otherwise(tf32: bool, expected: str) -> None:
    before = torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.deterministic
    with gpu_arithmetic(tf32=tf32):
        assert torch.backends.cudnn.conv.fp32_precision == torch.backends.cuda.matmul.fp32_precision == expected
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
    assert (torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.deterministic) == before
