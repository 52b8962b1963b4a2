"""What the start command loads: a daemon waits for it, so nothing that only the server needs (design section 9)."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from google.protobuf.any_pb2 import Any

from shim.boot.start import shim_cgroup
from shim.boot.version import VERSION, version_text
from shim.errors import InvalidArgument
from shim.wire.proto.runc_options_pb2 import Options
from shim.wire.proto.runtime_options_pb2 import Options as RuntimeOptions
from shim.wire.typeurl import pack

REPOSITORY = Path(__file__).parents[3]
SERVER_ONLY = {"trio", "cattrs", "cffi", "shim._native", "asyncio", "logging", "ssl", "subprocess", "click", "tomllib"}


def test_start_imports_nothing_of_the_server() -> None:
    script = "import sys, shim.boot.main, shim.boot.start; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=30)
    assert not SERVER_ONLY & set(done.stdout.split())


def test_version_is_that_of_the_package() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    assert project["project"]["version"] == VERSION
    assert VERSION in version_text()


def test_shim_cgroup_in_each_form_of_options() -> None:
    assert shim_cgroup(None) == ""
    assert shim_cgroup(pack(Options())) == ""
    assert shim_cgroup(pack(Options(shim_cgroup="/c"))) == "/c"
    assert shim_cgroup(pack(RuntimeOptions(config_body=b'ShimCgroup = "/c"'))) == "/c"
    with pytest.raises(InvalidArgument, match=r"type with url x\.Y: not found"):
        shim_cgroup(Any(type_url="x.Y"))
