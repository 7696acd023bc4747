"""The commands, put together, and what happens to their errors."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from rubato.cli import (
    access_commands,
    backup_commands,
    checkpoint_commands,
    command_list,
    completion,
    explain,
    export,
    job_changes,
    job_commands,
    local,
    login,
    operations_commands,
    pin,
    planning,
    recipes,
    secret_commands,
    service_commands,
    starter,
    submit,
    watch_commands,
    webhook_commands,
)
from rubato.cli.exits import ExitCode, code_for_error
from rubato.cli.output import fail, note, put
from rubato.errors import ApiUnauthenticated, RubatoError, SpecError

app = typer.Typer(
    name="rubato",
    cls=command_list.CommandList,
    help="Elastic PyTorch training: scale workers mid-run, lose one, and get the same bits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
Command = Callable[..., None]
PANELS: Mapping[str, tuple[Command | typer.Typer, ...]] = {
    "Jobs": (
        starter.init,
        local.run,
        submit.submit,
        job_changes.clone,
        recipes.recipes,
        planning.profile,
        planning.plan,
    ),
    "Watch": (
        job_commands.ps,
        job_commands.get,
        explain.explain,
        job_commands.logs,
        watch_commands.events,
        watch_commands.metrics,
        watch_commands.top,
        job_commands.wait,
    ),
    "Change": (
        job_commands.scale,
        job_commands.pause,
        job_commands.resume,
        job_commands.cancel,
        job_changes.update,
        job_changes.delete,
        operations_commands.worker,
    ),
    "Checkpoints and exports": (job_commands.checkpoint, checkpoint_commands.app, pin.pin, export.export),
    "Cluster": (operations_commands.nodes, operations_commands.node),
    "Access": (
        login.login,
        login.logout,
        access_commands.token,
        access_commands.project,
        access_commands.user,
        secret_commands.app,
        webhook_commands.app,
        access_commands.audit,
    ),
    "This machine": (
        service_commands.up,
        service_commands.down,
        service_commands.doctor,
        service_commands.demo,
        backup_commands.backup,
        backup_commands.restore,
        completion.completion,
    ),
}
SUMMARIES: Mapping[Command, str] = {
    service_commands.up: "Start service, Ray and agent, and wait until jobs can run.",
    service_commands.down: "Checkpoint the running jobs, and stop what `up` started.",
    service_commands.doctor: "Look at this machine and the service: what is in the way?",
    service_commands.demo: "Train, scale, kill a worker, and compare the bits.",
}
"""For the list, where the first sentence of a command's help says more than one line holds."""
for panel, members in PANELS.items():
    for member in members:
        if isinstance(member, typer.Typer):
            app.add_typer(member, rich_help_panel=panel)
        else:
            app.command(rich_help_panel=panel, short_help=SUMMARIES.get(member))(member)


def _version_callback(wanted: bool) -> None:  # typer calls it by position
    if wanted:
        try:
            put(importlib.metadata.version("rubato"))
        except importlib.metadata.PackageNotFoundError:
            put("unknown (run from a checkout that is not installed)")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the release and end.", is_eager=True, callback=_version_callback)
    ] = False,
) -> None:
    """Elastic PyTorch training: scale workers mid-run, lose one, and get the same bits."""


def run(arguments: list[str]) -> int:
    """Run one command line; returns the exit code."""
    try:
        app(arguments, prog_name="rubato")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except KeyboardInterrupt:
        note("Interrupted.")
        return ExitCode.INTERRUPTED
    except SpecError as error:
        fail("\n  ".join(["the job spec is not valid", *map(str, error.findings)]))
        return ExitCode.ERROR
    except RubatoError as error:
        fail(str(error))
        if isinstance(error, ApiUnauthenticated):
            note("Sign in with `rubato login ADDRESS`, or give the token in RUBATO_TOKEN,")
            note(
                "or the home of a service on this machine in RUBATO_HOME (its file `token`), which `rubato up` starts."
            )
        return code_for_error(error)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}; mend that, or name another path" if error.filename else str(error))
        return ExitCode.ERROR
    except ImportError as error:
        fail(f"{error}; install what this command needs (for torch: pip install '.[train]' in the checkout of Rubato)")
        return ExitCode.ERROR
    except UnicodeDecodeError as error:
        fail(f"what was read is no text in UTF-8 ({error.reason} at byte {error.start}); encode bytes with base64")
        return ExitCode.ERROR
    return ExitCode.OK
