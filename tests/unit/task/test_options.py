"""Options in each of their forms, and what is refused."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

import attrs
import pytest
from google.protobuf.any_pb2 import Any

from shim.errors import InvalidArgument
from shim.model.options import RuncOptions
from shim.task.options import MAX_CONFIG_BYTES, decode_options
from shim.wire.proto.runc_options_pb2 import Options
from shim.wire.proto.runtime_options_pb2 import Options as RuntimeOptions
from shim.wire.typeurl import GOOGLE_PREFIX, pack

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "value", [None, Any(), pack(Options()), pack(RuntimeOptions()), Any(type_url="containerd.runc.v1.Options")]
)
def test_nothing_means_defaults(value: Any | None) -> None:
    assert decode_options(value) == RuncOptions()


@pytest.mark.parametrize("prefix", ["", GOOGLE_PREFIX])
def test_every_field_of_the_message_arrives(prefix: str) -> None:
    message = Options(
        no_pivot_root=True,
        no_new_keyring=True,
        shim_cgroup="/c",
        io_uid=1,
        io_gid=2,
        binary_name="b",
        root="/r",
        systemd_cgroup=True,
        criu_image_path="/i",
        criu_work_path="/w",
        task_api_address="a",
        task_api_version=3,
    )
    assert len(message.ListFields()) == len(Options.DESCRIPTOR.fields)
    options = decode_options(pack(message, prefix))
    assert attrs.asdict(options) == {field.name: value for field, value in message.ListFields()}


def test_toml_in_the_body_wins_over_the_path() -> None:
    message = RuntimeOptions(config_body=b'BinaryName = "crun"', config_path="/nowhere")
    assert decode_options(pack(message)).binary_name == "crun"


def test_toml_in_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "options.toml"
    path.write_text('TypeUrl = "x"\nSystemdCgroup = true\nSystemdCgoup = true\n')
    with caplog.at_level(logging.WARNING):
        assert decode_options(pack(RuntimeOptions(config_path=str(path)))).systemd_cgroup
    [record] = caplog.records
    assert record.__dict__["keys"] == "SystemdCgoup"


def test_wrong_file_names_itself_and_the_key(tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    path.write_text("BinaryName = 3\n")
    with pytest.raises(InvalidArgument) as caught:
        decode_options(pack(RuntimeOptions(config_path=str(path))))
    assert caught.value.message == f"{path}: BinaryName: expected str, found int"


@pytest.mark.parametrize("kind", ["missing", "fifo", "directory", "huge", "relative", "zero"])
def test_paths_that_hold_no_options(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / kind)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        os.mkdir(path)
    elif kind == "huge":
        with open(path, "wb") as stream:
            stream.truncate(MAX_CONFIG_BYTES + 1)
    elif kind == "relative":
        path = "options.toml"
    elif kind == "zero":
        path += "\0"
    with pytest.raises(InvalidArgument, match="config_path"):
        decode_options(pack(RuntimeOptions(config_path=path)))


def test_unknown_type_and_broken_value() -> None:
    with pytest.raises(InvalidArgument) as caught:
        decode_options(Any(type_url="a.b/Strange", value=b"x"))
    assert caught.value.message == "type with url a.b/Strange: not found"
    with pytest.raises(InvalidArgument, match="does not parse"):
        decode_options(Any(type_url="containerd.runc.v1.Options", value=b"\xff\xff"))
