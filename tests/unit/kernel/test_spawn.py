"""What a child is started with, seen from inside it."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

import attrs
import pytest
import trio

from shim.kernel import procfs
from shim.kernel.children import Command, open_children
from shim.kernel.commands import run
from shim.kernel.fds import OwnedFd
from shim.kernel.pipes import open_pipe

if TYPE_CHECKING:
    from pathlib import Path

    from shim.kernel.children import SubreaperChildren


async def shell(children: SubreaperChildren, script: str, command: Command | None = None) -> str:
    """The output of a shell script run with what `command` says besides."""
    base = Command([]) if command is None else command
    completed = await run(children, attrs.evolve(base, argv=["/bin/sh", "-c", script]))
    assert completed.exit.status == 0, completed.stderr
    return completed.stdout.decode()


def file_with(path: Path, text: str) -> OwnedFd:
    path.write_text(text)
    return OwnedFd(os.open(path, os.O_RDONLY))


async def test_a_name_is_found_in_the_path_of_the_child(children: SubreaperChildren, tmp_path: Path) -> None:
    script = tmp_path / "only-here"
    script.write_text("#!/bin/sh\necho found\n")
    script.chmod(0o755)
    completed = await run(children, Command(["only-here"], env={"PATH": f"/nowhere:{tmp_path}"}))
    assert completed.stdout == b"found\n"


async def test_relative_places_of_the_path_are_not_searched(children: SubreaperChildren, tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/bin/sh\n")
    (tmp_path / "tool").chmod(0o755)
    with pytest.raises(FileNotFoundError):
        children.spawn(Command(["tool"], env={"PATH": ".:"}, cwd=str(tmp_path)))


async def test_the_environment_is_exactly_the_given_one(children: SubreaperChildren) -> None:
    completed = await run(children, Command(["/usr/bin/env"], env={"A": "1", "B": "x=y é"}))
    assert sorted(completed.stdout.decode().splitlines()) == ["A=1", "B=x=y é"]


async def test_our_environment_is_passed_without_the_notify_socket(
    children: SubreaperChildren, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("SEEN_BY_CHILD", "yes")
    seen = await shell(children, "env")
    assert "SEEN_BY_CHILD=yes" in seen
    assert "NOTIFY_SOCKET" not in seen


async def test_descriptors_that_overlap_arrive_where_they_should(children: SubreaperChildren, tmp_path: Path) -> None:
    first, second = file_with(tmp_path / "1", "first "), file_with(tmp_path / "2", "second ")
    third = file_with(tmp_path / "3", "third ")
    with first, second, third:
        a, b, c = first.fileno(), second.fileno(), third.fileno()
        # A ring: each lands on the number of the next one, and one goes to two places.
        command = Command([], fds={a: b, b: c, c: a, 9: a})
        seen = await shell(children, f"cat /dev/fd/{a} /dev/fd/{b} /dev/fd/{c}; readlink /proc/self/fd/9", command)
    assert seen == f"second third first {tmp_path}/1\n"


async def test_a_descriptor_kept_in_place_is_not_closed_on_exec(children: SubreaperChildren, tmp_path: Path) -> None:
    with file_with(tmp_path / "1", "same") as kept:
        number = kept.fileno()
        assert await shell(children, f"cat /dev/fd/{number}", Command([], fds={number: number})) == "same"


async def test_other_descriptors_are_closed_even_if_inheritable(children: SubreaperChildren, tmp_path: Path) -> None:
    odd = [os.open("/dev/zero", os.O_RDONLY) for _ in range(20)]
    try:
        for fd in odd:
            os.set_inheritable(fd, True)
        with file_with(tmp_path / "1", "") as mapped:
            seen = await shell(children, "ls /proc/$$/fd", Command([], fds={40: mapped.fileno()}))
    finally:
        for fd in odd:
            os.close(fd)
    assert sorted(int(name) for name in seen.split()) == [0, 1, 2, 40]


async def test_unnamed_standard_descriptors_are_null(children: SubreaperChildren) -> None:
    with open_pipe() as pipe:
        child = children.spawn(
            Command(
                ["/bin/sh", "-c", 'seen=$(for n in 0 1 2; do readlink /proc/$$/fd/$n; done); echo "$seen" >&5'],
                fds={5: pipe.writer.fileno()},
            )
        )
        pipe.writer.close()
        assert (await child.wait()).status == 0
        assert os.read(pipe.reader.fileno(), 1000) == b"/dev/null\n" * 3


async def test_signals_start_clean(children: SubreaperChildren) -> None:
    # Python ignores SIGPIPE, and a blocked signal would be inherited too.
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        seen = await shell(children, "exec grep -E 'Sig(Blk|Ign)' /proc/self/status")
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
    assert {int(line.split()[1], 16) for line in seen.splitlines()} == {0}
    assert signal.SIGUSR1 not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


async def test_directory_umask_group_and_session(children: SubreaperChildren, tmp_path: Path) -> None:
    old = os.umask(0o022)
    os.umask(old)
    script = "pwd; umask; cut -d' ' -f1,5,6 /proc/$$/stat"
    where, mask, ids = (
        await shell(children, script, Command([], cwd=str(tmp_path), umask=0o027, new_session=True))
    ).splitlines()
    assert (where, mask) == (str(tmp_path), "0027")
    assert len(set(ids.split())) == 1
    ids = await shell(children, "cut -d' ' -f1,5,6 /proc/$$/stat", Command([], new_group=True))
    pid, group, session = ids.split()
    assert pid == group != session
    assert int(session) == os.getsid(0)
    assert os.umask(old) == old


@pytest.mark.parametrize(
    ("command", "code", "subject"),
    [
        (Command(["/nowhere/program"]), errno.ENOENT, "cannot run /nowhere/program"),
        (Command(["no-such-program"]), errno.ENOENT, "cannot run no-such-program"),
        (Command(["/bin/sh"], cwd="/nowhere"), errno.ENOENT, "cannot enter /nowhere"),
        (Command(["/etc/passwd"]), errno.EACCES, "cannot run /etc/passwd"),
        (Command(["/bin/sh"], fds={1: 900}), errno.EBADF, "cannot start /bin/sh"),
        (Command(["/bin/sh", "x" * (1 << 20)]), errno.E2BIG, "cannot run /bin/sh"),
    ],
    ids=lambda value: value.argv[0] if isinstance(value, Command) else "",
)
async def test_a_failed_start_is_the_callers_error_and_leaves_no_child(
    children: SubreaperChildren, command: Command, code: int, subject: str
) -> None:
    with pytest.raises(OSError, match=subject) as caught:
        children.spawn(command)
    assert caught.value.errno == code
    assert children.processes() == ()
    assert procfs.children(os.getpid()) == []


async def test_zero_bytes_and_empty_commands_are_refused(children: SubreaperChildren) -> None:
    with pytest.raises(ValueError, match="zero byte"):
        children.spawn(Command(["/bin/echo", "a\0b"]))
    with pytest.raises(FileNotFoundError):
        children.spawn(Command([]))


async def test_a_thread_may_not_start_children(children: SubreaperChildren) -> None:
    def attempt() -> None:
        with pytest.raises(RuntimeError, match="main thread"):
            children.spawn(Command(["/bin/true"]))

    worker = threading.Thread(target=attempt)
    worker.start()
    worker.join()


async def test_the_death_signal_comes_when_the_parent_ends(children: SubreaperChildren) -> None:
    program = (
        "import sys; from shim.kernel.children import Command, start;"
        "child = start(Command(['/bin/sleep', '1000'], death_signal=9)); print(child.pid, flush=True);"
        "sys.stdin.read()"
    )
    with open_pipe() as order, open_pipe() as answer:
        mark = children.mark()
        parent = children.spawn(
            Command([sys.executable, "-c", program], fds={0: order.reader.fileno(), 1: answer.writer.fileno()})
        )
        await trio.lowlevel.wait_readable(answer.reader.fileno())
        pid = int(os.read(answer.reader.fileno(), 100))
        assert procfs.state(pid) in "SR"
        order.writer.close()
        await parent.wait()
        with trio.fail_after(10):
            end = await children.adopt(pid, mark).wait()
    assert end.signal == signal.SIGKILL
    assert end.status == 137


async def test_the_manager_starts_children_the_same_way() -> None:
    async with open_children() as children:
        completed = await run(children, Command(["/bin/sh", "-c", "echo out; exit 4"]))
        assert (completed.exit.status, completed.stdout) == (4, b"out\n")
