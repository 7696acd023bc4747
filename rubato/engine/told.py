"""What a program was told already: it is not told the same at every step."""

from __future__ import annotations


class Told:
    """Of one training process."""

    def __init__(self) -> None:
        self.misses_loss = False
        """That it leaves out step.backward."""
        self._in_a_row = 0

    def count_not_finite(self) -> int | None:
        """One step more whose gradient was not finite. How many in a row, where it is time to say so; None: it is not.

        It is at the first of them, the second, the fourth, and so on.
        """
        self._in_a_row += 1
        return self._in_a_row if self._in_a_row.bit_count() == 1 else None

    def count_finite(self) -> None:
        """A step whose gradient was finite."""
        self._in_a_row = 0
