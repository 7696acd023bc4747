"""A typed HTTP client of the Rubato service. Never imports torch.

from rubato.client import AsyncClient, Client

with Client() as client:
    job = client.submit({"name": "digits", "recipe": "image-classifier"})
    job = client.scale(job.id, 4)
    for event in client.follow_events(job.id):
        print(event.message)

`AsyncClient` has the same methods, to be awaited.
"""

from rubato.client.api import AsyncClient, Client
from rubato.client.models import (
    Attempt,
    Checkpoint,
    Cluster,
    Event,
    Explanation,
    Job,
    JobUpdate,
    LogLine,
    MetricPoint,
    Node,
    Standing,
    Worker,
)
from rubato.errors import ApiError, ApiForbidden, ApiNotFound, ApiUnauthenticated, ServiceUnreachable

__all__ = [
    "ApiError",
    "ApiForbidden",
    "ApiNotFound",
    "ApiUnauthenticated",
    "AsyncClient",
    "Attempt",
    "Checkpoint",
    "Client",
    "Cluster",
    "Event",
    "Explanation",
    "Job",
    "JobUpdate",
    "LogLine",
    "MetricPoint",
    "Node",
    "ServiceUnreachable",
    "Standing",
    "Worker",
]
