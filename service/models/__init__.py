"""The tables, one class each."""

from service.models.base import (
    NAMING,
    Base,
    Json,
    Moment,
)
from service.models.clusters import (
    Cluster,
    Lease,
)
from service.models.jobs import (
    DELETED,
    HISTORIES,
    NOT_FINAL,
    PLACED,
    POSITIONED,
    QUEUED,
    TIMED,
    Attempt,
    Checkpoint,
    Event,
    Job,
    Metric,
    MetricRollup,
    Package,
    WorkerActionRow,
)
from service.models.people import (
    AttemptSecret,
    AuditEntry,
    Membership,
    Project,
    Secret,
    Session,
    StoredReply,
    Token,
    User,
)
from service.models.webhooks import (
    Delivery,
    Webhook,
)

__all__ = [
    "DELETED",
    "HISTORIES",
    "NAMING",
    "NOT_FINAL",
    "PLACED",
    "POSITIONED",
    "QUEUED",
    "TIMED",
    "Attempt",
    "AttemptSecret",
    "AuditEntry",
    "Base",
    "Checkpoint",
    "Cluster",
    "Delivery",
    "Event",
    "Job",
    "Json",
    "Lease",
    "Membership",
    "Metric",
    "MetricRollup",
    "Moment",
    "Package",
    "Project",
    "Secret",
    "Session",
    "StoredReply",
    "Token",
    "User",
    "Webhook",
    "WorkerActionRow",
]
