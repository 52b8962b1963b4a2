"""Installing for real: what is there, what is never touched, and what stays while somebody uses it.

Each test changes one installation a step further; together they are its life, so they run in the order written.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import pytest

from tools.install import HOME, Installation, end_templates, users_of
from tools.make_build import PROGRAMS, ROOT, SOURCE_DIRECTORIES, SOURCE_FILES

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow
SHIM = PROGRAMS[0]


def snapshot(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Inode, size and time of everything below `directory`: equal before and after means that nothing was written."""
    facts = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        facts[str(path.relative_to(directory))] = (status.st_ino, status.st_size, status.st_mtime_ns)
    return facts


@attrs.define
class Site:
    """One prefix, and the source tree that is installed there."""

    prefix: Path
    source: Path

    @property
    def installation(self) -> Installation:
        return Installation(self.prefix)

    @property
    def current(self) -> Path:
        return self.installation.current.resolve(strict=True)

    def tool(self, verb: str) -> subprocess.CompletedProcess[str]:
        """Run the tool as the Makefile does."""
        command = [sys.executable, "-m", "tools.install", verb, "--prefix", str(self.prefix)]
        return subprocess.run(
            [*command, "--source", str(self.source)], cwd=ROOT, capture_output=True, text=True, check=False
        )

    def install(self) -> str:
        done = self.tool("install")
        assert done.returncode == 0, done.stderr
        return done.stdout

    def change_source(self) -> None:
        module = self.source / "shim/__init__.py"
        module.write_text(module.read_text() + "# changed\n")

    def version(self) -> str:
        """What the installed shim says, asked with no environment and from elsewhere."""
        return subprocess.run(
            [self.prefix / "bin" / SHIM, "-v"], cwd="/", env={}, capture_output=True, text=True, check=True
        ).stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """An installation of a copy of this tree, in a prefix that did not exist."""
    base = tmp_path_factory.mktemp("install")
    source = base / "source"
    for name in SOURCE_DIRECTORIES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in SOURCE_FILES:
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)
    made = Site(base / "prefix", source)
    made.install()
    return made


@pytest.fixture
def user(site: Site) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the current build: the shim, waiting for the rest of its standard input."""
    cold = {**os.environ, "TRIO_SHIM_TEMPLATE": "off"}  # a request to a template would be two processes
    with subprocess.Popen([site.prefix / "bin" / SHIM, "-info"], stdin=subprocess.PIPE, env=cold) as process:
        # It has mapped the native module of protobuf or of cffi when it is far enough to read.
        wait_until_reading(process)
        yield process
        process.kill()


def wait_until_reading(process: subprocess.Popen[bytes]) -> None:
    """Fill the pipe until the process takes from it: a write of more than a pipe holds returns only then."""
    assert process.stdin is not None
    size = 1 << 17
    os.write(process.stdin.fileno(), bytes(size))


def test_programs_answer(site: Site) -> None:
    assert site.current.name.rpartition("-")[2] in site.version()
    shown = subprocess.run(
        [site.prefix / "bin/shimctl", "--help"], env={}, capture_output=True, text=True, check=True
    ).stdout
    assert "shimctl" in shown


def test_nothing_is_written_by_running(site: Site) -> None:
    before = snapshot(site.prefix)
    site.version()
    assert snapshot(site.prefix) == before


def test_environment_of_the_caller_changes_nothing(site: Site, tmp_path: Path) -> None:
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim/__init__.py").write_text("raise SystemExit('the wrong package')\n")
    environment = {"PYTHONPATH": str(tmp_path), "PYTHONHOME": str(tmp_path), "PYTHONSTARTUP": str(tmp_path)}
    done = subprocess.run(
        [site.prefix / "bin" / SHIM, "-v"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == site.version()


def test_process_maps_its_own_build_and_the_machine_only(site: Site, user: subprocess.Popen[bytes]) -> None:
    files = {
        line.split(maxsplit=5)[5]
        for line in Path(f"/proc/{user.pid}/maps").read_text().splitlines()
        if len(line.split()) == 6 and line.split()[5].startswith("/")
    }
    inside = {name for name in files if name.startswith(f"{site.current}/")}
    assert any("site-packages" in name or str(ROOT) in name for name in files) is False
    assert inside
    end_templates(site.current)
    assert users_of(site.current) == [user.pid]


def test_what_is_not_shipped(site: Site) -> None:
    names = {path.name for path in (site.current / "lib").iterdir()}
    assert not names & {"pip", "setuptools", "grpc", "grpc_tools", "pytest", "bin", "tests"}
    assert not [path for path in site.current.rglob("*") if path.name in {"tests", "_tests", "direct_url.json"}]


def test_no_absolute_path_inside_but_the_interpreter(site: Site) -> None:
    unwanted = [os.fsencode(path) for path in (site.prefix, site.source, ROOT)] + [b"/shim-sources-"]
    for path in site.prefix.rglob("*"):
        if path.is_symlink():
            assert path.name == "python" or not os.path.isabs(os.readlink(path)), path
        elif path.is_file():
            content = path.read_bytes()
            assert not any(each in content for each in unwanted), path


def test_tree_can_be_moved(site: Site) -> None:
    said = site.version()
    before = snapshot(site.prefix)
    site.prefix = site.prefix.rename(site.prefix.with_name("moved"))
    assert site.version() == said
    assert snapshot(site.prefix) == before


def test_same_build_again_changes_nothing(site: Site) -> None:
    before = snapshot(site.prefix)
    site.install()
    after = snapshot(site.prefix)
    # The home directory itself may get a new time: an unfinished build or link comes and goes in it.
    assert {name: fact[0] for name, fact in after.items()} == {name: fact[0] for name, fact in before.items()}
    assert {name: fact for name, fact in after.items() if name != HOME} == {
        name: fact for name, fact in before.items() if name != HOME
    }


def test_other_build_switches_and_keeps_the_one_in_use(site: Site, user: subprocess.Popen[bytes]) -> None:
    old = site.current
    before = snapshot(old)
    site.change_source()
    said = site.install()
    assert site.current != old
    assert f"kept {old}: in use by process {user.pid};" in said
    assert snapshot(old) == before
    assert site.current.name.rpartition("-")[2] in site.version()
    user.kill()
    user.wait()
    assert "kept" not in site.install()
    assert not old.exists()
    assert site.installation.builds() == [site.current]


def test_program_of_somebody_else_is_not_touched(site: Site, tmp_path: Path) -> None:
    other = Site(tmp_path / "taken", site.source)
    (other.prefix / "bin").mkdir(parents=True)
    (other.prefix / "bin/shimctl").write_text("somebody else's")
    before = snapshot(other.prefix)
    done = other.tool("install")
    assert done.returncode == 1
    assert "was not put there by this program" in done.stderr
    assert snapshot(other.prefix) == before


def test_uninstall_waits_for_a_user(site: Site, user: subprocess.Popen[bytes]) -> None:
    build = site.current
    done = site.tool("uninstall")
    assert done.returncode == 0
    assert f"kept {build}: in use by process {user.pid};" in done.stdout
    assert build.exists()
    assert not os.path.lexists(site.prefix / "bin" / SHIM)


def test_uninstall_leaves_nothing(site: Site) -> None:
    assert site.tool("uninstall").returncode == 0
    assert not site.prefix.exists()
    assert site.tool("uninstall").returncode == 0
