-- Write schedules; one object each: name, activity, args, kwargs, traits, options, cron or every, timezone, catch_up,
-- overlap, declared. What is as it was is not written, a pause stays, and another cron, interval or time zone counts from
-- now. What code declares is changed by code only. Returns the names that were written.
create or replace function {schema}.put_schedules(entries jsonb) returns setof text language sql volatile as $$
    with written as (
        insert into {schema}.schedules as s (name, activity, args, kwargs, traits, options, cron, every, timezone, catch_up,
                                             overlap, declared)
        select e.* from jsonb_to_recordset(entries) as e(
            name text, activity text, args jsonb, kwargs jsonb, traits jsonb, options jsonb, cron text,
            every double precision, timezone text, catch_up text, overlap text, declared boolean)
        order by e.name  -- so that two writers cannot deadlock
        on conflict (name) do update
        set version = default, activity = excluded.activity, args = excluded.args, kwargs = excluded.kwargs,
            traits = excluded.traits, options = excluded.options, cron = excluded.cron, every = excluded.every,
            timezone = excluded.timezone, catch_up = excluded.catch_up, overlap = excluded.overlap,
            declared = excluded.declared, undeclared_at = null, error = null,
            counts_from = case when (s.cron, s.every, s.timezone)
                is distinct from (excluded.cron, excluded.every, excluded.timezone) then now() else s.counts_from end,
            next_at = case when (s.cron, s.every, s.timezone)
                is distinct from (excluded.cron, excluded.every, excluded.timezone) then now() else s.next_at end
        where (excluded.declared or not s.declared)
          and (s.undeclared_at is not null
               or (s.activity, s.args, s.kwargs, s.traits, s.options, s.cron, s.every, s.timezone, s.catch_up, s.overlap,
                   s.declared)
               is distinct from (excluded.activity, excluded.args, excluded.kwargs, excluded.traits, excluded.options,
                                 excluded.cron, excluded.every, excluded.timezone, excluded.catch_up, excluded.overlap,
                                 excluded.declared))
        returning s.name
    ), told as (
        select pg_notify({channel}, 'schedule') where exists (select from written)
    )
    select w.name from written w where (select count(*) >= 0 from told)
$$;

-- No tick is enqueued from when this commits; those that come meanwhile do not count.
create or replace function {schema}.pause_schedule(schedule text) returns boolean language sql volatile as $$
    with paused as (
        update {schema}.schedules s
        set paused_at = coalesce(s.paused_at, now()), version = default where s.name = schedule returning 1
    )
    select exists (select from paused)
$$;

create or replace function {schema}.resume_schedule(schedule text) returns boolean language sql volatile as $$
    with resumed as (
        update {schema}.schedules s
        set paused_at = null, version = default, counts_from = now(), next_at = now()
        where s.name = schedule and s.paused_at is not null returning 1
    ), told as (
        select pg_notify({channel}, 'schedule') from resumed
    )
    select exists (select from resumed) and (select count(*) >= 0 from told)
$$;

-- Names of these schedules that a live worker declares.
create or replace function {schema}.declared_schedules(names text[]) returns text[] language sql stable as $$
    select coalesce(array_agg(distinct d.name), '{{}}')
    from {schema}.workers w cross join unnest(w.schedules) d(name) join unnest(names) n(name) on n.name = d.name
    where w.beaten_at > now() - make_interval(secs => w.ttl)
$$;

-- Remove a schedule; false where there is none, or where live workers would only declare it again.
create or replace function {schema}.delete_schedule(schedule text) returns boolean language sql volatile as $$
    with gone as (
        delete from {schema}.schedules s
        where s.name = schedule and not (s.declared and s.name = any({schema}.declared_schedules(array[schedule])))
        returning 1
    )
    select exists (select from gone)
$$;

-- Enqueue of these nominal times as many, oldest first, as the overlap policy leaves room for beside the schedule's
-- unfinished tasks, and return the tasks' ids. The caller holds the schedule's row.
create or replace function {schema}.enqueue_ticks(s {schema}.schedules, ticks timestamptz[], notify boolean)
returns bigint[] language plpgsql volatile as $$
declare
    unfinished bigint[] := array(select t.id from {schema}.tasks t where t.id = any(s.task_ids));
    running boolean := exists (select from {schema}.tasks t where t.id = any(s.task_ids) and t.state = 'running');
    one integer[];
    made bigint[];
begin
    if s.overlap <> 'allow' then
        ticks := ticks[1 : case when cardinality(unfinished) = 0 then 1
                                when s.overlap = 'buffer_one' and cardinality(unfinished) = 1 and running then 1
                                else 0 end];
    end if;
    if cardinality(ticks) = 0 then
        return '{{}}';
    end if;
    one := array[cardinality(ticks)];
    select array_agg(e.task_id order by e.task_id) into made from {schema}.enqueue_many(
        names => array_fill(s.activity, one), args => array_fill(s.args, one), kwargs => array_fill(s.kwargs, one),
        queues => array_fill(s.options ->> 'queue', one),
        priorities => array_fill((s.options ->> 'priority')::integer, one), scheduled => ticks,
        delays => array_fill(null::double precision, one), keys => array_fill(null::text, one),
        traits => array_fill(s.traits, one), attempts => array_fill((s.options ->> 'max_attempts')::integer, one),
        start_to_closes => array_fill((s.options ->> 'start_to_close')::double precision, one),
        heartbeats => array_fill((s.options ->> 'heartbeat')::double precision, one), notify => notify,
        -- The second of two waits for the first, also where the schedule was written without a lane.
        lanes => array_fill(coalesce(s.options ->> 'lane', case when s.overlap = 'buffer_one' then 'schedule/' || s.name end),
                            one),
        schedule_to_starts => array_fill((s.options ->> 'schedule_to_start')::double precision, one),
        schedule_to_closes => array_fill((s.options ->> 'schedule_to_close')::double precision, one)) e;
    update {schema}.schedules w
    set last_at = ticks[one[1]], last_task_id = made[one[1]],
        task_ids = case when s.overlap = 'allow' then made[one[1] : one[1]] else unfinished || made end
    where w.name = s.name;
    return made;
end $$;

-- Enqueue the ticks of schedules and move them on; one object each: name and version as read, the nominal times to
-- enqueue, and the next one. Of callers that read the same version one acts, whatever the others do meanwhile, and no
-- row of another's is waited for. Returns a row for each schedule that was moved on here.
create or replace function {schema}.fire_schedules(entries jsonb, notify boolean)
returns table (schedule text, task_ids bigint[], fault text) language plpgsql volatile as $$
declare
    live text[];
    entry record;
    s {schema}.schedules;
begin
    for entry in
        select e.* from jsonb_to_recordset(entries)
            as e(name text, version bigint, ticks timestamptz[], next_at timestamptz)
    loop
        select f.* into s from {schema}.schedules f where f.name = entry.name and f.version = entry.version and f.paused_at is null
        for update skip locked;
        continue when not found;
        if s.declared and live is null then
            live := {schema}.declared_schedules(array(select e ->> 'name' from jsonb_array_elements(entries) e));
        end if;
        if s.declared and s.name <> all(live) then
            update {schema}.schedules f set undeclared_at = now(), version = default where f.name = s.name;
            continue;
        end if;
        schedule := s.name;
        task_ids := '{{}}';
        fault := null;
        begin
            task_ids := {schema}.enqueue_ticks(s, entry.ticks, notify);
        exception when others then  -- one schedule that cannot be enqueued keeps back no other
            if sqlstate ~ '^(40|53|55|57|58)' then
                raise;
            end if;
            fault := sqlerrm;
        end;
        update {schema}.schedules f
        set next_at = entry.next_at, version = default,
            error = case when cardinality(entry.ticks) > 0 then fault else f.error end
        where f.name = s.name;
        return next;
    end loop;
end $$;

-- Enqueue a task of a schedule now, paused or not, if its overlap policy leaves room. Returns its id, or NULL.
create or replace function {schema}.trigger_schedule(schedule text, notify boolean default true) returns bigint
language plpgsql volatile as $$
declare
    s {schema}.schedules;
begin
    select f.* into s from {schema}.schedules f where f.name = schedule for update;
    if not found then
        raise exception 'harvest: no schedule %', schedule using errcode = 'no_data_found';
    end if;
    return ({schema}.enqueue_ticks(s, array[now()], notify))[1];
end $$;
