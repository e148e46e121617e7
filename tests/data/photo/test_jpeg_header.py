"""The fields of libjpeg's reader that jpeg_crop.c names lie where the library's own header says."""

import shutil
import subprocess
from pathlib import Path

import pytest

import conveyor

FIELDS = {
    "image_width": "image_width", "image_height": "image_height", "components": "num_components",
    "stored_colours": "jpeg_color_space", "colours": "out_color_space", "scale_numerator": "scale_num",
    "scale_denominator": "scale_denom", "transform": "dct_method", "smooth_upsampling": "do_fancy_upsampling",
    "width": "output_width", "height": "output_height", "out_components": "out_color_components", "row": "output_scanline",
}  # fmt: skip
"""Ours and theirs."""
ERRORS = {"leave": "error_exit", "message": "emit_message", "output": "output_message", "reset": "reset_error_mgr"}
HEADER = Path("/usr/include/jpeglib.h")


@pytest.mark.skipif(
    not HEADER.exists() or shutil.which("cc") is None, reason="no jpeglib.h (libjpeg62-turbo-dev) or cc"
)
@pytest.mark.parametrize("version", [62, 80])
def test_the_fields_lie_where_the_header_says(tmp_path: Path, version: int) -> None:
    source = Path(conveyor.__file__).parent / "data/native/jpeg_crop.c"
    pairs = [("struct reader", ours, "struct jpeg_decompress_struct", theirs) for ours, theirs in FIELDS.items()]
    pairs += [("struct errors", ours, "struct jpeg_error_mgr", theirs) for ours, theirs in ERRORS.items()]
    # The header's own configuration with the version asked for: the fields differ between versions.
    config = f"#include_next <jconfig.h>\n#undef JPEG_LIB_VERSION\n#define JPEG_LIB_VERSION {version}\n"
    (tmp_path / "jconfig.h").write_text(config)
    lines = ["#include <stddef.h>", "#include <stdio.h>", f'#include "{source}"', "#include <jpeglib.h>"]
    lines += [f'_Static_assert(JPEG_LIB_VERSION == {version}, "version");']
    lines += [
        f'_Static_assert(offsetof({one}, {ours}) == offsetof({other}, {theirs}), "{ours} and {theirs}");'
        for one, ours, other, theirs in pairs
    ]
    lines += [
        '_Static_assert(sizeof(struct errors) >= sizeof(struct jpeg_error_mgr), "errors are too small");',
        '_Static_assert(READER_BYTES >= sizeof(struct jpeg_decompress_struct), "the reader is too small");',
        '_Static_assert(GREY == JCS_GRAYSCALE && RGB == JCS_RGB && ACCURATE_TRANSFORM == JDCT_ISLOW, "constants");',
    ]
    (tmp_path / "offsets.c").write_text("\n".join(lines) + "\n")
    made = subprocess.run(
        ["cc", "-fsyntax-only", f"-I{tmp_path}", str(tmp_path / "offsets.c")], capture_output=True, text=True
    )
    assert made.returncode == 0, made.stderr
