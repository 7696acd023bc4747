"""How long a wait goes on while the service is away: a minute, for it starts again within some seconds."""

from __future__ import annotations

import time

from rubato.client.transport import is_away
from rubato.errors import RubatoError

AWAY_S = 60.0
"""A wait goes on while the service is away for no longer."""
AWAY_POLL_S = 1.0


class Absence:
    """Of the service, as one wait sees it."""

    def __init__(self) -> None:
        self._since: float | None = None

    def bear(self, error: RubatoError) -> None:
        """The service did not answer; wait `AWAY_POLL_S` and ask again.

        Raises:
            RubatoError: the error itself, where it tells something else, or the service has been away for too long.
        """
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        if not is_away(error) or now - self._since > AWAY_S:
            raise error

    def end(self) -> None:
        """It answered."""
        self._since = None
