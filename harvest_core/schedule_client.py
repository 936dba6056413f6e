"""What a client does with schedules: look, put, pause, resume, trigger, delete."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harvest_core.activity import RegisteredActivity
from harvest_core.build import Build
from harvest_core.errors import ScheduleError, ScheduleNotFoundError, near_match
from harvest_core.schedule import Schedule
from harvest_core.scheduling import new_schedule
from harvest_core.store.postgres import schedules as store
from harvest_core.store.postgres.database import Database
from harvest_core.store.postgres.schedules import ScheduleStatus


class ScheduleClient:
    """The part of a client that concerns schedules."""

    _build: Build
    if TYPE_CHECKING:

        @property
        def database(self) -> Database: ...  # noqa: D102 - the client's

    async def schedules(self) -> list[ScheduleStatus]:
        """Return every schedule, by name."""
        return await store.schedule_statuses(self.database)

    async def put_schedule(
        self,
        name: str,
        activity: RegisteredActivity[..., Any] | str,
        /,
        *args: Any,
        cron: str | None = None,
        every: str | float | None = None,
        timezone: str | None = None,
        catch_up: str = "one",
        overlap: str = "skip",
        kwargs: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> bool:
        """Write a schedule, or change one of that name; False where it was so already. A pause stays.

        Args:
            name: unique in the database.
            activity: the declared activity, or its name.
            args: positional arguments of its tasks.
            cron: as all that follow, as of `Harvest.schedule`.
            every: a length of time in place of cron.
            timezone: in which cron is read.
            catch_up: "none", "one" or "all".
            overlap: "skip", "allow" or "buffer_one".
            kwargs: keyword arguments of its tasks.
            options: of the enqueue.

        Raises:
            ScheduleError: its times cannot be read or never come, or code declares a schedule of that name.
            EnqueueError, PayloadError, LocalActivityError: as of an enqueue of its call.
        """
        schedule = Schedule(name, activity, args, kwargs, cron, every, timezone, catch_up, overlap, options)
        made = new_schedule(self._build, schedule, declared=False)
        if await store.put_schedules(self.database, [made]):
            return True
        found = await store.schedule_status(self.database, name)
        if found is not None and found.declared:
            msg = f"schedule {name!r} is declared in code: change it there, or choose another name"
            raise ScheduleError(msg)
        return False

    async def pause_schedule(self, name: str) -> None:
        """Pause a schedule: no tick is enqueued from now on; those that come meanwhile do not count.

        Raises:
            ScheduleNotFoundError: there is none of that name.
        """
        if not await store.pause_schedule(self.database, name):
            await self._refuse_unknown(name)

    async def resume_schedule(self, name: str) -> bool:
        """Resume a schedule with its next tick; False where it was not paused.

        `next_at` is None until a worker works that tick out: soon where one runs, else when one starts.

        Raises:
            ScheduleNotFoundError: there is none of that name.
        """
        resumed = await store.resume_schedule(self.database, name)
        if not resumed:
            await self._refuse_unknown(name)
        return resumed

    async def trigger_schedule(self, name: str) -> int | None:
        """Enqueue a task of a schedule now, paused or not, and return its id; None where its overlap leaves no room.

        Raises:
            ScheduleNotFoundError: there is none of that name.
        """
        await self._refuse_unknown(name)
        notify = self._build.config.harvest.notify
        return await store.trigger_schedule(self.database, name, notify=notify)

    async def delete_schedule(self, name: str) -> None:
        """Remove a schedule; its tasks stay.

        Raises:
            ScheduleNotFoundError: there is none of that name.
            ScheduleError: live workers declare it, and would again.
        """
        if not await store.delete_schedule(self.database, name):
            await self._refuse_unknown(name)
            msg = f"schedule {name!r} is declared in the code of live workers: take it out there, or pause it"
            raise ScheduleError(msg)

    async def _refuse_unknown(self, name: str) -> None:
        if await store.schedule_status(self.database, name) is None:
            known = [found.name for found in await self.schedules()]
            hint = near_match(name, known) or f"there are: {', '.join(known) or 'none'}"
            msg = f"no schedule {name!r}: {hint}"
            raise ScheduleNotFoundError(msg)
