"""`rubato completion`: what a shell needs to complete commands, options and names of jobs."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer
from typer._completion_shared import get_completion_script

from rubato.cli.output import note, put

Shell = Literal["bash", "zsh", "fish", "powershell"]
HINTS = {
    "bash": 'eval "$(rubato completion bash)"  in ~/.bashrc',
    "zsh": 'eval "$(rubato completion zsh)"  in ~/.zshrc, behind compinit',
    "fish": "rubato completion fish > ~/.config/fish/completions/rubato.fish",
    "powershell": "rubato completion powershell | Out-String | Invoke-Expression  in $PROFILE",
}


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish|powershell", help="Which shell.")],
) -> None:
    """Print what makes a shell complete commands, options and jobs."""
    put(get_completion_script(prog_name="rubato", complete_var="_RUBATO_COMPLETE", shell=shell))
    if sys.stdout.isatty():  # with `eval` every new shell would say it
        note(f"Put to use by: {HINTS[shell]}")
