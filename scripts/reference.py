"""Write pages of docs/reference from the code: job spec and its schema, settings, events, reasons, command line.

And the part of docs/how-to/troubleshoot.md that goes by reason.
`python scripts/reference.py` writes them; `--check` only says which are not current (exit code 1 where one is not).
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args, get_origin

import typer.core
import typer.main
from generated import ROOT, Part, keep_page
from pydantic_core import PydanticUndefined

from rubato.cli import app as cli
from rubato.cli.exits import ExitCode
from rubato.wire import aggregation, events, spec
from rubato.wire.reasons import Reason
from rubato.wire.schema import field_meanings, job_spec_schema
from service import settings

FOLDER = ROOT / "docs" / "reference"
SPEC: dict[str, Any] = {**vars(aggregation), **vars(spec)}
"""What the modules with the sections of a job spec call by a name."""
BY_REASON = Part(ROOT / "docs" / "how-to" / "troubleshoot.md", "reasons", "reference.py")

Row = tuple[str, str, str, str]
"""Name, type, default and meaning of a field, as the code says them."""


def fields_of(module: ModuleType, name: str) -> list[Row]:
    """The annotated fields of a class in order, each with the string that stands under it."""
    tree, meanings = ast.parse(inspect.getsource(module)), field_meanings(module, name)
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return [
        (node.target.id, ast.unparse(node.annotation), _default(node.value), meanings[node.target.id])
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _default(value: ast.expr | None) -> str:
    """What is written behind the `=`, or given to `field(...)`; empty: there is none, the field is required."""
    if not isinstance(value, ast.Call):
        return "" if value is None else ast.unparse(value)
    called = ast.unparse(value.func)
    if called == "_duration":
        return ast.unparse(value.args[0])
    given = {one.arg: one.value for one in value.keywords}
    if called in ("field", "Field"):
        if "default" in given or value.args:
            return ast.unparse(given.get("default") or value.args[0])
        return {"dict": "{}"}.get(ast.unparse(given["default_factory"]), "")
    return ""  # another section, with defaults of its own


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    return [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in cells)]


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


# --- pages ------------------------------------------------------------------------------------------------------------


def spec_page() -> Iterator[str]:
    """Every key of a job spec, section by section."""
    yield "# Job spec\n"
    yield "YAML or JSON. Unknown keys are refused, and one reply names everything that is wrong. Durations are seconds"
    yield "or `1h30m`, sizes bytes or `2GiB`. `rubato init` writes a spec, `rubato submit --dry-run` checks one.\n"
    yield from _section("", "JobSpec")


def _section(path: str, name: str) -> Iterator[str]:
    described = inspect.getdoc(SPEC[name]) or ""
    if path:
        yield f"\n## `{path}`\n\n{' '.join(described.split())}\n"
    rows, nested = [], []
    for field, kind, default, meaning in fields_of(sys.modules[SPEC[name].__module__], name):
        sections = [known for known in re.findall(r"\w+Spec\b", kind) if known in SPEC]
        full = f"{path}.{field}" if path else field
        if sections:
            nested.append((full, sections[0]))
            many = "list of " if kind.startswith("tuple") else ""
            kind = f"{many}[section](#{full.replace('.', '')})"
        else:
            kind = _code(_plain(kind))
        shown = ("null" if default else "") if sections else _plain(default)
        rows.append((_code(field), kind, _code(shown), meaning))
    yield from _table(("key", "type", "default", "meaning"), rows)
    for full, section in nested:
        yield from _section(full, section)


def _plain(code: str) -> str:
    """Python's words in those of YAML."""
    for name in ("Autoscale", "NonFinite", "Device", "Algorithm", "Method"):
        code = re.sub(rf"\b{name}\b", str(SPEC[name]).replace("typing.", ""), code)
    code = re.sub(r"Literal\[(.*?)\]", lambda match: " | ".join(re.findall(r"'(.*?)'", match[1])), code)
    code = code.replace("tuple[str, ...]", "list of str").replace("tuple[int, ...]", "list of int")
    code = code.replace("tuple[float, ...]", "list of float")
    code = code.replace("dict[str, str | None]", "mapping to str or null").replace("dict[str, str]", "mapping to str")
    code = code.replace("dict[str, Any]", "mapping").replace("None", "null").replace("()", "[]")
    return code.replace("True", "true").replace("False", "false").replace("'", "")


VARIABLES: dict[str, tuple[tuple[str, str], ...]] = {
    "Client and command line": (
        ("RUBATO_URL", "Address of the service; before that of `rubato login`."),
        ("RUBATO_TOKEN", "Token for it; before that of `rubato login` and the file in the home."),
        ("RUBATO_HOME", "Folder of `rubato up`, `rubato login` and `rubato run`; default: `~/.rubato`."),
        ("RUBATO_PORT", "Port of the service that `rubato up` starts."),
        ("RUBATO_DATABASE_URL", "Its database, which the home remembers."),
        ("RUBATO_STORAGE", "Where its checkpoints are kept, which the home remembers, too."),
        (
            "RUBATO_PG_BIN",
            "Folder of pg_dump, pg_restore and psql for `rubato backup` and `restore`; default: the PATH.",
        ),
        ("SSL_CERT_FILE, SSL_CERT_DIR", "Who may have signed the certificate of an https address."),
        ("RUBATO_KEEPER", "Set by the keeper in all that it starts, to know it again; not to be set."),
    ),
    "Agent": (
        ("RUBATO_CLUSTER_TOKEN_FILE", "File of its token; default: `cluster-token` in the home."),
        ("RUBATO_HOME", "Where that lies, on the machine of the service."),
        ("RUBATO_URL", "Address of the service; `deploy/ray-head` gives it to the agent as `--url`."),
        ("RUBATO_CLUSTER", "Name of the cluster; `deploy/ray-head` gives it to the agent as `--cluster`."),
        ("RUBATO_WORKER_NODES", "Of `docker-compose.yml`: how many nodes with slots; default: 2."),
        ("RUBATO_SLOTS", "Of `docker-compose.yml`: slots of each; default: 4."),
    ),
    "Training process": (
        ("RUBATO_JOB_ID", "Id of the job, or of the run."),
        (
            "RUBATO_WORKER_ID",
            "Id of the worker, which no other one has later: `w1.2`. Its rank changes: it is none of these.",
        ),
        (
            "RUBATO_INCARNATION",
            "Its process, as `1.2`: the attempt of the job, and the number of its start in that. Decide nothing by it.",
        ),
        ("OMP_NUM_THREADS", "`1`: the bits of a sum depend on how many threads share it out."),
        ("PYTHONHASHSEED", "`0`: the order of a set of strings is the same in all workers."),
        (
            "PYTHONUNBUFFERED, PYTHONFAULTHANDLER",
            "`1`: output comes as it is written, and stacks where a process crashes.",
        ),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "`0`: a lost peer is left to the engine."),
        ("CUBLAS_WORKSPACE_CONFIG", "`:4096:8` where the job is `reproducible`."),
        (
            "CUDA_VISIBLE_DEVICES",
            "Under `rubato run` this worker's share of those that the shell's names, else of all.",
        ),
        (
            "RUBATO_CONTROL_FD, RUBATO_PROGRESS_FD, RUBATO_STACKS_FD, RUBATO_GUARD_FD, RUBATO_SUPERVISOR_PID, "
            "RUBATO_PREFETCH_FDS, RUBATO_FORKSERVER_FD",
            "What a process and its supervisor, or those that read ahead for it, share; of no use to programs.",
        ),
    ),
}
"""Environment variables that are no settings of the service: by whom they are read."""


def settings_page() -> Iterator[str]:
    """Every environment variable: of the service, and of all else."""
    yield "# Settings of the service\n"
    yield "Environment variables, read once when the service starts. Durations are seconds (`30`, `0.5`), words as in a"
    yield "job's spec (`1h30m`), or ISO 8601 (`PT30S`).\n"
    rows = [
        (_code(f"RUBATO_{name.upper()}"), _code(kind), _code(_value(name)), meaning)
        for name, kind, _, meaning in fields_of(settings, "Settings")
        if name != "model_config"
    ]
    yield from _table(("variable", "type", "default", "meaning"), rows)
    yield "\n## Variables of client, agent and training process\n"
    yield "A training process gets `env` and the secrets of its job, and what its supervisor has, but for credentials"
    yield "of Ray and Rubato. Where a value is told below it is a default, which `env` replaces.\n"
    for who, variables in VARIABLES.items():
        yield f"\n### {who}\n"
        names = [(", ".join(_code(name) for name in many.split(", ")), meaning) for many, meaning in variables]
        yield from _table(("variable", "meaning"), names)


def _value(name: str) -> str:
    """The default of a setting as it is given in the environment; empty: the text tells."""
    value = settings.Settings.model_fields[name].default
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g}"
    if isinstance(value, bool | tuple):
        return json.dumps(value)
    return "" if value is PydanticUndefined else str(value)


def events_page() -> Iterator[str]:
    """Every kind of event, with the keys of its data."""
    yield "# Events\n"
    yield "What happened to a job, in order: `GET /api/v1/jobs/{id}/events`, and the page. Each has a sentence,"
    yield "and its step and generation where there is one; `data` has these keys.\n"
    rows: list[tuple[str, str]] = []
    for line in inspect.getsource(events.EventKind).splitlines():
        if found := re.match(r'    [A-Z_]+ = "(.+?)"(?:  # (.*))?$', line):
            rows.append((_code(found[1]), found[2] or ""))
        elif (found := re.match(r"    # (.*)$", line)) and rows and not found[1].endswith("."):
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {found[1]}".strip())
    yield from _table(("kind", "data"), rows)


def reasons_page() -> Iterator[str]:
    """Every reason with what it means and what to do."""
    yield "# Reasons\n"
    yield "The `reason` of a job's status and of its failure. `rubato explain JOB` tells more of a case.\n"
    rows = [(_code(reason.value), reason.meaning, reason.advice) for reason in Reason]
    yield from _table(("reason", "what it means", "what to do"), rows)


def reasons_part() -> Iterator[str]:
    """What to do about every reason."""
    yield ""
    yield from _table(("reason", "what to do"), [(_code(reason.value), reason.advice) for reason in Reason])
    yield ""


def cli_page() -> Iterator[str]:
    """Every command with its arguments and options."""
    yield "# Command line\n"
    yield "Data goes to stdout, everything else to stderr. `rubato COMMAND --help` says the same in the terminal."
    yield "`--json` prints what the API answers: for a list its items, in `logs` one object a line. Options win over"
    yield "the environment (`RUBATO_URL`, `RUBATO_TOKEN`, `RUBATO_HOME`), and that over what `rubato login` has kept."
    yield "An argument in brackets may be left out; what stands behind an option is the value that it takes.\n"
    yield from _table(("exit code", "meaning"), [(_code(str(code.value)), code.meaning) for code in ExitCode])
    yield from _command(typer.main.get_command(cli.app), "rubato")


def _command(command: Any, path: str) -> Iterator[str]:
    if isinstance(command, typer.core.TyperGroup):
        for name, child in command.commands.items():
            if not child.hidden:
                yield from _command(child, f"{path} {name}")
        return
    yield f"\n## `{path}`\n\n{inspect.cleandoc(command.help or '')}\n"
    rows = []
    for one in command.params:
        if not one.hidden and one.name != "help":
            rows.append((_code(_name_of(one)), _meaning_of(one)))
    if rows:
        yield from _table(("argument", "meaning"), rows)


def _name_of(one: Any) -> str:
    """How an argument or option is written, with what an option takes; brackets: it may be left out."""
    if one.param_type_name == "argument":
        name = one.metavar or one.name.upper()
        return name if one.required or name.startswith("[") else f"[{name}]"
    name = " / ".join(", ".join(names) for names in (one.opts, one.secondary_opts) if names)
    return name if one.is_flag else f"{name} {one.metavar or _taken_by(one)}"


def _taken_by(one: Any) -> str:
    kind = one.type_descriptor.annotation
    kind = next((inner for inner in get_args(kind) if get_origin(kind) is list), kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(choice.value) for choice in kind)
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return {int: "N", float: "NUMBER", Path: "PATH"}.get(kind, "TEXT")


def _meaning_of(one: Any) -> str:
    text = " ".join((one.help or "").split())
    value = one.show_default if isinstance(one.show_default, str) else one.default
    if value in (None, False, "") or "Default:" in text:
        return text
    value = value.value if isinstance(value, Enum) else value
    return f"{text} Default: {value if isinstance(one.show_default, str) else _code(str(value))}."


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "spec.md": spec_page,
    "settings.md": settings_page,
    "events.md": events_page,
    "reasons.md": reasons_page,
    "cli.md": cli_page,
}


def main(arguments: list[str]) -> int:
    """Write the pages and the part, or with `--check` compare them; 1 where one is stale."""
    texts = {name: "\n".join(lines()) + "\n" for name, lines in PAGES.items()}
    texts["job-spec.schema.json"] = json.dumps(job_spec_schema(), indent=2) + "\n"
    stale = [keep_page(FOLDER / name, text, "this page", "reference.py", arguments) for name, text in texts.items()]
    return max(*stale, BY_REASON.keep("\n".join(reasons_part()), arguments))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
