-- The whole schema as version 0.1.0 made it, with the name `harvest`: what an upgrade begins from. Never edited.
create schema harvest;
create table harvest.migrations (version integer primary key, name text not null,
    applied_at timestamptz not null default now());
insert into harvest.migrations (version, name) values (1, '0001_initial');
-- The schema of Harvest. harvest is the configured schema name; every other brace is doubled.
-- Every time is the database's clock. No table but routes knows a policy's data, and it knows it only as `traits`.

create type harvest.task_state as enum ('scheduled', 'pending', 'running', 'completed', 'failed', 'cancelled');

-- Routing identities. No unique constraint: an enqueue uses a visible route or inserts its own, so it never waits for
-- another's open transaction. Duplicates are harmless; the oldest is used and the others drain and are cleaned up.
create table harvest.routes (
    id bigint generated always as identity primary key,
    queue text not null,
    kind text not null,
    name text not null,
    traits jsonb not null
);
create index routes_identity on harvest.routes (queue, name, md5(traits::text));

create sequence harvest.task_ids;
create sequence harvest.tokens;

-- Unfinished tasks: small and hot. No foreign key to routes, which would lock the hot route row at every insert.
create table harvest.tasks (
    id bigint primary key default nextval('harvest.task_ids'),
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
    state harvest.task_state not null,
    key text,
    args jsonb not null,
    kwargs jsonb not null,
    details jsonb,
    error text,
    traceback text
) with (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_analyze_scale_factor = 0.05);
alter sequence harvest.task_ids owned by harvest.tasks.id;
create index tasks_ready on harvest.tasks (route_id, priority desc, scheduled_at, id) where state = 'pending';
create index tasks_due on harvest.tasks (scheduled_at, id) where state = 'scheduled';
create index tasks_due_route on harvest.tasks (route_id) where state = 'scheduled';
create index tasks_running on harvest.tasks (deadline) include (id, worker_id, route_id) where state = 'running';

create table harvest.finished (
    id bigint not null,
    finished_at timestamptz not null default now(),
    scheduled_at timestamptz not null,
    enqueued_at timestamptz not null,
    claimed_at timestamptz,
    worker_id uuid,
    priority integer not null,
    attempt integer not null,
    max_attempts integer not null,
    state harvest.task_state not null,
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
create index finished_id on harvest.finished (id);

-- One live task per key of an activity.
create table harvest.keys (
    name text not null,
    key text not null,
    task_id bigint not null,
    primary key (name, key)
);
create index keys_task on harvest.keys (task_id);

-- Defaults of activities, published by workers, so that an enqueue from plain SQL gets them too.
create table harvest.activities (
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

create table harvest.workers (
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

create table harvest.queues (
    name text primary key,
    paused_at timestamptz
);

create sequence harvest.setting_versions;
create table harvest.settings (
    key text primary key,
    value jsonb not null,
    version bigint not null default nextval('harvest.setting_versions'),
    changed_at timestamptz not null default now()
);

-- ---------------------------------------------------------------------------------------------------- enqueue

-- The id of a visible route of this identity, or of a new one. Reading routes holds ACCESS SHARE to the end of the
-- caller's transaction, which keeps clean-up (ACCESS EXCLUSIVE) away from it. An older snapshot may still see a route
-- that clean-up has removed: there the row is locked, and PostgreSQL refuses a removed one.
create function harvest.route_of(wanted_queue text, wanted_kind text, wanted_name text, wanted_traits jsonb)
returns bigint language plpgsql volatile as $$
declare
    found_id bigint;
begin
    select r.id into found_id from harvest.routes r
    where r.queue = wanted_queue and r.name = wanted_name and md5(r.traits::text) = md5(wanted_traits::text)
      and r.kind = wanted_kind and r.traits = wanted_traits
    order by r.id limit 1;
    if found_id is not null and current_setting('transaction_isolation') <> 'read committed' then
        perform from harvest.routes r where r.id = found_id for key share;
    end if;
    if found_id is null then
        insert into harvest.routes (queue, kind, name, traits)
        values (wanted_queue, wanted_kind, wanted_name, wanted_traits)
        returning routes.id into found_id;
    end if;
    return found_id;
end $$;

-- Enqueue many tasks at once; the arrays are of one length, one entry a task. Returns one row a task, in order:
-- its id, and whether it is new (false: a task of that key was there already).
create function harvest.enqueue_many(
    names text[], args jsonb[], kwargs jsonb[], queues text[], priorities integer[], scheduled timestamptz[],
    delays double precision[], keys text[], traits jsonb[], attempts integer[], start_to_closes double precision[],
    heartbeats double precision[], notify boolean default true
) returns table (task_id bigint, created boolean) language plpgsql volatile as $$
declare
    wrong record;
    identity record;
    route_ids bigint[];
    route_queues text[];
    route_names text[];
    route_traits jsonb[];
    ids bigint[];
    owners bigint[];
begin
    select i.* into wrong
    from unnest(names, args, kwargs, queues, traits, attempts, scheduled, delays, start_to_closes, heartbeats)
        with ordinality i(name, args, kwargs, queue, traits, attempts, scheduled, delay, start_to_close, heartbeat, n)
    where coalesce(btrim(i.name), '') = '' or btrim(i.queue) = '' or i.attempts < 1
       or i.delay not between 0 and 1e10  -- NaN is above every number
       or i.scheduled not between '0002-01-01' and '9000-01-01'  -- what every client can hold; infinity is not
       or least(i.start_to_close, i.heartbeat) <= 0 or greatest(i.start_to_close, i.heartbeat) > 1e10
       or jsonb_typeof(i.args) is distinct from 'array' or jsonb_typeof(i.kwargs) is distinct from 'object'
       or jsonb_typeof(coalesce(i.traits, '{}')) <> 'object'
       or octet_length(i.args::text) + octet_length(i.kwargs::text) > 2 * 1024 * 1024
    limit 1;
    if found then
        raise exception 'harvest: task % (%) cannot be enqueued', wrong.n, coalesce(nullif(wrong.name, ''), 'no name')
            using errcode = 'invalid_parameter_value',
            hint = 'A name and a queue are not blank, args is a JSON array, kwargs and traits are JSON objects, '
                'max_attempts is at least 1, scheduled_at lies in the years 2 to 8999, delay is not negative, start_to_close and heartbeat are above 0, all of them '
                'below 1e10 seconds, and arguments take at most 2 MB.';
    end if;

    for identity in
        select distinct coalesce(i.queue, a.queue, 'default') as queue, i.name, coalesce(i.traits, '{}') as traits
        from unnest(names, queues, traits) i(name, queue, traits)
        left join harvest.activities a on a.name = i.name
        order by 1, 2, 3
    loop
        route_ids := route_ids || harvest.route_of(identity.queue, 'activity', identity.name, identity.traits);
        route_queues := route_queues || identity.queue;
        route_names := route_names || identity.name;
        route_traits := route_traits || identity.traits;
    end loop;

    select array_agg(nextval('harvest.task_ids')) into ids from generate_subscripts(names, 1);
    owners := ids;
    if exists (select from unnest(keys) k where k is not null) then
        -- In key order, so that two batches cannot deadlock. A key whose task finished meanwhile is tried again.
        loop
            insert into harvest.keys as k (name, key, task_id)
            select distinct on (i.name, i.key) i.name, i.key, i.id
            from unnest(names, enqueue_many.keys, ids) i(name, key, id) where i.key is not null
            order by i.name, i.key, i.id
            on conflict do nothing;
            -- An old snapshot still sees a freed key beside its own new one: the newest is the one that counts.
            select array_agg(case when i.key is null then i.id else (
                       select max(k.task_id) from harvest.keys k where k.name = i.name and k.key = i.key) end order by i.n)
            into owners from unnest(names, enqueue_many.keys, ids) with ordinality i(name, key, id, n);
            exit when array_position(owners, null) is null;
        end loop;
    end if;

    insert into harvest.tasks (id, route_id, scheduled_at, priority, max_attempts, start_to_close, heartbeat, state,
                                key, args, kwargs)
    select i.id, r.id, w.due, coalesce(i.priority, a.priority, 0), coalesce(i.attempts, a.max_attempts, 5),
           coalesce(i.start_to_close, a.start_to_close), coalesce(i.heartbeat, a.heartbeat),
           case when w.due > now() then 'scheduled' else 'pending' end::harvest.task_state, i.key, i.args, i.kwargs
    from unnest(names, enqueue_many.args, enqueue_many.kwargs, queues, priorities, scheduled, delays,
                enqueue_many.keys, enqueue_many.traits, attempts, start_to_closes, heartbeats, ids, owners)
        i(name, args, kwargs, queue, priority, scheduled, delay, key, traits, attempts, start_to_close, heartbeat,
          id, owner)
    cross join lateral (
        select coalesce(i.scheduled, now()) + make_interval(secs => coalesce(i.delay, 0)) as due
    ) w
    left join harvest.activities a on a.name = i.name
    join unnest(route_ids, route_queues, route_names, route_traits) r(id, queue, name, traits)
        on r.queue = coalesce(i.queue, a.queue, 'default') and r.name = i.name
        and r.traits = coalesce(i.traits, '{}')
    where i.owner = i.id;

    if notify then
        perform pg_notify('harvest', q.queue)
        from (select distinct unnest(route_queues) as queue) q
        where exists (select from harvest.workers w where w.asleep and q.queue = any(w.queues));
    end if;

    return query select o.owner, o.owner = o.id from unnest(owners, ids) with ordinality o(owner, id, n) order by o.n;
end $$;

-- Enqueue one task from any client, inside the caller's transaction: the contract for other languages.
--   select harvest.enqueue('send_mail', args => '["x@example.org"]', queue => 'mail', traits => '{"flags": ["vip"]}');
-- Times: delay in seconds or scheduled_at; not both. Returns the task's id, an unfinished task's of the same key if any.
create function harvest.enqueue(
    name text, args jsonb default '[]', kwargs jsonb default '{}', queue text default null,
    priority integer default null, scheduled_at timestamptz default null, delay double precision default null,
    key text default null, traits jsonb default '{}', max_attempts integer default null,
    start_to_close double precision default null, heartbeat double precision default null, notify boolean default true
) returns bigint language sql volatile as $$
    select task_id from harvest.enqueue_many(
        array[name], array[args], array[kwargs], array[queue], array[priority], array[scheduled_at], array[delay],
        array[key], array[traits], array[max_attempts], array[start_to_close], array[heartbeat], notify)
$$;

-- A set of labels in the one form that every client writes: sorted, distinct, without NULL. Equal sets are one route.
--   select harvest.enqueue('build', traits => jsonb_build_object('flags', harvest.label_set('vip', 'linux')));
create function harvest.label_set(variadic labels text[]) returns jsonb language sql immutable as $$
    select coalesce(jsonb_agg(l.label), '[]') from (
        select distinct u.label collate "C" as label from unnest(labels) u(label) where u.label is not null order by 1
    ) l
$$;

-- ------------------------------------------------------------------------------------------------------ claim

-- Take the best n tasks of the given routes for a worker: one cursor per route, merged by (tier, turn, K2).
--
-- Routes come as parallel arrays sorted by (lane, head), head being their best task in the caller's snapshot: a lower
-- bound of what a cursor will find. A cursor is opened, and so its first row locked, only when its route's bound is the
-- best of its lane: a claim locks what it takes plus one head for each route that could have won, and waits for none.
-- Lanes are the queues, or one lane for all of them where no plugin owns the order; lane i has tiers[i], starts[i] and
-- steps[i], and its k-th task the turn start + k * step. The limit in the cursors is for the planner, which would cost
-- the whole route without it.
create function harvest.claim(
    routes bigint[], lanes integer[], priorities integer[], times timestamptz[], ids bigint[],
    tiers integer[], starts bigint[], steps bigint[], worker uuid, n integer
) returns table (
    ordinal bigint, turn bigint, id bigint, route_id bigint, token bigint, attempt integer, max_attempts integer,
    priority integer, scheduled_at timestamptz, enqueued_at timestamptz, start_to_close double precision,
    heartbeat double precision, args jsonb, kwargs jsonb
) language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
    -- Lane i has its routes at firsts[i] .. lasts[i]. Before nexts[i] their cursors are open, and priorities, times and
    -- ids hold heads; from nexts[i] on they hold bounds. An exhausted route is overwritten by the first.
    firsts integer[] := array_fill(1, array[cardinality(tiers)]);
    nexts integer[];
    lasts integer[] := array_fill(0, array[cardinality(tiers)]);
    cursors refcursor[] := array_fill(null::refcursor, array[cardinality(routes)]);
    taken bigint[] := '{}';
    turns bigint[] := '{}';
    slot record;
    lane integer;
    best integer;
    one refcursor;
    is_open boolean;
    head record;
    claim_token bigint;
begin
    for i in reverse cardinality(routes) .. 1 loop
        firsts[lanes[i]] := i;
        lasts[lanes[i]] := greatest(lasts[lanes[i]], i);
    end loop;
    nexts := firsts;

    <<slots>>
    for slot in
        -- From unnest, which the planner takes for few rows: for a million it would compile the query first (JIT).
        select l.lane, l.start + k * l.step as turn
        from unnest(tiers, starts, steps) with ordinality l(tier, start, step, lane) cross join generate_series(1, n) k
        order by l.tier, turn, l.lane
    loop
        lane := slot.lane;
        while firsts[lane] <= lasts[lane] loop
            best := firsts[lane];
            for i in best + 1 .. least(nexts[lane], lasts[lane]) loop
                if (-priorities[i]::bigint, times[i], ids[i]) < (-priorities[best]::bigint, times[best], ids[best]) then
                    best := i;
                end if;
            end loop;

            one := cursors[best];
            is_open := one is not null;
            if is_open then
                taken := taken || ids[best];
                turns := turns || slot.turn;
                exit slots when cardinality(taken) = n;
            else
                open one for
                    select t.id, t.priority, t.scheduled_at from harvest.tasks t
                    where t.route_id = routes[best] and t.state = 'pending'
                    order by t.priority desc, t.scheduled_at, t.id limit n for update skip locked;
                cursors[best] := one;
                nexts[lane] := best + 1;
            end if;

            fetch one into head;
            if found then
                priorities[best] := head.priority;
                times[best] := head.scheduled_at;
                ids[best] := head.id;
            else
                close one;
                cursors[best] := cursors[firsts[lane]];
                priorities[best] := priorities[firsts[lane]];
                times[best] := times[firsts[lane]];
                ids[best] := ids[firsts[lane]];
                firsts[lane] := firsts[lane] + 1;
            end if;
            exit when is_open;
        end loop;
    end loop;
    if cardinality(taken) = 0 then
        return;
    end if;

    claim_token := nextval('harvest.tokens');
    return query
    with claimed as (
        update harvest.tasks t
        set state = 'running', attempt = t.attempt + 1, token = claim_token, worker_id = worker, claimed_at = now(),
            deadline = now() + make_interval(secs => least(t.start_to_close, t.heartbeat)), details = null
        where t.id = any(taken)
        returning t.*, array_position(taken, t.id) as n
    )
    select c.n::bigint, turns[c.n], c.id, c.route_id, c.token, c.attempt, c.max_attempts, c.priority, c.scheduled_at,
           c.enqueued_at, c.start_to_close, c.heartbeat, c.args, c.kwargs
    from claimed c order by c.n;
end $$;

-- Move due tasks to pending, at most `batch`. Returns how many, and the seconds until the next one is due.
create function harvest.promote(batch integer) returns table (promoted integer, next_due double precision)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    due bigint[];
begin
    select array_agg(d.id) into due from (
        select t.id from harvest.tasks t where t.state = 'scheduled' and t.scheduled_at <= now()
        order by t.scheduled_at, t.id limit batch for update skip locked
    ) d;
    update harvest.tasks t set state = 'pending' where t.id = any(due);
    return query select coalesce(cardinality(due), 0), (
        select extract(epoch from t.scheduled_at - now())::double precision from harvest.tasks t
        where t.state = 'scheduled' order by t.scheduled_at, t.id limit 1);
end $$;

-- ------------------------------------------------------------------------------------------------------ finish
-- Every function below changes only tasks whose live claim carries the given token, and returns the ids it changed: a
-- holder that lost its claim changes nothing and is told so. Only a running task has a token, so they ask for no state:
-- named, it would let the planner walk tasks_running, which holds the claims of all workers, in place of the given ids.

-- Move finished claims to `finished` and free their keys. One entry a task in each array.
create function harvest.finish(
    ids bigint[], held_tokens bigint[], states text[], results jsonb[], errors text[], tracebacks text[]
) returns setof bigint language plpgsql volatile  -- keeps its plan, which language sql does from 18 on only
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan as $$
begin
    return query
    with gone as (
        delete from harvest.tasks t using unnest(ids, held_tokens, states, results, errors, tracebacks)
            o(id, token, state, result, error, traceback)
        where t.id = o.id and t.token = o.token
        returning t.*, o.state::harvest.task_state as outcome, o.result, coalesce(o.error, t.error) as last_error,
                  coalesce(o.traceback, t.traceback) as last_traceback
    ), freed as (
        delete from harvest.keys k using gone g where g.key is not null and k.task_id = g.id
    )
    insert into harvest.finished (id, scheduled_at, enqueued_at, claimed_at, worker_id, priority, attempt, max_attempts,
                                   state, queue, kind, name, traits, key, args, kwargs, result, error, traceback)
    select g.id, g.scheduled_at, g.enqueued_at, g.claimed_at, g.worker_id, g.priority, g.attempt, g.max_attempts,
           g.outcome, coalesce(r.queue, ''), coalesce(r.kind, ''), coalesce(r.name, ''), coalesce(r.traits, '{}'),
           g.key, g.args, g.kwargs, g.result, g.last_error, g.last_traceback
    from gone g left join harvest.routes r on r.id = g.route_id  -- a task outlives a route removed by hand
    returning id;
end $$;

-- Schedule claims for another attempt after their waits in seconds, keeping error and traceback.
create function harvest.retry(
    ids bigint[], held_tokens bigint[], waits double precision[], errors text[], tracebacks text[]
) returns setof bigint language sql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
    update harvest.tasks t
    set state = 'scheduled', scheduled_at = now() + make_interval(secs => o.wait), token = null, worker_id = null,
        deadline = null, error = o.error, traceback = o.traceback
    from unnest(ids, held_tokens, waits, errors, tracebacks) o(id, token, wait, error, traceback)
    where t.id = o.id and t.token = o.token
    returning t.id
$$;

-- Give claims back untouched: pending again in their old place, the attempt restored.
create function harvest.release(ids bigint[], held_tokens bigint[]) returns setof bigint language sql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
    update harvest.tasks t
    set state = 'pending', attempt = t.attempt - 1, token = null, worker_id = null, claimed_at = null, deadline = null
    from unnest(ids, held_tokens) o(id, token)
    where t.id = o.id and t.token = o.token
    returning t.id
$$;

-- Prove that an attempt lives and keep its details; false when the claim was lost.
create function harvest.heartbeat(task bigint, held_token bigint, new_details jsonb) returns boolean
language sql volatile as $$
    with beaten as (
        update harvest.tasks t
        set details = coalesce(new_details, t.details),
            deadline = least(t.claimed_at + make_interval(secs => t.start_to_close),
                             now() + make_interval(secs => t.heartbeat))
        where t.id = task and t.token = held_token
        returning 1
    )
    select exists (select from beaten)
$$;

-- ------------------------------------------------------------------------------------------------------ rescue

-- Take back at most `batch` claims: of workers that have not beaten for their ttl, or are unknown, back to pending, the
-- attempt counted as started; past their deadline (plus slack in seconds) as a failed attempt: retried after the
-- activity's published wait, or finished as failed. Pages by id, so that a row it cannot take hides no other.
create function harvest.rescue(batch integer, slack double precision)
returns table (orphaned integer, timed_out integer) language plpgsql volatile as $$
declare
    lost bigint[];
    late record;
    tokens bigint[];
    texts text[];
    done integer := 0;
begin
    select array_agg(l.id) into lost from (
        select t.id from harvest.tasks t
        where t.state = 'running' and not exists (
            select from harvest.workers w
            where w.id = t.worker_id and w.beaten_at > now() - make_interval(secs => w.ttl))
        order by t.id limit batch for update skip locked
    ) l;
    update harvest.tasks t
    set state = 'pending', token = null, worker_id = null, deadline = null where t.id = any(lost) and t.state = 'running';

    for late in
        select t.id, t.token, t.attempt < t.max_attempts as again,
               case when now() >= t.claimed_at + make_interval(secs => t.start_to_close)
                    then 'TimeoutError: start_to_close of ' || t.start_to_close || ' s has passed'
                    else 'TimeoutError: no heartbeat for ' || t.heartbeat || ' s' end as text,
               least(coalesce(a.retry_initial, 1) * coalesce(a.retry_factor, 2) ^ least(t.attempt - 1, 60),
                     coalesce(a.retry_maximum, 3600)) * (1 - random() * coalesce(a.retry_jitter, 0.25)) as wait
        from harvest.tasks t
        left join harvest.routes r on r.id = t.route_id left join harvest.activities a on a.name = r.name
        where t.state = 'running' and t.deadline < now() - make_interval(secs => slack)
        order by t.id limit batch for update of t skip locked
    loop
        tokens := array[late.token];
        texts := array[late.text];
        if late.again then
            perform harvest.retry(array[late.id], tokens, array[late.wait::double precision], texts, array[null::text]);
        else
            perform harvest.finish(array[late.id], tokens, array['failed'], array[null::jsonb], texts,
                                    array[null::text]);
        end if;
        done := done + 1;
    end loop;

    delete from harvest.workers w
    where w.beaten_at < now() - make_interval(secs => 2 * w.ttl)
      and not exists (select from harvest.tasks t where t.state = 'running' and t.worker_id = w.id);
    return query select coalesce(cardinality(lost), 0), done;
end $$;

-- Remove routes without tasks. ACCESS EXCLUSIVE waits for every open enqueue, and the caller's lock_timeout ends the
-- wait; under it nothing can be enqueued unseen, because this statement's snapshot is newer than the lock.
create function harvest.remove_idle_routes() returns integer language plpgsql volatile as $$
declare
    removed integer;
begin
    lock table harvest.routes in access exclusive mode;
    with recursive pending(id) as (
        (select t.route_id from harvest.tasks t where t.state = 'pending' order by t.route_id limit 1)
        union all
        select (select t.route_id from harvest.tasks t where t.state = 'pending' and t.route_id > p.id
                order by t.route_id limit 1)
        from pending p where p.id is not null
    )
    delete from harvest.routes r
    where not exists (select from pending p where p.id = r.id)
      and not exists (select from harvest.tasks t where t.state = 'scheduled' and t.route_id = r.id)
      and not exists (select from harvest.tasks t where t.state = 'running' and t.route_id = r.id);
    get diagnostics removed = row_count;
    return removed;
end $$;

-- Make the partitions of `finished` for today and the days after, by UTC days. Owned by the schema's owner, so that a
-- worker's role needs no right to create tables. ATTACH does not block finishes as CREATE ... PARTITION OF would.
create function harvest.extend_finished(days integer) returns integer language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
    day date;
    part text;
    made integer := 0;
begin
    perform pg_advisory_xact_lock(hashtext('harvest.extend_finished'), hashtext('harvest'));
    for i in 0 .. least(days, 30) loop
        day := (now() at time zone 'UTC')::date + i;
        part := 'finished_' || to_char(day, 'YYYYMMDD');
        if to_regclass(format('%I.%I', 'harvest', part)) is null then
            execute format('create table %1$I.%2$I (like %1$I.finished including defaults including constraints)',
                           'harvest', part);
            execute format('alter table %1$I.finished attach partition %1$I.%2$I for values from (%3$L) to (%4$L)',
                           'harvest', part, day::timestamp at time zone 'UTC',
                           (day + 1)::timestamp at time zone 'UTC');
            made := made + 1;
        end if;
    end loop;
    return made;
end $$;
select harvest.extend_finished(7);

-- ----------------------------------------------------------------------------------------------------- control

create function harvest.pause_queue(queue text) returns boolean language sql volatile as $$
    insert into harvest.queues as q (name, paused_at) values (queue, now())
    on conflict (name) do update set paused_at = coalesce(q.paused_at, now()) returning true
$$;

create function harvest.resume_queue(queue text) returns boolean language sql volatile as $$
    with resumed as (
        update harvest.queues q set paused_at = null where q.name = queue and q.paused_at is not null returning 1
    ), woken as (
        select pg_notify('harvest', queue) from resumed
    )
    select exists (select from resumed) and (select count(*) >= 0 from woken)
$$;

-- Set a runtime setting; every process that listens hears of it when the caller's transaction commits.
create function harvest.set_setting(key text, value jsonb) returns bigint language sql volatile as $$
    with changed as (
        insert into harvest.settings as s (key, value) values (set_setting.key, set_setting.value)
        on conflict (key) do update
            set value = excluded.value, version = nextval('harvest.setting_versions'), changed_at = now()
        returning version
    ), told as (
        select pg_notify('harvest', 'setting:' || set_setting.key) from changed
    )
    select version from changed where (select count(*) >= 0 from told)
$$;
