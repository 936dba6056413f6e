-- All tables of a file. Times are microseconds since 1970, UTC; JSON is text.
create table tasks (
    id integer primary key autoincrement,
    queue text not null,
    name text not null,
    traits text not null,
    priority integer not null,
    state text not null,
    attempt integer not null default 0,
    max_attempts integer not null,
    scheduled_at integer not null,
    enqueued_at integer not null,
    claimed_at integer,
    finished_at integer,
    worker_id text,
    token integer,  -- of the live claim; only a running task has one
    cancelled_at integer,  -- its running attempt is asked to stop
    crashes integer not null default 0,
    key text,
    start_to_close real,
    heartbeat real,
    args text not null,
    kwargs text not null,
    result text,
    error text,
    traceback text,
    details text
);
create index tasks_ready on tasks (queue, state, priority desc, scheduled_at, id);
create index tasks_due on tasks (scheduled_at) where state = 'scheduled';
create index tasks_running on tasks (worker_id) where state = 'running';
create index tasks_finished on tasks (finished_at) where finished_at is not null;
create unique index tasks_key on tasks (name, key) where key is not null and finished_at is null;
create table workers (
    id text primary key,
    ttl integer not null,
    beaten_at integer not null,
    schedules text not null default '[]'  -- names of those that its app declares
);
create table queues (
    name text primary key,
    paused_at integer not null
);
create table settings (
    key text primary key,
    value text not null,
    version integer not null
);
create table schedules (
    name text primary key,
    version integer not null,  -- fresh with every change, so that whoever acts on a row names the one it read
    activity text not null,
    args text not null,
    kwargs text not null,
    traits text not null,
    options text not null,
    cron text,
    every real,
    timezone text not null,
    catch_up text not null,
    overlap text not null,
    declared integer not null,
    paused_at integer,
    undeclared_at integer,
    counts_from integer not null,
    next_at integer,
    last_at integer,
    last_task_id integer,
    task_ids text not null default '[]',  -- its tasks that may be unfinished
    error text
);
