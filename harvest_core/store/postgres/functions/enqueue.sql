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

-- Remove keys whose task has ended, but none of `own` tasks. They are locked first, in key order, and judged once more by a
-- statement that is newer than the locks: who waited for an open `replace` would judge the key's new task by a snapshot that
-- does not know it.
create or replace function {schema}.free_keys(names text[], keys text[], own bigint[]) returns void
language plpgsql volatile as $$
#variable_conflict use_column
declare
    ended bigint[];
begin
    with locked as (
        select k.task_id from {schema}.keys k join (
            select distinct i.name, i.key from unnest(names, free_keys.keys) i(name, key) where i.key is not null
        ) w on k.name = w.name and k.key = w.key
        where coalesce(k.expires_at <= now(), true) and k.task_id <> all(own)
          and not exists (select from {schema}.tasks t where t.id = k.task_id)
        order by k.name, k.key for update of k
    )
    select array_agg(l.task_id) into ended from locked l;
    delete from {schema}.keys k using unnest(names, free_keys.keys) w(name, key)
    where k.name = w.name and k.key = w.key and k.task_id = any(ended)
      and coalesce(k.expires_at <= now(), true)
      and not exists (select from {schema}.tasks t where t.id = k.task_id);
end $$;

-- Enqueue many tasks at once; the arrays are of one length, one entry a task, or NULL for no entry at all. Returns one row
-- a task, in order: its id, and whether it is new (false: a task of that key was there already).
--
-- A key is unique among the unfinished tasks of its name, and for its period (seconds) from now even after the task has
-- ended. Where it is taken: `ignore` returns the task that has it; `replace` makes that task what this call says, if it has
-- not started, and else enqueues a new one, while one that runs finishes its attempt and gets no further; `raise` fails
-- the whole call.
create or replace function {schema}.enqueue_many(
    names text[], args jsonb[], kwargs jsonb[], queues text[], priorities integer[], scheduled timestamptz[],
    delays double precision[], keys text[], traits jsonb[], attempts integer[], start_to_closes double precision[],
    heartbeats double precision[], notify boolean default true, lanes text[] default null,
    key_periods double precision[] default null, conflicts text[] default null,
    schedule_to_starts double precision[] default null, schedule_to_closes double precision[] default null
) returns table (task_id bigint, created boolean) language plpgsql volatile as $$
declare
    wrong record;
    identity record;
    conflict record;
    route_ids bigint[];
    route_queues text[];
    route_names text[];
    route_traits jsonb[];
    ids bigint[];
    owners bigint[];
    takes_over bigint[] := '{{}}';
begin
    select i.* into wrong
    from unnest(names, args, kwargs, queues, traits, attempts, scheduled, delays, start_to_closes, heartbeats, keys, lanes,
                key_periods, conflicts, schedule_to_starts, schedule_to_closes)
        with ordinality i(name, args, kwargs, queue, traits, attempts, scheduled, delay, start_to_close, heartbeat, key,
                          lane, key_period, conflict, schedule_to_start, schedule_to_close, n)
    where coalesce(btrim(i.name), '') = '' or btrim(i.queue) = '' or i.attempts < 1
       or i.delay not between 0 and 1e10  -- NaN is above every number
       or i.scheduled not between '0002-01-01' and '9000-01-01'  -- what every client can hold; infinity is not
       or least(i.start_to_close, i.heartbeat, i.schedule_to_start, i.schedule_to_close, i.key_period) <= 0
       or greatest(i.start_to_close, i.heartbeat, i.schedule_to_start, i.schedule_to_close, i.key_period) > 1e10
       or btrim(i.key) = '' or btrim(i.lane) = '' or greatest(octet_length(i.key), octet_length(i.lane)) > 1024
       or i.conflict not in ('ignore', 'replace', 'raise') or i.key is null and i.key_period is not null
       or jsonb_typeof(i.args) is distinct from 'array' or jsonb_typeof(i.kwargs) is distinct from 'object'
       or jsonb_typeof(coalesce(i.traits, '{{}}')) <> 'object'
       or octet_length(i.args::text) + octet_length(i.kwargs::text) > 2 * 1024 * 1024
    limit 1;
    if found then
        raise exception 'harvest: task % (%) cannot be enqueued', wrong.n, coalesce(nullif(wrong.name, ''), 'no name')
            using errcode = 'invalid_parameter_value',
            hint = 'A name, a queue, a key and a lane are not blank, key and lane take at most 1024 bytes, args is a JSON '
                'array, kwargs and traits are JSON objects, max_attempts is at least 1, scheduled_at lies in the years 2 to '
                '8999, delay is not negative, key_period and all time limits are above 0, all of them below 1e10 seconds, '
                'a key_period needs a key, on_conflict is ignore, replace or raise, and arguments take at most 2 MB.';
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
        -- In key order, so that two batches do not deadlock; but one that begins again holds what it has, and then may.
        -- A key whose task finished meanwhile is tried again.
        <<again>>
        loop
            takes_over := '{{}}';
            perform {schema}.free_keys(names, enqueue_many.keys, ids);
            insert into {schema}.keys as k (name, key, task_id, expires_at)
            select distinct on (i.name, i.key) i.name, i.key, i.id, now() + make_interval(secs => i.period)
            from unnest(names, enqueue_many.keys, ids, key_periods, conflicts) i(name, key, id, period, conflict)
            where i.key is not null
            order by i.name, i.key, case when i.conflict = 'replace' then -i.id else i.id end
            on conflict do nothing;
            -- An old snapshot still sees a freed key beside its own new one: the newest is the one that counts.
            select array_agg(case when i.key is null then i.id else (
                       select max(k.task_id) from {schema}.keys k where k.name = i.name and k.key = i.key) end order by i.n)
            into owners from unnest(names, enqueue_many.keys, ids) with ordinality i(name, key, id, n);
            continue when array_position(owners, null) is not null;
            select i.* into conflict from unnest(names, ids, owners, conflicts) with ordinality i(name, id, owner, policy, n)
            where i.owner <> i.id and i.policy = 'raise' order by i.n limit 1;
            if found then
                raise exception 'harvest: task % (%): its key is taken by task %', conflict.n, conflict.name, conflict.owner
                    using errcode = 'unique_violation', hint = 'Choose another key, or on_conflict ignore or replace.';
            end if;
            -- First the keys, in their order as everyone who holds several.
            perform from {schema}.keys k join unnest(names, enqueue_many.keys, owners, conflicts) i(name, key, owner, policy)
                on k.name = i.name and k.key = i.key
            where i.owner <> all(ids) and i.policy = 'replace' order by k.name, k.key for update of k;
            -- Of several in this batch that would replace the same task the last one does. In the order in which a cancel
            -- locks them, so that the two cannot deadlock.
            for conflict in
                select * from (
                    select distinct on (i.name, i.key) i.*
                    from unnest(names, enqueue_many.keys, ids, owners, conflicts, key_periods)
                        with ordinality i(name, key, id, owner, policy, period, n)
                    where i.owner <> all(ids) and i.policy = 'replace' order by i.name, i.key, i.n desc
                ) c order by c.owner
            loop
                -- While this holds the key no one can free it, and the end of its task does not wait for it either.
                perform from {schema}.keys k
                where k.name = conflict.name and k.key = conflict.key and k.task_id = conflict.owner for update;
                continue again when not found;
                perform from {schema}.tasks t
                where t.id = conflict.owner and (t.state <> 'running' or t.prefetched_until is not null) for update;
                if found then
                    takes_over := takes_over || conflict.id;
                    update {schema}.keys k set expires_at = now() + make_interval(secs => conflict.period)
                    where k.name = conflict.name and k.key = conflict.key;
                else
                    insert into {schema}.replaced (task_id, by_id)
                    select t.id, conflict.id from {schema}.tasks t where t.id = conflict.owner
                    on conflict on constraint replaced_pkey do update set by_id = excluded.by_id;
                    update {schema}.keys k
                    set task_id = conflict.id, expires_at = now() + make_interval(secs => conflict.period)
                    where k.name = conflict.name and k.key = conflict.key;
                    select array_agg(case when i.name = conflict.name and i.key = conflict.key then conflict.id else i.owner end
                                     order by i.n)
                    into owners from unnest(names, enqueue_many.keys, owners) with ordinality i(name, key, owner, n);
                end if;
            end loop;
            exit;
        end loop;
    end if;

    with entry as (
        select i.*, r.id as route_id, w.due, coalesce(i.queue, a.queue, 'default') as to_queue,
               coalesce(i.priority, a.priority, 0) as priority_or_default,
               coalesce(i.attempts, a.max_attempts, 5) as max_attempts,
               coalesce(i.start_to_close, a.start_to_close) as start_limit,
               coalesce(i.heartbeat, a.heartbeat) as heartbeat_limit,
               coalesce(i.schedule_to_start, a.schedule_to_start) as to_start,
               coalesce(i.schedule_to_close, a.schedule_to_close) as to_close,
               -- What has a lane enters it when it is due, in a transaction of the kernel: an open enqueue blocks no lane.
               case when w.due > now() or i.lane is not null then 'scheduled' else 'pending' end::{schema}.task_state
                   as first_state
        from unnest(names, enqueue_many.args, enqueue_many.kwargs, queues, priorities, scheduled, delays,
                    enqueue_many.keys, enqueue_many.traits, attempts, start_to_closes, heartbeats, lanes,
                    schedule_to_starts, schedule_to_closes, ids, owners)
            i(name, args, kwargs, queue, priority, scheduled, delay, key, traits, attempts, start_to_close, heartbeat,
              lane, schedule_to_start, schedule_to_close, id, owner)
        cross join lateral (
            select coalesce(i.scheduled, now()) + make_interval(secs => coalesce(i.delay, 0)) as due
        ) w
        left join {schema}.activities a on a.name = i.name
        join unnest(route_ids, route_queues, route_names, route_traits) r(id, queue, name, traits)
            on r.queue = coalesce(i.queue, a.queue, 'default') and r.name = i.name
            and r.traits = coalesce(i.traits, '{{}}')
        where i.owner = i.id or i.id = any(takes_over)
    ), renewed as (
        update {schema}.tasks t
        set route_id = e.route_id, enqueued_at = now(), scheduled_at = e.due, priority = e.priority_or_default,
            max_attempts = e.max_attempts, start_to_close = e.start_limit, heartbeat = e.heartbeat_limit, schedule_to_start = e.to_start,
            schedule_to_close = e.to_close, close_by = greatest(e.due, now()) + make_interval(secs => e.to_close),
            start_by = case when e.first_state = 'pending' and e.to_start is not null
                then {schema}.queue_time(e.to_queue) + make_interval(secs => e.to_start) end,
            state = e.first_state, lane = e.lane, args = e.args, kwargs = e.kwargs, attempt = 0, crashes = 0, token = null,
            worker_id = null, deadline = null, prefetched_until = null, error = null, traceback = null
        from entry e, {schema}.tasks before  -- the lane it leaves may have room for another
        where t.id = e.owner and before.id = t.id and e.owner <> e.id
        returning before.lane as left_lane
    ), told as (
        insert into {schema}.lane_news (lane) select r.left_lane from renewed r where r.left_lane is not null
    )
    insert into {schema}.tasks (id, route_id, scheduled_at, priority, max_attempts, start_to_close, heartbeat,
                                schedule_to_start, schedule_to_close, start_by, close_by, state, key, lane, args, kwargs)
    select e.id, e.route_id, e.due, e.priority_or_default, e.max_attempts, e.start_limit, e.heartbeat_limit, e.to_start,
           e.to_close,
           case when e.first_state = 'pending' and e.to_start is not null
               then {schema}.queue_time(e.to_queue) + make_interval(secs => e.to_start) end,
           greatest(e.due, now()) + make_interval(secs => e.to_close), e.first_state, e.key, e.lane, e.args, e.kwargs
    from entry e where e.owner = e.id;

    if notify then
        perform {schema}.wake(route_queues);
    end if;

    return query select o.owner, o.owner = o.id from unnest(owners, ids) with ordinality o(owner, id, n) order by o.n;
end $$;

-- Enqueue one task from any client, inside the caller's transaction: the contract for other languages.
--   select harvest.enqueue('send_mail', args => '["x@example.org"]', queue => 'mail', traits => '{{"flags": ["vip"]}}');
-- Times: delay in seconds or scheduled_at; not both. Returns the task's id, of the same key an earlier task's if any.
create or replace function {schema}.enqueue(
    name text, args jsonb default '[]', kwargs jsonb default '{{}}', queue text default null,
    priority integer default null, scheduled_at timestamptz default null, delay double precision default null,
    key text default null, traits jsonb default '{{}}', max_attempts integer default null,
    start_to_close double precision default null, heartbeat double precision default null, notify boolean default true,
    lane text default null, key_period double precision default null, on_conflict text default 'ignore',
    schedule_to_start double precision default null, schedule_to_close double precision default null
) returns bigint language sql volatile as $$
    select task_id from {schema}.enqueue_many(
        array[name], array[args], array[kwargs], array[queue], array[priority], array[scheduled_at], array[delay],
        array[key], array[traits], array[max_attempts], array[start_to_close], array[heartbeat], notify, array[lane],
        array[key_period], array[on_conflict], array[schedule_to_start], array[schedule_to_close])
$$;

-- A set of labels in the one form that every client writes: sorted, distinct, without NULL. Equal sets are one route.
--   select harvest.enqueue('build', traits => jsonb_build_object('flags', harvest.label_set('vip', 'linux')));
create or replace function {schema}.label_set(variadic labels text[]) returns jsonb language sql immutable as $$
    select coalesce(jsonb_agg(l.label), '[]') from (
        select distinct u.label collate "C" as label from unnest(labels) u(label) where u.label is not null order by 1
    ) l
$$;
