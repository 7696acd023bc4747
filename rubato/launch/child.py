"""The training process: reads its orders from a socket that its supervisor made, and runs the user's program.

It imports `rubato` and the user's code, nothing else of ours. It ends with
    0  released, left, or stopped as ordered     1  the user's code raised (said before, with traceback)
    70 the engine broke one of its own rules     71 the state differs from the other workers'
    75 the communication of a generation that is over could not be ended (`engine/comm`)
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from rubato.launch.stacks import answer_signals
from rubato.launch.tether import CONTROL_VARIABLE, PROGRESS_VARIABLE, guard_group, tether_to_supervisor
from rubato.wire import worker as wire
from rubato.wire.progress import ProgressWord
from rubato.wire.spec import parse_spec

EXIT_USER, EXIT_ENGINE, EXIT_DIVERGED = 1, 70, 71
COMM_BYTES = 15
"""Of a process's name, on Linux."""


def main() -> None:
    """Read `Start`, train, and exit."""
    tether_to_supervisor()
    connection = socket.socket(fileno=int(os.environ.pop(CONTROL_VARIABLE)))
    os.set_inheritable(connection.fileno(), False)  # not for the children of user code
    reader = connection.makefile("rb")
    word = _progress_word()
    answer_signals()
    guard_group()
    line = reader.readline()
    if not line:
        os._exit(EXIT_ENGINE)
    start = wire.decode(json.loads(line))
    _take_name(f"rubato {start.worker_id}")
    code = _train(start, connection, reader, word)
    # Communication threads may still be in C++: leave without tearing the interpreter down under them.
    sys.stdout.flush()
    sys.stderr.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def _take_name(name: str) -> None:
    """What `ps` and `top` call this process."""
    with contextlib.suppress(OSError):  # where there is no such file
        Path("/proc/self/comm").write_text(name[:COMM_BYTES])


def _progress_word() -> ProgressWord:
    """The word that the supervisor reads."""
    given = os.environ.pop(PROGRESS_VARIABLE, "")
    if not given:
        return ProgressWord()
    word = ProgressWord(int(given))
    os.close(int(given))
    return word


def _train(start: wire.Start, connection: socket.socket, reader: Any, word: ProgressWord) -> int:
    from rubato.data.randomness import seed_all
    from rubato.engine.comm import open_store
    from rubato.engine.control import Control
    from rubato.engine.session import Session
    from rubato.errors import CheckpointError, Diverged, LeaveTraining, RubatoError, UserError
    from rubato.program import load_entrypoint, prepare_torch
    from rubato.run import Run

    spec = parse_spec(start.spec, strict=False)
    control = Control(start, connection, reader, word)
    store, address = open_store(start.host)
    where, session = "import", None
    try:
        device = prepare_torch(spec)
        seed_all(spec.seed, "setup")
        train, code = load_entrypoint(spec)
        session = Session(control, spec, device, start.host, code.digest)
        control.hello = wire.Hello(start.incarnation, address)
        control.serve(session.membership.form)
        control.say(control.hello)
        where = "setup"
        run = Run(session)
        seed_all(spec.seed, "setup")
        train(run)
        run.finish()
    except LeaveTraining:
        return 0
    except Diverged as error:
        print(f"rubato: {error}", file=sys.stderr)
        return EXIT_DIVERGED
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        # State that cannot be taken over is mostly another program's; what else is ours is no error of the user.
        if isinstance(error, RubatoError) and not isinstance(error, (UserError, CheckpointError)):
            traceback.print_exc()
            return EXIT_ENGINE
        failure = _failure(start, where, session, error)
        print((failure.traceback or failure.error).rstrip(), file=sys.stderr)
        control.say(failure)
        return EXIT_USER
    finally:
        del store
    return 0


def _failure(start: wire.Start, where: str, session: Any, error: BaseException) -> wire.UserFailed:
    """What is known of an exception of the user's code."""
    step = session.present_step if session is not None else None
    kind = type(error).__name__
    text, code = f"{kind}: {error}" if str(error) else kind, None
    if isinstance(error, SystemExit):
        text = f"the program called exit ({error.code}); return from the training function instead"
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    in_step = where == "setup" and step is not None
    return wire.UserFailed(
        incarnation=start.incarnation,
        where="step" if in_step else "import" if where == "import" else "setup",
        error=text,
        traceback=_traceback_of(error),
        step=step if in_step else None,
        microbatch=session.present_microbatch if in_step else None,
        exit_code=code,
    )


def _traceback_of(error: BaseException) -> str:
    """The traceback from the first frame of the user's code on; empty where the error says all there is to say.

    It ends with the user's call where we refuse what is asked for: how we came to refuse it is of no use.
    """
    from rubato.errors import EntrypointError, SpecMismatch, UserError

    if isinstance(error, EntrypointError | SpecMismatch):
        return ""
    frame = error.__traceback__
    while frame is not None and _is_ours(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    told = traceback.TracebackException(type(error), error, frame)
    if isinstance(error, UserError):
        package = Path(__file__).parents[1]
        while told.stack and Path(told.stack[-1].filename).is_relative_to(package):
            told.stack.pop()
        if not told.stack:
            return ""
    return "".join(told.format())


def _is_ours(file: str) -> bool:
    """Whether a frame only leads to the user's code."""
    from rubato import entrypoint, program

    script = str(Path(program.__file__).parent / "hvd" / "script.py")
    return file in (__file__, entrypoint.__file__, program.__file__, script, importlib.__file__) or file.startswith(
        "<frozen importlib"
    )


if __name__ == "__main__":
    main()
