-- The schema of Harvest. {schema} is the configured schema name; every other brace is doubled.
-- Every time is the database's clock. No table but routes knows a policy's data, and it knows it only as `traits`.

create type {schema}.task_state as enum ('scheduled', 'pending', 'running', 'completed', 'failed', 'cancelled');

-- Routing identities. No unique constraint: an enqueue uses a visible route or inserts its own, so it never waits for
-- another's open transaction. Duplicates are harmless; the oldest is used and the others drain and are cleaned up.
create table {schema}.routes (
    id bigint generated always as identity primary key,
    queue text not null,
    kind text not null,
    name text not null,
    traits jsonb not null
);
create index routes_identity on {schema}.routes (queue, name, md5(traits::text));

create sequence {schema}.task_ids;
create sequence {schema}.tokens;

-- Unfinished tasks: small and hot. No foreign key to routes, which would lock the hot route row at every insert.
create table {schema}.tasks (
    id bigint primary key default nextval('{schema}.task_ids'),
    route_id bigint not null,
    scheduled_at timestamptz not null,
    enqueued_at timestamptz not null default now(),
    claimed_at timestamptz,
    deadline timestamptz,
    token bigint,
    worker_id uuid,
    priority integer not null,
    attempt integer not null default 0,
    max_attempts integer not null,
    start_to_close double precision,
    heartbeat double precision,
    state {schema}.task_state not null,
    key text,
    args jsonb not null,
    kwargs jsonb not null,
    details jsonb,
    error text,
    traceback text
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_analyze_scale_factor = 0.05);
alter sequence {schema}.task_ids owned by {schema}.tasks.id;
create index tasks_ready on {schema}.tasks (route_id, priority desc, scheduled_at, id) where state = 'pending';
create index tasks_due on {schema}.tasks (scheduled_at, id) where state = 'scheduled';
create index tasks_due_route on {schema}.tasks (route_id) where state = 'scheduled';
create index tasks_running on {schema}.tasks (deadline) include (id, worker_id, route_id) where state = 'running';

create table {schema}.finished (
    id bigint not null,
    finished_at timestamptz not null default now(),
    scheduled_at timestamptz not null,
    enqueued_at timestamptz not null,
    claimed_at timestamptz,
    worker_id uuid,
    priority integer not null,
    attempt integer not null,
    max_attempts integer not null,
    state {schema}.task_state not null,
    queue text not null,
    kind text not null,
    name text not null,
    traits jsonb not null,
    key text,
    args jsonb not null,
    kwargs jsonb not null,
    result jsonb,
    error text,
    traceback text,
    primary key (finished_at, id)
) partition by range (finished_at);
create index finished_id on {schema}.finished (id);

-- One live task per key of an activity.
create table {schema}.keys (
    name text not null,
    key text not null,
    task_id bigint not null,
    primary key (name, key)
);
create index keys_task on {schema}.keys (task_id);

-- Defaults of activities, published by workers, so that an enqueue from plain SQL gets them too.
create table {schema}.activities (
    name text primary key,
    queue text not null,
    priority integer not null,
    max_attempts integer not null,
    retry_initial double precision not null,
    retry_factor double precision not null,
    retry_maximum double precision not null,
    retry_jitter double precision not null,
    start_to_close double precision,
    heartbeat double precision
);

create table {schema}.workers (
    id uuid primary key,
    name text not null,
    queues text[] not null,
    activities text[] not null,
    concurrency integer not null,
    plugins text[] not null,
    facts jsonb not null,
    live jsonb not null,
    live_at timestamptz not null default now(),
    ttl double precision not null,
    host text not null,
    pid integer not null,
    asleep boolean not null default false,
    draining boolean not null default false,
    started_at timestamptz not null default now(),
    beaten_at timestamptz not null default now()
);

create table {schema}.queues (
    name text primary key,
    paused_at timestamptz
);

create sequence {schema}.setting_versions;
create table {schema}.settings (
    key text primary key,
    value jsonb not null,
    version bigint not null default nextval('{schema}.setting_versions'),
    changed_at timestamptz not null default now()
);
