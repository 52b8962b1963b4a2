from __future__ import annotations

import pytest

from shim.errors import InvalidArgument
from shim.model.runtimes import is_path, shim_program


@pytest.mark.parametrize(
    ("runtime", "program"),
    [
        ("io.containerd.trio.v2", "containerd-shim-trio-v2"),
        ("io.containerd.runc.v2", "containerd-shim-runc-v2"),
        ("io.containerd.runtime.v1.linux", "containerd-shim-v1-linux"),
        ("a.b", "containerd-shim-a-b"),
    ],
)
def test_the_last_two_parts_name_the_program(runtime: str, program: str) -> None:
    assert shim_program(runtime) == program


@pytest.mark.parametrize("runtime", ["", "runc", ".", ".v2", "..", "a.", "a..v2", ".a.b", "io.x y.v2", "io.x\n.v2"])
def test_what_is_no_runtime_name_is_refused(runtime: str) -> None:
    with pytest.raises(InvalidArgument):
        shim_program(runtime)


def test_paths_must_be_absolute() -> None:
    assert is_path("/usr/bin/containerd-shim-runc-v2")
    assert not is_path("io.containerd.runc.v2")
    with pytest.raises(InvalidArgument, match="relative path"):
        is_path("./containerd-shim-runc-v2")
