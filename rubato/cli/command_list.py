"""The list of commands in `rubato --help`, by what they are for, and what is said of a command line that is not one."""

from __future__ import annotations

import difflib
import re
from collections import defaultdict
from typing import Any

import typer
import typer.core

from rubato.errors import meant

OTHER_WORDS = {
    "describe": "get",
    "inspect": "get",
    "jobs": "ps",
    "kill": "cancel",
    "list": "ps",
    "ls": "ps",
    "rm": "delete",
    "serve": "up",
    "show": "get",
    "start": "up",
    "status": "get",
    "stop": "cancel",
    "train": "run",
}
"""What other tools call a command, and no spelling would find."""
_CHOICE = re.compile(r"(?:Value error, )?'(.*)' is not one of ('.+')\.?")
MARGIN = 6
"""Columns of a line of the list that are neither its name nor its summary."""


class CommandList(typer.core.TyperGroup):
    """The commands under the heads that `rich_help_panel` gives them, in the order in which those first come."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list: every summary in one line."""
        panels: dict[str, list[Any]] = defaultdict(list)
        for name in self.list_commands(ctx):
            command: Any = self.get_command(ctx, name)
            if not command.hidden:
                panels[command.rich_help_panel].append(command)
        longest = max(len(command.name) for commands in panels.values() for command in commands)
        for panel, commands in panels.items():
            with formatter.section(panel):
                formatter.write_dl(
                    [
                        (one.name.ljust(longest), one.get_short_help_str(formatter.width - MARGIN - longest))
                        for one in commands
                    ]
                )

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command of a line; of one that is none, the nearest."""
        name = args[0]
        if name not in self.commands and name[:1].isalnum() and not ctx.resilient_parsing:
            near = [OTHER_WORDS[name]] if name in OTHER_WORDS else difflib.get_close_matches(name, self.commands)
            meant = " or ".join(repr(one) for one in near)
            ctx.fail(f"No such command {name!r}. " + (f"Did you mean {meant}?" if near else "See `rubato --help`."))
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; what it cannot read as a number or a choice is told with the value."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _say(error)
            raise


def _say(error: typer.BadParameter) -> str:
    """In our words what pydantic, which typer asks, says in those of a programmer; the rest as it is."""
    ask = getattr(error.__cause__, "errors", None)
    (found,) = ask()[:1] if ask is not None else ({},)
    value, bounds = found.get("input"), found.get("ctx", {})
    match found.get("type"):
        case "int_parsing" | "int_from_float":
            return f"must be a whole number, got {value!r}"
        case "float_parsing":
            return f"must be a number, got {value!r}"
        case "greater_than_equal":
            return f"must be at least {bounds['ge']}, got {value}"
        case "less_than_equal":
            return f"must be at most {bounds['le']}, got {value}"
    if choice := _CHOICE.fullmatch(error.message):
        known = re.findall(r"'([^']+)'", choice[2])
        return f"{choice[1]!r} is not one of {', '.join(known)}{meant(choice[1], known)}"
    return error.message
