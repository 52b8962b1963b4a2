"""Describe the C of this directory to cffi and build `shim._native` (API mode, out of line).

Run as a program it builds the module in place, beside the package; a wheel build reaches `BuildNative` through
pyproject.toml.  The headers are the declarations: what they declare is what Python sees, and the compiler checks both
sides against them.  Never imported at run time.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from cffi import FFI
from setuptools import Distribution
from setuptools.command.build_ext import build_ext
from setuptools.extension import Extension

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent
MODULE: Final = "shim._native"
UNITS: Final = ("process", "mount", "mountfd", "userns", "sync", "loop", "watch", "console")
C_FLAGS: Final = ["-std=gnu11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror"]
LINK_FLAGS: Final = ["-pthread"]
SANITIZE_FLAGS: Final = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-g"]
# The glue is cffi's, not ours: its functions take arguments that they do not use.
GLUE_PRAGMAS: Final = '#pragma GCC diagnostic ignored "-Wunused-parameter"\n'


def declarations(unit: str) -> str:
    """The header of `unit` without the preprocessor lines, which cffi does not read."""
    text = (HERE / f"{unit}.h").read_text(encoding="utf-8")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def emit_glue(path: Path) -> None:
    """Write the generated C to `path`."""
    ffi = FFI()
    for unit in UNITS:
        ffi.cdef(declarations(unit))
    ffi.set_source(MODULE, GLUE_PRAGMAS + "".join(f'#include "{unit}.h"\n' for unit in UNITS))
    path.parent.mkdir(parents=True, exist_ok=True)
    ffi.emit_c_code(str(path))


class BuildNative(build_ext):
    """`build_ext` that makes the glue first; SHIM_NATIVE_SANITIZE=1 adds the address and undefined sanitizers."""

    def build_extension(self, ext: Extension) -> None:
        """Build `ext` from our units, whatever pyproject.toml lists, and the glue, kept out of the source tree."""
        glue = Path(self.build_temp) / "_native.c"
        emit_glue(glue)
        ext.sources = [*(f"native/{unit}.c" for unit in UNITS), str(glue)]
        ext.include_dirs = [str(HERE)]
        ext.extra_compile_args = list(C_FLAGS)
        ext.extra_link_args = list(LINK_FLAGS)
        if os.environ.get("SHIM_NATIVE_SANITIZE") == "1":
            ext.extra_compile_args += SANITIZE_FLAGS
            ext.extra_link_args += SANITIZE_FLAGS
        super().build_extension(ext)

    def get_source_files(self) -> list[str]:
        """What a source distribution must hold."""
        return ["native/build.py", *(f"native/{unit}.{suffix}" for unit in UNITS for suffix in "ch")]


def main() -> None:
    """Build in place."""
    os.chdir(ROOT)
    modules = [Extension(MODULE, [])]
    distribution = Distribution({"name": "shim", "packages": ["shim"], "ext_modules": modules})
    with tempfile.TemporaryDirectory(prefix="shim-native-") as scratch:
        command = BuildNative(distribution)
        command.inplace = True
        command.force = True
        command.build_temp = scratch
        command.ensure_finalized()
        command.run()


if __name__ == "__main__":
    main()
