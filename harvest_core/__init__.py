"""Background work on PostgreSQL that lands on the right worker: the public surface, and nothing else.

Names are imported when they are first used: a plugin that imports `harvest_core.plugin` loads no database driver.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harvest_core.activity import RegisteredActivity
    from harvest_core.app import Harvest
    from harvest_core.claimed import ClaimedTask
    from harvest_core.claimer import Claimer
    from harvest_core.client import Client, Task
    from harvest_core.enqueue import Call
    from harvest_core.errors import (
        BackendError,
        BuildError,
        DatabaseUnavailableError,
        EnqueueError,
        HarvestError,
        HookError,
        KeyTakenError,
        LocalActivityError,
        LostClaimError,
        MissingRightError,
        NonRetryableError,
        PayloadError,
        Problem,
        ScheduleError,
        ScheduleNotFoundError,
        SchemaError,
        TaskFailedError,
        TaskNotFoundError,
        UnknownActivityError,
    )
    from harvest_core.model import Retry
    from harvest_core.sync import SyncClaimedTask, SyncClaimer, SyncClient, SyncTask, SyncWorker
    from harvest_core.worker.context import CurrentTask, current_task
    from harvest_core.worker.worker import Worker

__all__ = [
    "BackendError",
    "BuildError",
    "Call",
    "ClaimedTask",
    "Claimer",
    "Client",
    "CurrentTask",
    "DatabaseUnavailableError",
    "EnqueueError",
    "Harvest",
    "HarvestError",
    "HookError",
    "KeyTakenError",
    "LocalActivityError",
    "LostClaimError",
    "MissingRightError",
    "NonRetryableError",
    "PayloadError",
    "Problem",
    "RegisteredActivity",
    "Retry",
    "ScheduleError",
    "ScheduleNotFoundError",
    "SchemaError",
    "SyncClaimedTask",
    "SyncClaimer",
    "SyncClient",
    "SyncTask",
    "SyncWorker",
    "Task",
    "TaskFailedError",
    "TaskNotFoundError",
    "UnknownActivityError",
    "Worker",
    "current_task",
]

_HOMES = {
    "RegisteredActivity": "activity",
    "Harvest": "app",
    "Call": "enqueue",
    "ClaimedTask": "claimed",
    "Claimer": "claimer",
    "Client": "client",
    "Task": "client",
    "Retry": "model",
    "SyncClaimedTask": "sync",
    "SyncClaimer": "sync",
    "SyncClient": "sync",
    "SyncTask": "sync",
    "SyncWorker": "sync",
    "CurrentTask": "worker.context",
    "current_task": "worker.context",
    "Worker": "worker.worker",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
