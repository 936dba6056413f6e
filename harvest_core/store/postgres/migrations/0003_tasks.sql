-- Deadlines, cancellation, quarantine, lanes and prefetching. Every column has a default that means "none", so that
-- statements of version 0.1 go on. One table a transaction, here and in the next ones: a migration that held the lock of one
-- table while it waits for that of another could deadlock with a worker that locks them the other way round.

alter table {schema}.tasks
    add column schedule_to_start double precision,
    add column schedule_to_close double precision,
    add column start_by timestamptz,  -- by the clock of its queue, which stands still while the queue is paused
    add column close_by timestamptz,
    add column crashes integer not null default 0,
    add column lane text,
    add column prefetched_until timestamptz,  -- claimed but not started
    add column cancelled_at timestamptz;  -- its running attempt is asked to stop
create index tasks_suspect on {schema}.tasks (route_id, priority desc, scheduled_at, id) where state = 'suspect';
create index tasks_blocked on {schema}.tasks (lane, priority desc, scheduled_at, id) where state = 'blocked';
create index tasks_blocked_route on {schema}.tasks (route_id) where state = 'blocked';
create index tasks_lane on {schema}.tasks (lane) where lane is not null and state in ('pending', 'suspect', 'running');
create index tasks_start_by on {schema}.tasks (route_id, start_by)
    where start_by is not null and state in ('pending', 'blocked');
create index tasks_close_by on {schema}.tasks (close_by)
    where close_by is not null and state in ('pending', 'blocked', 'suspect');
create index tasks_cancelled on {schema}.tasks (worker_id) where cancelled_at is not null and state = 'running';
