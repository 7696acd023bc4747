"""What tests of elastic training need: yours too."""

from rubato.testing.local_job import LocalJob, oracle

__all__ = ["LocalJob", "oracle"]
