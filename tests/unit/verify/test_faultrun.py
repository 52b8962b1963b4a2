"""The fault runtime as a program, in front of a small script that says how it was run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shim.verify.faultplan import PlanError
from shim.verify.faultrun import BAD_PLAN, NO_RUNTIME, numbered, write_fault_runtime
from shim.verify.faults import FaultRuntime, after, fail, lie, log, make_fault_runtime, record, text, touch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shim.verify.faultplan import Json

ROOT = Path(__file__).parents[3]


@pytest.fixture
def real(tmp_path: Path) -> str:
    """The runtime behind: prints its arguments and pid, ends with 5."""
    script = tmp_path / "real"
    script.write_text('#!/bin/sh\necho "$$ $*"\nexit 5\n')
    script.chmod(0o755)
    return str(script)


def call(
    runtime: FaultRuntime | str, *words: str | bytes, env: dict[str, str] | None = None, pass_fds: Sequence[int] = ()
) -> subprocess.CompletedProcess[bytes]:
    binary = runtime if isinstance(runtime, str) else runtime.binary
    return subprocess.run([binary, *words], env=env, capture_output=True, check=False, pass_fds=pass_fds)


def test_without_steps_it_becomes_the_runtime_with_the_same_arguments(tmp_path: Path, real: str) -> None:
    runtime = make_fault_runtime(tmp_path, {"kill": [record()]}, runtime=real)
    with subprocess.Popen([runtime.binary, "--root", "/r", "start", "", "a b"], stdout=subprocess.PIPE) as process:
        output, _ = process.communicate()
    assert output == f"{process.pid} --root /r start  a b\n".encode()
    assert process.returncode == 5
    assert (runtime.calls("start"), runtime.calls("kill")) == (1, 0)


def test_the_runtime_gets_the_environment_descriptors_and_signals_that_came(tmp_path: Path) -> None:
    script = tmp_path / "real"
    script.write_text(
        "#!/bin/sh\ncat /proc/$$/environ\nls /proc/$$/fd >&2\nexec grep 'Sig[BIC]' /proc/self/status >&2\n"
    )
    script.chmod(0o755)
    read_fd, write_fd = os.pipe()
    runtime = make_fault_runtime(tmp_path, {}, runtime=str(script))
    # No locale is set: Python would add one to its own environment.
    environment = {"PATH": "/bin:/usr/bin", "EMPTY": ""}
    direct = call(str(script), env=environment, pass_fds=[write_fd])
    through = call(runtime, env=environment, pass_fds=[write_fd])
    os.close(read_fd)
    os.close(write_fd)
    # The shell adds PWD and its like to both.
    assert sorted(through.stdout.split(b"\0")) == sorted(direct.stdout.split(b"\0"))
    assert through.stderr == direct.stderr


def test_record_has_everything_about_the_command(tmp_path: Path, real: str) -> None:
    runtime = make_fault_runtime(tmp_path, {"exec": [record(environment=["ONE"])]}, runtime=real)
    words: list[str | bytes] = ["--log", "/l", "exec", "--detach", "x", b"\xff"]
    environment = {"ONE": "1", "TWO": "2", "PATH": "/bin"}
    call(runtime, *words, env=environment)
    call(runtime, *words, env=environment)
    first, second = runtime.recorded()
    assert list(first.argv) == ["--log", "/l", "exec", "--detach", "x", "\udcff"]
    assert first.pid != second.pid
    assert (first.ppid, first.cwd, first.umask) == (os.getpid(), os.getcwd(), 0o022)
    assert set(first.fds) == {"0", "1", "2"}
    assert first.environment == {"ONE": "1"}


def test_a_relative_path_is_beside_the_file_whatever_the_directory(tmp_path: Path, real: str) -> None:
    runtime = make_fault_runtime(tmp_path, {"start": [touch("reached")]}, runtime=real)
    subprocess.run([runtime.binary, "start"], cwd="/", capture_output=True, check=False)
    assert runtime.file("reached").exists()


def test_the_log_gets_bytes_as_they_are(tmp_path: Path, real: str) -> None:
    runtime = make_fault_runtime(tmp_path, {"start": [log(b"\x00\xff{half"), fail(1, log_error="why\n")]}, runtime=real)
    place = tmp_path / "log.json"
    place.write_bytes(b"before\n")
    assert call(runtime, f"--log={place}", "start").returncode == 1
    junk, entry = place.read_bytes().removeprefix(b"before\n")[:7], place.read_bytes()[14:]
    assert junk == b"\x00\xff{half"
    parsed = json.loads(entry)
    assert (parsed["level"], parsed["msg"]) == ("error", "why\n")


def test_a_count_is_exact_when_commands_run_at_the_same_time(tmp_path: Path, real: str) -> None:
    runtime = make_fault_runtime(tmp_path, {"kill": [fail(9, times=7)]}, runtime=real)
    running = [subprocess.Popen([runtime.binary, "kill"], stdout=subprocess.DEVNULL) for _ in range(12)]
    assert sorted(process.wait() for process in running) == [5] * 5 + [9] * 7
    assert runtime.calls("kill") == 12


def test_a_new_plan_begins_to_count_anew(tmp_path: Path, real: str) -> None:
    runtime = make_fault_runtime(tmp_path, {"kill": [fail(9, times=1)]}, runtime=real)
    assert [call(runtime, "kill").returncode for _ in range(2)] == [9, 5]
    runtime.plan({"kill": [fail(8, times=1)]})
    assert [call(runtime, "kill").returncode for _ in range(2)] == [8, 5]


@pytest.mark.parametrize(
    ("value", "printed"), [({"status": "lies"}, {"id": "x", "status": "lies"}), ([1, 2], [1, 2]), (None, None)]
)
def test_an_object_is_laid_over_the_truth_and_anything_else_in_its_place(
    tmp_path: Path, value: Json, printed: Json
) -> None:
    script = tmp_path / "real"
    script.write_text('#!/bin/sh\necho \'{"id": "x", "status": "created"}\'\nexit 3\n')
    script.chmod(0o755)
    done = call(make_fault_runtime(tmp_path, {"state": [lie(value)]}, runtime=str(script)), "state", "x")
    assert (done.returncode, json.loads(done.stdout)) == (0, printed)


def test_steps_after_the_runtime_see_it_ended_and_its_status_is_kept(tmp_path: Path, real: str) -> None:
    runtime = make_fault_runtime(tmp_path, {"start": [after(text("late")), text("early ")]}, runtime=real)
    done = call(runtime, "start")
    assert done.stdout.startswith(b"early ")
    assert done.stdout.endswith(b"start\nlate")
    assert done.returncode == 5


def test_a_signal_that_ends_the_runtime_ends_the_command_the_same_way(tmp_path: Path) -> None:
    script = tmp_path / "real"
    script.write_text("#!/bin/sh\nkill -TERM $$\n")
    script.chmod(0o755)
    assert call(make_fault_runtime(tmp_path, {"start": [after()]}, runtime=str(script)), "start").returncode == -15


def test_a_runtime_under_way_dies_with_the_command(tmp_path: Path) -> None:
    script = tmp_path / "real"
    script.write_text("#!/bin/sh\necho $$\nexec sleep 60\n")
    script.chmod(0o755)
    runtime = make_fault_runtime(tmp_path, {"start": [after(touch("ended"))]}, runtime=str(script))
    with subprocess.Popen([runtime.binary, "start"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) != process.pid
        process.send_signal(signal.SIGKILL)
        # The runtime holds the other end.
        assert process.stdout.read() == b""
    assert not runtime.file("ended").exists()


def test_a_bad_plan_fails_every_command_and_says_why(tmp_path: Path, real: str) -> None:
    runtime = make_fault_runtime(tmp_path, {}, runtime=real)
    Path(f"{runtime.binary}.json").write_text('{"verbs": {"kill": [{"dely": 1}]}}')
    done = call(runtime, "start")
    assert done.returncode == BAD_PLAN
    assert b'kill: a step without an action: {"dely": 1}' in done.stderr
    Path(f"{runtime.binary}.json").unlink()
    assert call(runtime, "start").returncode == BAD_PLAN


def test_a_runtime_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = call(make_fault_runtime(tmp_path, {}, runtime="/no/such/runc"), "start")
    assert (done.returncode, done.stderr) == (
        NO_RUNTIME,
        b"fault runtime: /no/such/runc: No such file or directory\n",
    )


def test_a_plan_that_cannot_be_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="a plan has no verb"):
        write_fault_runtime(str(tmp_path / "r"), {"verb": {}})
    assert list(tmp_path.iterdir()) == []


def program(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shim.verify.faultrun", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_program_makes_fault_runtimes_from_plan_files(tmp_path: Path, real: str) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"runtime": real, "verbs": {"start": [{"fail": 4}]}}))
    made = program("make", str(plan), str(tmp_path / "faulty"))
    assert (made.returncode, made.stdout) == (0, f"{tmp_path / 'faulty'}\n")
    assert call(str(tmp_path / "faulty"), "start").returncode == 4
    plan.write_text("{")
    assert program("make", str(plan), str(tmp_path / "other")).returncode == 1


def test_the_program_without_a_plan_says_what_to_do() -> None:
    refused = program("create", "x")
    assert refused.returncode == 2
    assert "there is no plan beside" in refused.stderr
    asked = program("--help")
    assert asked.returncode == 0
    assert "shim-faultrun make PLAN.json FILE" in asked.stdout
    assert '{"delay": SECONDS}' in asked.stdout


def test_nothing_of_ours_but_two_small_modules_is_loaded_for_a_command() -> None:
    code = f"import sys; sys.path.append({str(ROOT)!r}); import shim.verify.faultrun; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, text=True, check=True)
    loaded = shown.stdout.split()
    ours = {name for name in loaded if name.partition(".")[0] == "shim"}
    assert ours == {"shim", "shim.verify", "shim.verify.faultplan", "shim.verify.faultrun"}
    assert {name.partition(".")[0] for name in loaded} - {"shim"} <= {
        *sys.stdlib_module_names,
        "__main__",
        "sitecustomize",
    }
    assert not {"typing", "ctypes", "subprocess", "attrs"} & set(loaded)


@pytest.mark.parametrize("size", [0, 1, 16, 17, 1 << 20])
def test_what_print_prints_has_exactly_the_size(size: int) -> None:
    assert len(numbered(size)) == size
    assert numbered(size)[:32] == b"000000000000000\n000000000000001\n"[:size]
