-- Deadlines, cancellation, quarantine, keys for a period, lanes, budgets and prefetching. Every column has a default that
-- means "none", so that statements of version 0.1 go on.

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

alter table {schema}.finished
    add column start_to_close double precision,
    add column heartbeat double precision,
    add column schedule_to_start double precision,
    add column schedule_to_close double precision,
    add column lane text;

alter table {schema}.activities
    add column schedule_to_start double precision,
    add column schedule_to_close double precision;

alter table {schema}.queues
    add column paused_for interval not null default '0',  -- all past pauses
    add column resumed_at timestamptz;

-- A key with a time of expiry outlives its task; one without belongs to a task that has not ended.
alter table {schema}.keys add column expires_at timestamptz;
create index keys_expired on {schema}.keys (expires_at) where expires_at is not null;

-- Running tasks whose key another task has taken over: they finish their attempt and get no further one. A table of its
-- own, so that an open enqueue never locks the row of a running task.
create table {schema}.replaced (
    task_id bigint primary key,
    by_id bigint not null
);

-- A lane lets at most so many of its tasks run at once: only so many are pending, suspect or running, the others blocked.
-- Its row is the lock under which that is decided, and the memory of its starts.
create table {schema}.lanes (
    lane text primary key,
    used jsonb not null default '{{}}',
    open_at timestamptz  -- when its rate next allows a start
);
create index lanes_open on {schema}.lanes (open_at) where open_at is not null;

-- Limits of the lanes of one name, the part of the lane before the first slash.
create table {schema}.lane_limits (
    name text primary key,
    concurrency integer,
    starts integer,
    period double precision not null
);

-- Lanes to look at, with the start of the attempt that ended, if one did. Who may wait in a transaction of its own (an
-- enqueue, a cancel) leaves a line here instead of taking the lane's lock.
create table {schema}.lane_news (
    lane text not null,
    started_at timestamptz
);
create index lane_news_lane on {schema}.lane_news (lane);

-- Shares that the claims of the whole fleet draw from.
create table {schema}.budgets (
    name text primary key,
    used jsonb not null default '{{}}'
);
