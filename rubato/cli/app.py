"""The commands, put together, and what happens to their errors."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Annotated

import typer

from rubato.cli import (
    access_commands,
    backup_commands,
    checkpoint_commands,
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
    help="Elastic PyTorch training: scale workers mid-run, lose one, and get the same bits.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
COMMANDS: tuple[Callable[..., None], ...] = (
    starter.init,
    local.run,
    submit.submit,
    recipes.recipes,
    planning.profile,
    planning.plan,
    job_commands.ps,
    job_commands.get,
    explain.explain,
    job_commands.logs,
    watch_commands.events,
    watch_commands.metrics,
    watch_commands.top,
    operations_commands.nodes,
    job_commands.scale,
    job_commands.pause,
    job_commands.resume,
    job_commands.cancel,
    job_commands.checkpoint,
    job_changes.update,
    job_changes.clone,
    job_changes.delete,
    export.export,
    pin.pin,
    job_commands.wait,
    service_commands.up,
    service_commands.down,
    login.login,
    login.logout,
    access_commands.audit,
    service_commands.doctor,
    backup_commands.backup,
    backup_commands.restore,
    service_commands.demo,
    completion.completion,
)
for command in COMMANDS:
    app.command()(command)
GROUPS = (
    checkpoint_commands.app,
    secret_commands.app,
    webhook_commands.app,
    operations_commands.worker,
    operations_commands.node,
    access_commands.token,
    access_commands.project,
    access_commands.user,
)
for group in GROUPS:
    app.add_typer(group)


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
        fail("\n  ".join(["the job spec does not hold", *map(str, error.findings)]))
        return ExitCode.ERROR
    except RubatoError as error:
        fail(str(error))
        if isinstance(error, ApiUnauthenticated):
            note("Sign in with `rubato login ADDRESS`, or give the token in RUBATO_TOKEN,")
            note("or the home of a service on this machine in RUBATO_HOME (its file `token`), which `rubato up` starts.")
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
