"""Load on the real service: requests sent at their times, whatever became of those before."""
