"""What becomes of a delivery after a try. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from service.webhooks.sending import Sent
from service.webhooks.topics import TEST_KIND

DeliveryStatus = Literal["pending", "delivered", "failed"]

MAX_TRIES = 10
"""With the waits below the last one comes after most of a day: long enough for somebody to notice and mend."""
FIRST_WAIT_S = 5.0
FACTOR = 4.0
LONGEST_WAIT_S = 6 * 3600.0
GONE = 410
"""By the Standard Webhooks: the endpoint wants no more of it."""


@dataclass(frozen=True)
class DeliveryDecision:
    """How a delivery goes on, and why."""

    status: DeliveryStatus
    wait: timedelta | None
    """Until the next try."""
    because: str


def decide_delivery(sent: Sent, kind: str, tries: int, spread: float) -> DeliveryDecision:
    """Delivered, tried again later, or given up.

    Args:
        sent: what came of the last try.
        kind: of the event; a test is tried once.
        tries: how many there were, this one among them.
        spread: random, 0 to 1: so that what failed together is not tried together.
    """
    if not sent.error:
        return DeliveryDecision("delivered", None, "")
    if sent.status == GONE:
        return DeliveryDecision("failed", None, f"{sent.error} It wants no more of it, and was not tried again.")
    if kind == TEST_KIND:
        return DeliveryDecision("failed", None, sent.error)
    if tries >= MAX_TRIES:
        return DeliveryDecision("failed", None, f"{sent.error} It was given up after {tries} tries.")
    wait_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * FACTOR ** (tries - 1)) * (1.0 - spread / 2)
    return DeliveryDecision("pending", timedelta(seconds=wait_s), sent.error)
