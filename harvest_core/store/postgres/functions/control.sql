-- Wake the sleeping workers of these queues when the transaction commits.
create or replace function {schema}.wake(queues text[]) returns void language sql volatile as $$
    select pg_notify({channel}, q.queue) from (select distinct unnest(wake.queues) as queue) q
    where exists (select from {schema}.workers w where w.asleep and q.queue = any(w.queues))
$$;

create or replace function {schema}.pause_queue(queue text) returns boolean language sql volatile as $$
    insert into {schema}.queues as q (name, paused_at) values (queue, now())
    on conflict (name) do update set paused_at = coalesce(q.paused_at, now()) returning true
$$;

create or replace function {schema}.resume_queue(queue text) returns boolean language sql volatile as $$
    with resumed as (
        update {schema}.queues q
        set paused_at = null, resumed_at = now(), paused_for = q.paused_for + (now() - q.paused_at)
        where q.name = queue and q.paused_at is not null returning 1
    ), woken as (
        select pg_notify({channel}, queue) from resumed
    )
    select exists (select from resumed) and (select count(*) >= 0 from woken)
$$;

-- The moment `at` by the clock of a queue, which stands still while the queue is paused. A pause that has ended since is
-- not remembered: then the queue's present time stands for `at`, which is later, so that nothing is overdue too early.
create or replace function {schema}.queue_time(queue text, at timestamptz default now()) returns timestamptz
language sql stable as $$
    select coalesce((
        select least(case when q.resumed_at > at then now() else at end, q.paused_at) - q.paused_for
        from {schema}.queues q where q.name = queue), at)
$$;

-- Cancel tasks by ids, queue, name or all of these. Those that do not run end at once; running attempts are asked to stop
-- and end as cancelled unless they complete first. Returns how many of each.
create or replace function {schema}.cancel(
    task_ids bigint[] default null, of_queue text default null, of_name text default null, reason text default 'cancelled'
) returns table (cancelled bigint, asked bigint) language plpgsql volatile
set plan_cache_mode = force_custom_plan as $$
declare
    found_ids bigint[];
    held_tokens bigint[];
    running_ids bigint[];
    owners text[];
begin
    perform {schema}.require_filter('cancel', task_ids is null and of_queue is null and of_name is null);
    if to_regclass(format('%I.%I', {schema_text}, 'finished_' || to_char(now() at time zone 'UTC', 'YYYYMMDD'))) is null then
        perform {schema}.extend_finished(1);  -- no worker has run for a week
    end if;
    -- All of them are locked before their states are judged, so that none slips through as it starts or is given back.
    select coalesce(array_agg(c.id) filter (where not c.runs), '{{}}'),
           coalesce(array_agg(c.token) filter (where not c.runs), '{{}}'), array_agg(c.id) filter (where c.runs)
    into found_ids, held_tokens, running_ids from (
        select t.id, t.token, t.state = 'running' and t.prefetched_until is null as runs
        from {schema}.tasks t join {schema}.routes r on r.id = t.route_id
        where (task_ids is null or t.id = any(task_ids)) and (of_queue is null or r.queue = of_queue)
          and (of_name is null or r.name = of_name)
        order by t.id for update of t
    ) c;
    perform {schema}.end_tasks(found_ids, held_tokens, array_fill('cancelled'::text, array[cardinality(found_ids)]),
        null, array_fill(reason, array[cardinality(found_ids)]), null);
    with stopping as (
        update {schema}.tasks t set cancelled_at = now(), error = reason
        where t.id = any(running_ids) and t.cancelled_at is null returning t.worker_id
    )
    select count(*), array_agg(distinct worker_id::text) into asked, owners from stopping;
    perform pg_notify({channel}, 'cancel:' || owner) from unnest(owners) o(owner);
    cancelled := cardinality(found_ids);
    return next;
end $$;

-- Put failed and cancelled tasks back, with all their attempts, under the same ids; those whose key another task has by
-- now stay. Without of_states those named by ids go back from both states, any others from `failed` alone. Returns the
-- ids that were put back.
create or replace function {schema}.retry_finished(
    task_ids bigint[] default null, of_queue text default null, of_name text default null,
    of_states text[] default null, since timestamptz default null
) returns setof bigint language plpgsql volatile
set plan_cache_mode = force_custom_plan as $$
declare
    chosen bigint[];
    taken bigint[];
    identity record;
    route_ids bigint[];
    route_identities jsonb[];
    returned_queues text[];
begin
    perform {schema}.require_filter('retry', task_ids is null and of_queue is null and of_name is null and since is null);
    select coalesce(array_agg(c.id), '{{}}') into chosen from (
        select f.id from {schema}.finished f
        where (task_ids is null or f.id = any(task_ids)) and (of_queue is null or f.queue = of_queue)
          and (of_name is null or f.name = of_name) and (since is null or f.finished_at >= since)
          and f.state::text = any(coalesce(of_states, case when task_ids is null then array['failed']
                                                           else array['failed', 'cancelled'] end))
          and f.state <> 'completed'
        order by f.id for update
    ) c;
    perform {schema}.free_keys(array_agg(f.name), array_agg(f.key), '{{}}') from {schema}.finished f
    where f.id = any(chosen) and f.key is not null having count(*) > 0;
    -- A key within its period is its task's already. Held, or who sees no such task would take it over or let it expire.
    perform from {schema}.keys k join {schema}.finished f on k.name = f.name and k.key = f.key and k.task_id = f.id
    where f.id = any(chosen) order by k.name, k.key for update of k;
    insert into {schema}.keys (name, key, task_id)
    select distinct on (f.name, f.key) f.name, f.key, f.id from {schema}.finished f
    where f.id = any(chosen) and f.key is not null order by f.name, f.key, f.id desc
    on conflict do nothing;
    select array_agg(f.id) into taken from {schema}.finished f
    where f.id = any(chosen) and f.key is not null
      and not exists (select from {schema}.keys k where k.name = f.name and k.key = f.key and k.task_id = f.id);
    -- Marks of a replacing that was open when they ended: they have their keys again.
    delete from {schema}.replaced p where p.task_id = any(chosen) and p.task_id <> all(coalesce(taken, '{{}}'));

    for identity in
        select distinct f.queue, f.kind, f.name, f.traits from {schema}.finished f where f.id = any(chosen)
        order by 1, 3, 2, 4
    loop
        route_ids := route_ids || {schema}.route_of(identity.queue, identity.kind, identity.name, identity.traits);
        route_identities := route_identities || to_jsonb(identity);
        returned_queues := returned_queues || identity.queue;
    end loop;
    return query
    with back as (
        delete from {schema}.finished f where f.id = any(chosen) and f.id <> all(coalesce(taken, '{{}}')) returning f.*
    )
    insert into {schema}.tasks as t (
        id, route_id, scheduled_at, enqueued_at, priority, max_attempts, start_to_close, heartbeat, schedule_to_start,
        schedule_to_close, start_by, close_by, state, key, lane, args, kwargs, error, traceback)
    select b.id, r.id, now(), b.enqueued_at, b.priority, b.max_attempts, b.start_to_close, b.heartbeat,
           b.schedule_to_start, b.schedule_to_close,
           case when b.schedule_to_start is not null
               then {schema}.queue_time(b.queue) + make_interval(secs => b.schedule_to_start) end,
           now() + make_interval(secs => b.schedule_to_close),
           case when b.lane is null then 'pending' else 'scheduled' end::{schema}.task_state,
           b.key, b.lane, b.args, b.kwargs, b.error, b.traceback
    from back b join unnest(route_ids, route_identities) r(id, identity)
        on r.identity = jsonb_build_object('queue', b.queue, 'kind', b.kind, 'name', b.name, 'traits', b.traits)
    returning t.id;
    perform {schema}.wake(returned_queues);
end $$;

create or replace function {schema}.require_filter(action text, missing boolean) returns void language plpgsql as $$
begin
    if missing then
        raise exception 'harvest: % of all tasks at once is refused', action
            using errcode = 'invalid_parameter_value', hint = 'Give ids, a queue or a name.';
    end if;
end $$;

-- Set a runtime setting; every process that listens hears of it when the caller's transaction commits.
create or replace function {schema}.set_setting(key text, value jsonb) returns bigint language sql volatile as $$
    with changed as (
        insert into {schema}.settings as s (key, value) values (set_setting.key, set_setting.value)
        on conflict (key) do update
            set value = excluded.value, version = nextval('{schema}.setting_versions'), changed_at = now()
        returning version
    ), told as (
        select pg_notify({channel}, 'setting:' || set_setting.key) from changed
    )
    select version from changed where (select count(*) >= 0 from told)
$$;
