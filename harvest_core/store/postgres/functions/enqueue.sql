-- The id of a visible route of this identity, or of a new one. Reading routes holds ACCESS SHARE to the end of the
-- caller's transaction, which keeps clean-up (ACCESS EXCLUSIVE) away from it. An older snapshot may still see a route
-- that clean-up has removed: there the row is locked, and PostgreSQL refuses a removed one.
create or replace function {schema}.route_of(wanted_queue text, wanted_kind text, wanted_name text, wanted_traits jsonb)
returns bigint language plpgsql volatile as $$
declare
    found_id bigint;
begin
    select r.id into found_id from {schema}.routes r
    where r.queue = wanted_queue and r.name = wanted_name and md5(r.traits::text) = md5(wanted_traits::text)
      and r.kind = wanted_kind and r.traits = wanted_traits
    order by r.id limit 1;
    if found_id is not null and current_setting('transaction_isolation') <> 'read committed' then
        perform from {schema}.routes r where r.id = found_id for key share;
    end if;
    if found_id is null then
        insert into {schema}.routes (queue, kind, name, traits)
        values (wanted_queue, wanted_kind, wanted_name, wanted_traits)
        returning routes.id into found_id;
    end if;
    return found_id;
end $$;

-- Enqueue many tasks at once; the arrays are of one length, one entry a task. Returns one row a task, in order:
-- its id, and whether it is new (false: a task of that key was there already).
create or replace function {schema}.enqueue_many(
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
       or jsonb_typeof(coalesce(i.traits, '{{}}')) <> 'object'
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
        select distinct coalesce(i.queue, a.queue, 'default') as queue, i.name, coalesce(i.traits, '{{}}') as traits
        from unnest(names, queues, traits) i(name, queue, traits)
        left join {schema}.activities a on a.name = i.name
        order by 1, 2, 3
    loop
        route_ids := route_ids || {schema}.route_of(identity.queue, 'activity', identity.name, identity.traits);
        route_queues := route_queues || identity.queue;
        route_names := route_names || identity.name;
        route_traits := route_traits || identity.traits;
    end loop;

    select array_agg(nextval('{schema}.task_ids')) into ids from generate_subscripts(names, 1);
    owners := ids;
    if exists (select from unnest(keys) k where k is not null) then
        -- In key order, so that two batches cannot deadlock. A key whose task finished meanwhile is tried again.
        loop
            insert into {schema}.keys as k (name, key, task_id)
            select distinct on (i.name, i.key) i.name, i.key, i.id
            from unnest(names, enqueue_many.keys, ids) i(name, key, id) where i.key is not null
            order by i.name, i.key, i.id
            on conflict do nothing;
            -- An old snapshot still sees a freed key beside its own new one: the newest is the one that counts.
            select array_agg(case when i.key is null then i.id else (
                       select max(k.task_id) from {schema}.keys k where k.name = i.name and k.key = i.key) end order by i.n)
            into owners from unnest(names, enqueue_many.keys, ids) with ordinality i(name, key, id, n);
            exit when array_position(owners, null) is null;
        end loop;
    end if;

    insert into {schema}.tasks (id, route_id, scheduled_at, priority, max_attempts, start_to_close, heartbeat, state,
                                key, args, kwargs)
    select i.id, r.id, w.due, coalesce(i.priority, a.priority, 0), coalesce(i.attempts, a.max_attempts, 5),
           coalesce(i.start_to_close, a.start_to_close), coalesce(i.heartbeat, a.heartbeat),
           case when w.due > now() then 'scheduled' else 'pending' end::{schema}.task_state, i.key, i.args, i.kwargs
    from unnest(names, enqueue_many.args, enqueue_many.kwargs, queues, priorities, scheduled, delays,
                enqueue_many.keys, enqueue_many.traits, attempts, start_to_closes, heartbeats, ids, owners)
        i(name, args, kwargs, queue, priority, scheduled, delay, key, traits, attempts, start_to_close, heartbeat,
          id, owner)
    cross join lateral (
        select coalesce(i.scheduled, now()) + make_interval(secs => coalesce(i.delay, 0)) as due
    ) w
    left join {schema}.activities a on a.name = i.name
    join unnest(route_ids, route_queues, route_names, route_traits) r(id, queue, name, traits)
        on r.queue = coalesce(i.queue, a.queue, 'default') and r.name = i.name
        and r.traits = coalesce(i.traits, '{{}}')
    where i.owner = i.id;

    if notify then
        perform pg_notify({channel}, q.queue)
        from (select distinct unnest(route_queues) as queue) q
        where exists (select from {schema}.workers w where w.asleep and q.queue = any(w.queues));
    end if;

    return query select o.owner, o.owner = o.id from unnest(owners, ids) with ordinality o(owner, id, n) order by o.n;
end $$;

-- Enqueue one task from any client, inside the caller's transaction: the contract for other languages.
--   select harvest.enqueue('send_mail', args => '["x@example.org"]', queue => 'mail', traits => '{{"flags": ["vip"]}}');
-- Times: delay in seconds or scheduled_at; not both. Returns the task's id, an unfinished task's of the same key if any.
create or replace function {schema}.enqueue(
    name text, args jsonb default '[]', kwargs jsonb default '{{}}', queue text default null,
    priority integer default null, scheduled_at timestamptz default null, delay double precision default null,
    key text default null, traits jsonb default '{{}}', max_attempts integer default null,
    start_to_close double precision default null, heartbeat double precision default null, notify boolean default true
) returns bigint language sql volatile as $$
    select task_id from {schema}.enqueue_many(
        array[name], array[args], array[kwargs], array[queue], array[priority], array[scheduled_at], array[delay],
        array[key], array[traits], array[max_attempts], array[start_to_close], array[heartbeat], notify)
$$;

-- A set of labels in the one form that every client writes: sorted, distinct, without NULL. Equal sets are one route.
--   select harvest.enqueue('build', traits => jsonb_build_object('flags', harvest.label_set('vip', 'linux')));
create or replace function {schema}.label_set(variadic labels text[]) returns jsonb language sql immutable as $$
    select coalesce(jsonb_agg(l.label), '[]') from (
        select distinct u.label collate "C" as label from unnest(labels) u(label) where u.label is not null order by 1
    ) l
$$;
