"""shimctl: containers through any runtime-v2 shim, without a daemon.

Only this module of the room runs a loop and ends the process.  A failure is one line on stderr; the exit statuses are
in `shim.cli.outcome`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Final

import attrs
import click
import trio

from shim.cli.demo import DEFAULT_SIZE, DemoRequest, parse_size, run_demo, step_apart
from shim.cli.occupied import describe_occupant
from shim.cli.outcome import OWN_FAILURE, line_of
from shim.cli.run import CommandFailed, Interrupted, Run, RunRequest
from shim.errors import (
    AlreadyExists,
    DataLoss,
    DeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    ShimError,
    Unavailable,
)
from shim.manager.layout import Layout
from shim.manager.manager import Manager, ManagerConfig, open_manager
from shim.model.names import check_identifier
from shim.model.runtimes import DEFAULT_RUNTIME
from shim.model.settings import DEFAULT_ROOT, DEFAULT_STATE

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

DISTRIBUTION: Final = "containerd-shim-trio"
STATUS_HELP: Final = """\b
Exit status: the container's own (128 + signal when it was killed);
125 when shimctl, the shim or the runtime failed, 126 when the command
cannot be run, 127 when it was not found."""


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    try:
        click.echo(f"shimctl {metadata.version(DISTRIBUTION)}")
    except metadata.PackageNotFoundError:
        click.echo("shimctl, run from a work tree that is not installed")
    context.exit(0)


@attrs.frozen
class Place:
    """What all commands share."""

    layout: Layout
    namespace: str
    debug: bool

    def command(self, words: str) -> str:
        """A command line of ours that acts on the same place, for advice in messages."""
        flags = ""
        if self.layout.state != DEFAULT_STATE:
            flags += f" --state {self.layout.state}"
        if self.layout.root != DEFAULT_ROOT:
            flags += f" --root {self.layout.root}"
        if self.namespace != "default":
            flags += f" --namespace {self.namespace}"
        return f"shimctl{flags} {words}"


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=STATUS_HELP)
@click.option("--state", default=DEFAULT_STATE, show_default=True, help="Directory of bundles and sockets.")
@click.option("--root", default=DEFAULT_ROOT, show_default=True, help="Directory of what lasts.")
@click.option("--namespace", default="default", show_default=True, help="Containers of other namespaces are not seen.")
@click.option("--debug", is_flag=True, help="Tell what is done, and show the shims' logs.")
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(context: click.Context, state: str, root: str, namespace: str, debug: bool) -> None:
    """Run containers through any containerd runtime-v2 shim, without containerd."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="shimctl: %(levelname)s: %(message)s",
        stream=sys.stderr,
    )
    check_identifier(namespace, "namespace")
    context.obj = Place(Layout(os.path.abspath(state), os.path.abspath(root)), namespace, debug)


@cli.command(context_settings={"allow_interspersed_args": False}, epilog=STATUS_HELP)
@click.option("--runtime", default=DEFAULT_RUNTIME, show_default=True, help="Runtime name, or absolute path of a shim.")
@click.option(
    "--rootfs",
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    help="Directory to run on, as it is; without it a busybox, thrown away.",
)
@click.option("--id", "task_id", help="Name of the container; by default one is made up.")
@click.option(
    "--rm/--keep", "remove", default=True, show_default=True, help="Remove the container when it has ended, or keep it."
)
@click.option("-i", "--interactive", is_flag=True, help="Pass stdin to the container.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Give the container a terminal.")
@click.option(
    "-e", "--env", multiple=True, metavar="NAME=VALUE", help="Set a variable in the container; may be repeated."
)
@click.option("--cwd", default="/", show_default=True, help="Working directory in the container.")
@click.option("--timings", is_flag=True, help="Tell exit, pid, memory of the shim and the time of each step on stderr.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def run(
    place: Place,
    runtime: str,
    rootfs: str | None,
    task_id: str | None,
    remove: bool,
    interactive: bool,
    terminal: bool,
    env: tuple[str, ...],
    cwd: str,
    timings: bool,
    command: tuple[str, ...],
) -> int:
    """Run COMMAND in a new container and wait for it.

    INT, TERM, HUP, QUIT, USR1, USR2 and WINCH go to the container; a second INT, a second or more after the first,
    kills it.
    """
    request = RunRequest(
        place.namespace,
        task_id or f"run-{secrets.token_hex(4)}",
        command,
        runtime,
        rootfs,
        remove,
        interactive,
        terminal,
        _environment(env),
        cwd,
    )
    check_identifier(request.id, "task id")

    async def act(manager: Manager) -> int:
        running = Run(manager, request)
        try:
            status = await running.run()
        except AlreadyExists as error:
            found = await describe_occupant(manager, place.namespace, request.id, place.command(f"delete {request.id}"))
            raise CommandFailed(ShimError(found)) from error
        if timings:
            for line in running.report.lines:
                click.echo(line, err=True)
        return status

    return _with_manager(place, act)


@cli.command()
@click.option("--force", is_flag=True, help="Kill it when it runs; remove what is left when its shim does not answer.")
@click.argument("task_id", metavar="ID")
@click.pass_obj
def delete(place: Place, force: bool, task_id: str) -> int:
    """Remove the container ID."""

    async def act(manager: Manager) -> int:
        try:
            await manager.delete(place.namespace, task_id, force=force)
        except (Unavailable, DataLoss, DeadlineExceeded) as error:
            advice = place.command(f"delete --force {task_id}")
            raise FailedPrecondition(f"{error.message}: to remove what is left, use {advice}") from error
        return 0

    return _with_manager(place, act)


@cli.command()
@click.option("--size", default=DEFAULT_SIZE, show_default=True, help="What the unmount has to write back: 512M, 2G.")
@click.option("--runtime", help="What to compare ours with: a name or a path. [default: the stock shim, when found]")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; what happens is told on stderr.")
@click.pass_obj
def demo(place: Place, size: str, runtime: str | None, as_json: bool) -> int:
    """Show what State answers while a slow Delete runs.

    A container has ended, and its root is full of pages that the unmount has to write back, which takes seconds. Our
    shim deletes it first, then another one does the same, and State is asked all the while. Nothing is left at the end,
    nor after an interruption.
    """
    request = DemoRequest(place.namespace, parse_size(size), runtime, as_json)
    step_apart()

    async def act(manager: Manager) -> int:
        result = await run_demo(manager, request)
        if as_json:
            click.echo(json.dumps(result, indent=2))
        return 0

    return _with_manager(place, act)


def main() -> None:
    """The program."""
    sys.exit(run_program(sys.argv[1:]))  # noqa: TID251 - the program's end


def run_program(arguments: list[str]) -> int:
    """Do what `arguments` say; the exit status, after the one line on stderr if it failed."""
    try:
        result = cli.main(arguments, prog_name="shimctl", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help(), err=True)
        return OWN_FAILURE
    except click.ClickException as error:
        return _fail(f"{error.format_message()} (shimctl --help tells more)", OWN_FAILURE)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except Interrupted as error:
        return _fail(line_of(error), 128 + error.signal)
    except CommandFailed as error:
        return _fail(line_of(error), error.status)
    except (ShimError, OSError) as error:
        return _fail(line_of(error), OWN_FAILURE)
    return result if isinstance(result, int) else 0


def _fail(line: str, status: int) -> int:
    click.echo(f"shimctl: {line}", err=True)
    return status


def _with_manager(place: Place, act: Callable[[Manager], Awaitable[int]]) -> int:
    if os.geteuid() != 0:
        raise FailedPrecondition("containers need root: run shimctl with sudo")

    async def run_act() -> int:
        async with open_manager(ManagerConfig(layout=place.layout, debug=place.debug)) as manager:
            return await act(manager)

    return trio.run(run_act)  # noqa: TID251 - the program's one run


def _environment(pairs: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name:
            raise InvalidArgument(f"--env {pair!r:.100} must be NAME=VALUE")
        found[name] = value
    return found


if __name__ == "__main__":
    main()
