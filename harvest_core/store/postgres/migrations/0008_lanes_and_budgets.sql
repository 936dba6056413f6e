-- Running tasks whose key another task has taken over: they finish their attempt and get no further one. A table of its
-- own, so that an open enqueue never locks the row of a running task.
create table {schema}.replaced (
    task_id bigint primary key,
    by_id bigint not null
);

-- A lane lets at most so many of its tasks run at once: only so many are pending, suspect or running, the others blocked.
-- Its row is the lock under which that is decided, and the memory of its starts: one that could not be read would stop
-- every other lane too, so nothing else can be written.
create table {schema}.lanes (
    lane text primary key,
    used jsonb not null default '{{}}' check (used::text ~ '^\{{("\d{{1,15}}": \d{{1,9}}(, )?)*\}}$'),
    open_at timestamptz  -- when its rate next allows a start
);
create index lanes_open on {schema}.lanes (open_at) where open_at is not null;

-- Limits of the lanes of one name, the part of the lane before the first slash.
create table {schema}.lane_limits (
    name text primary key,
    concurrency integer check (concurrency >= 0),
    starts integer check (starts >= 0),
    period double precision not null check (period between 0.001 and 1e10),
    check (concurrency is not null or starts is not null)
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
    used jsonb not null default '{{}}' check (used::text ~ '^\{{("\d{{1,15}}": \d{{1,9}}(, )?)*\}}$')
);
