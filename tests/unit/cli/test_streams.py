from __future__ import annotations

import os
import termios
import tty

import trio

from shim.cli.report import shim_memory
from shim.cli.streams import OutputWriter, raw_terminal, read_some, window_size


async def test_output_is_written_whole_to_a_slow_reader() -> None:
    reader, writer = os.pipe()
    told: list[OSError] = []
    output = OutputWriter(writer, told.append)
    got = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(output.write, b"x" * 300_000)
        await trio.testing.wait_all_tasks_blocked(0.01)
        assert output.busy
        while len(got) < 300_000:
            got += await read_some(reader)
    assert (output.written, output.busy, told) == (300_000, False, [])
    os.close(reader)
    os.close(writer)


async def test_a_reader_that_went_away_is_told_once_and_the_rest_is_dropped() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    told: list[OSError] = []
    output = OutputWriter(writer, told.append)
    await output.write(b"one")
    await output.write(b"two")
    assert [type(error) for error in told] == [BrokenPipeError]
    assert output.written == 6
    os.close(writer)


async def test_input_that_cannot_be_read_is_at_its_end() -> None:
    assert await read_some(-1) == b""


def test_a_terminal_is_raw_for_the_block_and_as_before_after_it() -> None:
    master, slave = os.openpty()
    termios.tcsetwinsize(slave, (40, 120))
    assert window_size(slave) == (120, 40)
    before = termios.tcgetattr(slave)
    with raw_terminal(slave):
        assert not termios.tcgetattr(slave)[tty.LFLAG] & termios.ICANON
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


def test_what_is_no_terminal_is_left_alone() -> None:
    reader, writer = os.pipe()
    with raw_terminal(reader):
        assert window_size(reader) is None
    os.close(reader)
    os.close(writer)


def test_memory_is_known_of_living_processes_only() -> None:
    memory = shim_memory(os.getpid())
    assert memory is not None
    assert memory > 1000
    assert shim_memory(0) is None
