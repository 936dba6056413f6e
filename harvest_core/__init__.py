"""Background work on PostgreSQL that lands on the right worker: the public surface, and nothing else."""

from harvest_core.activity import RegisteredActivity
from harvest_core.app import Harvest
from harvest_core.client import Call, Client, Task
from harvest_core.errors import (
    BuildError,
    DatabaseUnavailableError,
    EnqueueError,
    HarvestError,
    HookError,
    LocalActivityError,
    LostClaimError,
    NonRetryableError,
    PayloadError,
    Problem,
    SchemaError,
    TaskFailedError,
    TaskNotFoundError,
    UnknownActivityError,
)
from harvest_core.model import Retry
from harvest_core.worker.context import CurrentTask, current_task
from harvest_core.worker.worker import Worker

__all__ = [
    "BuildError",
    "Call",
    "Client",
    "CurrentTask",
    "DatabaseUnavailableError",
    "EnqueueError",
    "Harvest",
    "HarvestError",
    "HookError",
    "LocalActivityError",
    "LostClaimError",
    "NonRetryableError",
    "PayloadError",
    "Problem",
    "RegisteredActivity",
    "Retry",
    "SchemaError",
    "Task",
    "TaskFailedError",
    "TaskNotFoundError",
    "UnknownActivityError",
    "Worker",
    "current_task",
]
