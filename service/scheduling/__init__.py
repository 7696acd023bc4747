"""The scheduler: who starts, who grows, who gives back, and why."""
