"""Start commands that go wrong (field fault P7): a bounded, clear error, and nothing left."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
from google.protobuf.any_pb2 import Any

from shim.errors import DeadlineExceeded, InvalidArgument, ShimError, Unavailable, Unknown
from shim.manager.bootstrap import CONTAINERD_VERSION
from shim.manager.manager import TaskInputs, open_manager
from shim.wire.proto.bootstrap_pb2 import BootstrapParams
from shim.wire.services import TASK_V2
from tests.fakes.shim_server import open_fake_shim

if TYPE_CHECKING:
    from shim.manager.bundle import Bundle
    from tests.unit.manager.conftest import Place

OPTIONS = Any(type_url="containerd.runc.v1.Options", value=b"\x32\x05/runc")


def with_options(_: Bundle) -> TaskInputs:
    return TaskInputs(options=OPTIONS)


async def wait_ended(pid: int) -> None:
    """Return when the process has ended; TooSlowError when it goes on."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        with trio.fail_after(5):
            await trio.lowlevel.wait_readable(pidfd)
    except trio.TooSlowError:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        raise
    finally:
        os.close(pidfd)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("sleeps", DeadlineExceeded, r"waiting for godot.* within 1 s \(io\.containerd\.timeout\.shim\.start\)"),
        ("floods", DeadlineExceeded, r"it said: noise noise"),
        ("silent", InvalidArgument, "the shim answered nothing"),
        ("junk", InvalidArgument, r"no address, but: panic: \\x01 oh no; at line 1"),
        ("fails", Unknown, "failed to start shim: fatal: no runtime here: exit status 1"),
        ("holds", Unknown, "failed to start shim: left one behind: exit status 3"),
        ("nobody", Unavailable, "dial unix://"),
    ],
)
async def test_a_start_that_goes_wrong_leaves_an_error_and_nothing_else(
    place: Place, name: str, error: type[ShimError], text: str
) -> None:
    with trio.fail_after(10):
        async with open_manager(place.config) as manager:
            with pytest.raises(error, match=text):
                await manager.create("ns", "t1", b"{}", runtime=f"fake.{name}.v1")
    pid = place.path / "pid"
    if pid.exists():
        await wait_ended(int(pid.read_text()))
    assert place.left == []


async def test_a_program_that_cannot_be_run_says_so(place: Place) -> None:
    broken = place.path / "broken"
    broken.write_bytes(b"\x7fELF, not really")
    broken.chmod(0o755)
    async with open_manager(place.config) as manager:
        with pytest.raises(Unknown, match=r"failed to start shim: cannot run .*broken: Exec format error"):
            await manager.create("ns", "t1", b"{}", runtime=str(broken))
    assert place.left == []


@pytest.mark.slow
async def test_a_shim_that_accepts_and_is_silent_is_given_up(place: Place) -> None:
    async with open_fake_shim(place.path / "s") as shim:

        async def never(_: object) -> Any:
            await trio.sleep_forever()
            raise AssertionError

        shim.behave["Connect"] = never
        (place.path / "start").write_text(f"unix://{place.path}/s")
        async with open_manager(place.config) as manager:
            with pytest.raises(DeadlineExceeded, match="within 1 s"):
                await manager.create("ns", "t1", b"{}", runtime="fake.given.v1")
        assert place.left == []


async def test_a_cancelled_start_leaves_nothing(place: Place) -> None:
    async with open_manager(place.config) as manager:
        with trio.move_on_after(0.3) as scope:
            await manager.create("ns", "t1", b"{}", runtime="fake.sleeps.v1")
        assert scope.cancelled_caught
    await wait_ended(int((place.path / "pid").read_text()))
    assert place.left == []


async def test_the_command_is_what_a_daemon_runs(place: Place) -> None:
    layout = place.config.layout
    async with open_fake_shim(place.path / "s"):
        (place.path / "start").write_text(f"unix://{place.path}/s\n")
        async with open_manager(place.config) as manager:
            task = await manager.create("ns", "t1", b"{}", runtime="fake.given.v1", prepare=with_options)
            action, _, flags = (place.path / "runs").read_text().strip().partition(" ")
            assert action == "start"
            assert flags.startswith(f"-namespace ns -address {layout.address} -publish-binary /")
            assert flags.endswith(" -id t1 start")
            params = BootstrapParams.FromString((place.path / "stdin").read_bytes())
            assert (params.instance_id, params.namespace) == ("t1", "ns")
            assert params.containerd_version == CONTAINERD_VERSION
            assert params.containerd_ttrpc_address == layout.events_address
            assert params.extensions[0].value == OPTIONS
            bundle = Path(task.bundle.path)
            assert (bundle / "shim-binary-path").read_text().endswith("containerd-shim-given-v1")
            assert (bundle / "bootstrap.json").read_text() == (
                f'{{"version":2,"address":"unix://{place.path}/s","protocol":"ttrpc"}}'
            )
            await task.delete()
    assert place.left == []


async def test_a_shim_of_before_2_3_is_spoken_to_in_its_own_way_and_known_from_then_on(place: Place) -> None:
    (place.path / "start").write_text(f"unix://{place.path}/s")
    async with open_manager(place.config) as manager:
        for runs in (2, 3):
            async with open_fake_shim(place.path / "s", TASK_V2):
                task = await manager.create("ns", "t1", b"{}", runtime="fake.legacy.v1")
                assert (place.path / "stdin").read_bytes() == b""
                assert len((place.path / "runs").read_text().split()) == runs
                await task.delete()
    assert place.left == []
