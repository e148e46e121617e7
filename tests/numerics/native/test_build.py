"""The kernels as files: found where the build put them, for the best level, equal in bits between levels."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conveyor.numerics.native import build
from conveyor.numerics.native import compile as recipe

needs_compiler = pytest.mark.skipif(recipe.find_compiler() is None or not build.levels_here(), reason="no C compiler")


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No library anywhere."""
    monkeypatch.setattr(recipe, "BUILT", tmp_path / "built")
    monkeypatch.setenv("CONVEYOR_CACHE", str(tmp_path / "cache"))
    build.library.cache_clear()
    yield tmp_path
    build.library.cache_clear()


@needs_compiler
def test_the_best_level_that_was_built_is_taken(empty: Path) -> None:
    levels = build.levels_here()
    assert build.find("rounding")[0] is None
    last = recipe.BUILT / levels[-1] / recipe.file_name("rounding", levels[-1])
    recipe.make(recipe.find_compiler() or "", "rounding", levels[-1], last)
    assert build.find("rounding") == (last, levels[-1])
    assert build.library("rounding") is not None
    assert not (empty / "cache").exists()


def test_levels_of_some_kernels_are_made_for_those(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`find` passes them over for the others."""
    monkeypatch.setattr(
        recipe,
        "make",
        lambda compiler, name, level, target: (target.parent.mkdir(parents=True, exist_ok=True), target.touch()),
    )
    monkeypatch.setattr(recipe, "find_compiler", lambda: "cc")
    assert recipe.make_all() == {}
    for level, names in recipe.ONLY.items():
        assert {path.name.rsplit("-", 1)[0] for path in (recipe.BUILT / level).glob("*.so")} <= names
    monkeypatch.setattr(build, "levels_here", lambda: list(recipe.LEVELS[os.uname().machine]))
    assert {name: build.find(name)[1] for name in recipe.SOURCES if name != "augment"} == {
        name: next(level for level in build.levels_here() if level not in recipe.ONLY)
        for name in recipe.SOURCES
        if name != "augment"
    }


def test_why_there_is_none(empty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    if build.levels_here():
        assert set(build.missing()) == set(recipe.SOURCES)
        assert "not compiled when the package was built" in build.missing()["winograd"]
    assert recipe.make_all() == {"all": "no C compiler found"}
    assert build.library("rounding") is None
    monkeypatch.setenv(build.SWITCH, "0")
    assert build.SWITCH in build.missing()["winograd"]


def test_other_sources_have_another_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = recipe.file_name("rounding", next(iter(recipe.LEVELS[os.uname().machine])))
    source = tmp_path / recipe.SOURCES["rounding"][0]
    source.parent.mkdir(parents=True)
    source.write_text((recipe.PACKAGE / recipe.SOURCES["rounding"][0]).read_text() + "\n/* changed */\n")
    monkeypatch.setattr(recipe, "PACKAGE", tmp_path)
    assert recipe.file_name("rounding", next(iter(recipe.LEVELS[os.uname().machine]))) != before


def made(name: str, level: str, scratch: Path) -> ctypes.CDLL:
    """The kernels of one level, compiled where the build has not."""
    target = recipe.BUILT / level / recipe.file_name(name, level)
    if not target.exists():
        target = scratch / f"{level}.so"
        recipe.make(recipe.find_compiler() or "", name, level, target)
    return build._declare(ctypes.CDLL(str(target)), name)


@needs_compiler
@pytest.mark.skipif("avx512" not in build.levels_here(), reason="needs AVX-512 to compare with AVX2")
@pytest.mark.parametrize("ending", ["", "_brain"])
def test_avx2_and_avx512_compute_the_same_bits(ending: str, tmp_path: Path) -> None:
    dtype = torch.bfloat16 if ending else torch.float32
    generator = torch.Generator().manual_seed(1)
    rows, channels = 300, 37
    x, dy, residual = (torch.randn(rows, channels, generator=generator).to(dtype) for _ in range(3))
    vectors = [torch.rand(channels, generator=generator) + 0.5 for _ in range(5)]
    found: dict[str, list[torch.Tensor]] = {}
    for level in ("avx512", "avx2"):
        kernels = made("norm_act", level, tmp_path)
        moments = torch.empty(2, channels, dtype=torch.float64)
        results = [moments]
        getattr(kernels, f"conveyor_moments{ending}")(
            x.data_ptr(), rows, channels, moments[0].data_ptr(), moments[1].data_ptr()
        )
        for act in (0, 1, 2):
            y, dx = torch.empty_like(x), torch.empty_like(x)
            sums = torch.empty(2, channels)
            pointers = [one.data_ptr() for one in vectors]
            added = residual.data_ptr() if act < 2 else None
            getattr(kernels, f"conveyor_apply{ending}")(
                x.data_ptr(), added, y.data_ptr(), rows, channels, pointers[0], pointers[1], act
            )
            getattr(kernels, f"conveyor_backward{ending}")(
                x.data_ptr(), dy.data_ptr(), None, dx.data_ptr(), None, rows, channels, *pointers, act,
                sums[0].data_ptr(), sums[1].data_ptr(),
            )  # fmt: skip
            results += [y, dx, sums]
        found[level] = results
    for one, other in zip(found["avx512"], found["avx2"], strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@needs_compiler
@pytest.mark.skipif("avx512" not in build.levels_here(), reason="needs AVX-512 to compare with AVX2")
@pytest.mark.parametrize("ending", ["", "_brain"])
@pytest.mark.parametrize("sizes", [(3, 9, 13, 48, 80), (8, 14, 14, 64, 64), (2, 5, 6, 16, 32)])
def test_winograd_has_the_same_bits_at_both_widths(ending: str, sizes: tuple[int, ...], tmp_path: Path) -> None:
    """Vectors of 16 and micro-kernels of 12 x 32 results beside vectors of 8 and 6 x 16; strips that are half full too."""
    images, height, width, channels, out = sizes
    dtype = torch.bfloat16 if ending else torch.float32
    x, dy, weight = (
        torch.randn(shape).to(dtype)
        for shape in ((images, height, width, channels), (images, height, width, out), (out, 3, 3, channels))
    )
    bias = torch.randn(out)
    found = {}
    for level in ("avx512", "avx2"):
        kernels = made("winograd", level, tmp_path)
        convolve = getattr(kernels, f"conveyor_winograd{ending}")
        y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(weight)
        convolve(x.data_ptr(), weight.data_ptr(), bias.data_ptr(), y.data_ptr(), *sizes, 0)
        convolve(dy.data_ptr(), weight.data_ptr(), None, dx.data_ptr(), *sizes, 1)
        getattr(kernels, f"conveyor_winograd_weights{ending}")(x.data_ptr(), dy.data_ptr(), dw.data_ptr(), *sizes)
        found[level] = y, dx, dw
    for one, other in zip(found["avx512"], found["avx2"], strict=True):
        assert one.isfinite().all()
        assert torch.equal(one, other)


@pytest.mark.skipif(not os.environ.get("AARCH64_CC"), reason="AARCH64_CC names no cross compiler")
@pytest.mark.parametrize("name", recipe.SOURCES)
def test_neon_compiles(name: str, tmp_path: Path) -> None:
    source, flags = recipe.SOURCES[name]
    command = [
        os.environ["AARCH64_CC"],
        *flags,
        "-fPIC",
        "-shared",
        "-o",
        str(tmp_path / "k.so"),
        str(recipe.PACKAGE / source),
    ]
    subprocess.run(command, check=True, timeout=120)
