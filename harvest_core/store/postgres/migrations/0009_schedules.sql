-- Schedules. Whoever changes a row gives it a new version, so that whoever acts on a row names the one it read.
create sequence {schema}.schedule_versions;
create table {schema}.schedules (
    name text primary key,
    version bigint not null default nextval('{schema}.schedule_versions'),
    activity text not null,
    args jsonb not null,
    kwargs jsonb not null,
    traits jsonb not null,
    options jsonb not null,  -- of the enqueue: queue, priority …
    cron text,
    every double precision check (every >= 1),  -- seconds
    timezone text not null,
    catch_up text not null check (catch_up in ('none', 'one', 'all')),
    overlap text not null check (overlap in ('skip', 'allow', 'buffer_one')),
    declared boolean not null,  -- by the code of an app, not by a client
    paused_at timestamptz,
    undeclared_at timestamptz,  -- a tick was due while no live worker declared it
    counts_from timestamptz not null default now(),  -- no tick up to here counts
    next_at timestamptz default now(),  -- up to counts_from: not worked out yet; NULL: never again
    last_at timestamptz,
    last_task_id bigint,
    task_ids bigint[] not null default '{{}}',  -- its tasks that may be unfinished
    error text,
    check ((cron is null) <> (every is null)),
    -- What every worker can read: one row that none can read would stop all schedules.
    check (least(counts_from, next_at) >= '0002-01-01' and greatest(counts_from, next_at) < '9000-01-01')
);
create index schedules_next on {schema}.schedules (next_at) where paused_at is null and undeclared_at is null;

-- The schedules that a worker's app declares.
alter table {schema}.workers add column schedules text[] not null default '{{}}';
