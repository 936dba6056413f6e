"""What policies cost: a real worker with all four on against one with none, and the statements of a weighted poll."""

import asyncio
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from tempfile import TemporaryFile
from typing import Any

from ground import BATCH, Figure, Ground, interleaved, ratio
from prometheus_client import CollectorRegistry

from harvest_core import Call, Harvest
from harvest_core.metrics import KernelMetrics
from harvest_core.model import Worker
from harvest_core.store.postgres import workers
from harvest_core.store.postgres.database import Database
from harvest_core.worker.poll import Poller
from harvest_core.worker.refresh import Refreshes
...
