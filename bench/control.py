"""What an operator waits for: cancel, retry and pause of very many tasks, each one statement, and pruning."""

from collections.abc import Iterator

import psycopg
from ground import Figure, Ground, add_tasks, answer, connect, seconds

PRUNE = 1.0
_OLD = "finished_20200101"
_FINISHED = f"""
insert into harvest.{_OLD} (id, finished_at, scheduled_at, enqueued_at, priority, attempt, max_attempts, state, queue,
                            kind, name, traits, args, kwargs, result)
select nextval('harvest.task_ids'), '2020-01-01 12:00Z', now(), now(), 0, 1, 5, 'completed', 'busy', 'activity', 'work',
       '{{}}', '["something"]', '{{}}', '"done"'
from generate_series(1, %s)
"""


def figures(ground: Ground) -> Iterator[Figure]:
    """Measure each statement once, on tasks that nothing has touched yet."""
    size = ground.size(100_000, 10_000)
    with ground.database() as dsn, connect(dsn) as connection:
        add_tasks(connection, [("busy", "work")], size)
        connection.execute("vacuum analyze harvest.tasks")
        for name, text, expected in (
            ("paused", "select harvest.pause_queue('busy')", True),
            ("resumed", "select harvest.resume_queue('busy')", True),
            ("cancelled", "select cancelled from harvest.cancel(of_queue => 'busy')", size),
            (
                "put back",
                "select count(*) from harvest.retry_finished(of_queue => 'busy', of_states => '{cancelled}')",
                size,
            ),
        ):
            yield Figure(f"{size:,} tasks {name}", seconds(lambda: _answers(connection, text, expected)), "s")  # noqa: B023
        finished = ground.size(1_000_000, 50_000)
        connection.execute(f"create table harvest.{_OLD} (like harvest.finished including all)")
        connection.execute(
            f"alter table harvest.finished attach partition harvest.{_OLD} "
            "for values from ('2020-01-01Z') to ('2020-01-02Z')"
        )
        connection.execute(_FINISHED, [finished])
        took = seconds(lambda: _answers(connection, "select harvest.prune_finished(86400)", 1))
        yield Figure(f"{finished:,} finished tasks pruned", took, "s", PRUNE)


def _answers(connection: psycopg.Connection, text: str, expected: object) -> None:
    found = answer(connection, text)
    if found != expected:
        msg = f"{text} answered {found}, not {expected}: this measured something else"
        raise RuntimeError(msg)
