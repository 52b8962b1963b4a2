"""Who listens on a socket: found by its inode, ended only when meant."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shim.kernel.listeners import kill_listeners, listening_inodes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TABLE = b"""Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01    77 /run/a
0000000000000000: 00000002 00000000 00010000 0001 01 1234567 /run/with space  x
0000000000000000: 00000003 00000000 00000000 0001 03 88 /run/a
0000000000000000: 00000002 00000000 00010000 0001 01 99
0000000000000000: 00000002 00000000 00010000 0001 01 55 @/run/a
"""


def test_only_listening_sockets_of_that_path_count() -> None:
    assert listening_inodes("/run/a", TABLE) == {77}
    assert listening_inodes("/run/with space  x", TABLE) == {1234567}
    assert listening_inodes("/run/b", TABLE) == frozenset()


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    code = "import socket,sys;s=socket.socket(socket.AF_UNIX);s.bind(sys.argv[1]);s.listen();print(flush=True);input()"
    path = str(tmp_path / "s")
    with subprocess.Popen([sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def test_a_listener_is_ended_when_it_belongs(listener: subprocess.Popen[bytes], tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    assert kill_listeners(path, lambda _: False) == []
    assert listener.poll() is None
    assert kill_listeners(path, lambda pid: pid == listener.pid) == [listener.pid]
    assert listener.wait(5) == -signal.SIGKILL
    assert kill_listeners(path, lambda _: True) == []


def test_ourselves_never(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as own:
        own.bind(str(tmp_path / "s"))
        own.listen()
        assert kill_listeners(str(tmp_path / "s"), lambda _: True) == []
        assert os.getpid()
