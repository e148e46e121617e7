"""The processor as the system describes it."""

import platform

from conveyor.measure.processor import has, parse, processor

LINES = """processor\t: 0
model name\t: Some CPU @ 2 GHz
flags\t\t: fpu avx2 avx512f avx512_bf16

processor\t: 1
model name\t: Some CPU @ 2 GHz
flags\t\t: fpu avx2 avx512f avx512_bf16
""".splitlines()


def test_name_flags_and_vectors() -> None:
    found = parse(LINES)
    assert found.name == "Some CPU @ 2 GHz"
    assert found.flags == {"fpu", "avx2", "avx512f", "avx512_bf16"}
    assert found.vectors == "AVX-512"
    assert found.text == "\n".join(sorted({LINES[1], LINES[2]}))


def test_the_label_tells_generations_of_one_name_apart() -> None:
    old, new = (parse([f"cpu family\t: {family}", "model\t\t: 17", *LINES]) for family in (25, 26))
    assert old.label == "Some CPU @ 2 GHz family 25 model 17 AVX2 AVX-512 BF16"
    assert old.label != new.label
    assert old.text != new.text
    assert parse(LINES).label == "Some CPU @ 2 GHz AVX2 AVX-512 BF16"


def test_a_system_that_tells_nothing_has_a_name_and_no_instructions() -> None:
    found = parse([])
    assert found.name
    assert not found.flags
    assert found.vectors == ""
    assert found.text == platform.machine()


def test_other_architectures_call_them_features() -> None:
    assert parse(["Features\t: fp asimd bf16"]).flags == {"fp", "asimd", "bf16"}


def test_this_processor_is_read_once() -> None:
    assert processor() is processor()
    assert not has("no such instruction set")
