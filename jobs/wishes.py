"""What the service wants of a job, followed by long polls; each also renews the lease."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

from jobs.service_link import Fenced, NotWanted, ServiceLink
from rubato.errors import RubatoError
from rubato.wire.cluster import Desired

DESIRED_WAIT_S = 25.0
RETRY_S = 1.0


def follow_wishes(
    link: ServiceLink,
    job_id: str,
    version: int,
    is_over: threading.Event,
    on_wishes: Callable[[Desired], None],
    on_fenced: Callable[[], None],
    crash: Callable[[], None],
) -> None:
    """Poll until all is over.

    Args:
        version: of the wishes that are known.
        on_fenced: a newer attempt leads, or the job is not to run.
        crash: ends the process, where nothing is followed any more: the reports would keep the lease.
    """
    try:
        while not is_over.is_set():
            try:
                wishes = link.desired(job_id, version, DESIRED_WAIT_S)
            except (Fenced, NotWanted):
                # Also the answer once the outcome is stored: there is nothing left to lose then.
                if not is_over.is_set():
                    on_fenced()
                return
            except RubatoError:
                is_over.wait(RETRY_S)
            else:
                if wishes.version != version:
                    version = wishes.version
                    on_wishes(wishes)
    except Exception:
        traceback.print_exc()
        crash()
