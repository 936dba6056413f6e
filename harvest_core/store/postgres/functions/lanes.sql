-- A window of starts is a JSON object: starts by slot, a hundredth of the period. A start counts until its whole slot has
-- left the window, so that no window of that length, wherever it begins, ever holds more than is allowed. Slots far ahead
-- stem from a shorter period that was configured before: they are dropped, or they would count for ever.

create or replace function {schema}.window_starts(used jsonb, period double precision) returns integer
language sql volatile as $$
    select coalesce(sum(u.value::integer), 0)::integer from jsonb_each_text(used) u
    where u.key::bigint - floor(extract(epoch from clock_timestamp()) * 100 / period)::bigint between -100 and 100
$$;

create or replace function {schema}.window_add(used jsonb, period double precision, starts timestamptz[]) returns jsonb
language sql volatile as $$
    select coalesce(jsonb_object_agg(s.slot, s.count), '{{}}') from (
        select e.slot, sum(e.count) as count from (
            select u.key::bigint as slot, u.value::integer as count from jsonb_each_text(used) u
            union all
            select floor(extract(epoch from a.at) * 100 / period)::bigint, 1 from unnest(starts) a(at)
        ) e
        where e.slot - floor(extract(epoch from clock_timestamp()) * 100 / period)::bigint between -100 and 100
        group by e.slot
    ) s
$$;

-- Look at every lane with news.
create or replace function {schema}.fill_lanes() returns void language plpgsql volatile as $$
declare
    wanted text;
begin
    -- In order, so that two transactions that look at several lanes wait for each other in one direction only.
    for wanted in select distinct n.lane from {schema}.lane_news n order by n.lane limit 1000 loop
        perform {schema}.fill_lane(wanted);
    end loop;
end $$;

-- Let the best blocked tasks of a lane become pending, as many as it has room for. What occupies a lane is pending,
-- suspect or running; counted under the lane's lock, by a statement whose snapshot is newer than the lock.
create or replace function {schema}.fill_lane(wanted text) returns void language plpgsql volatile
set enable_seqscan = off as $$
declare
    memory record;
    width integer;
    most_starts integer;
    span double precision;
    ended timestamptz[];
    occupied integer;
    recent integer;
    room integer;
    chosen bigint[];
    best record;
    worst record;
    opens timestamptz;
begin
    loop
        insert into {schema}.lanes (lane) values (wanted) on conflict do nothing;
        select l.used, l.open_at into memory from {schema}.lanes l where l.lane = wanted for update;
        exit when found;  -- else clean-up removed it in between
    end loop;
    select l.concurrency, l.starts, l.period into width, most_starts, span
    from {schema}.lane_limits l where l.name = split_part(wanted, '/', 1);
    if not found then
        width := 1;
    end if;
    with read as (
        delete from {schema}.lane_news n where n.lane = wanted returning n.started_at
    )
    select array_agg(r.started_at) filter (where r.started_at is not null) into ended from read r;

    select count(*), count(*) filter (where t.state <> 'running' or t.prefetched_until is not null
                                         or t.claimed_at > now() - make_interval(secs => span)),
           min(case when t.state = 'running' and t.prefetched_until is null then t.claimed_at else now() end)
               filter (where t.state <> 'running' or t.prefetched_until is not null
                          or t.claimed_at > now() - make_interval(secs => span))
    into occupied, recent, opens
    from {schema}.tasks t where t.lane = wanted and t.state in ('pending', 'suspect', 'running');
    room := width - occupied;
    if most_starts is not null then
        memory.used := {schema}.window_add(memory.used, span, ended);
        room := least(room, most_starts - recent - {schema}.window_starts(memory.used, span));
    end if;

    select array_agg(b.id) into chosen from (
        select t.id from {schema}.tasks t where t.lane = wanted and t.state = 'blocked'
        order by t.priority desc, t.scheduled_at, t.id limit greatest(room, 0) for update skip locked
    ) b;
    update {schema}.tasks t
    set state = case when t.crashes > 0 then 'suspect' else 'pending' end::{schema}.task_state where t.id = any(chosen);
    if room > coalesce(cardinality(chosen), 0)
            and exists (select from {schema}.tasks t where t.lane = wanted and t.state = 'blocked') then
        -- Another transaction holds it, and tells nobody if it is rolled back: the next who looks tries again.
        insert into {schema}.lane_news (lane) values (wanted);
    end if;

    -- A better task that came later takes the place of one that no claim has taken yet.
    loop
        select t.id, t.priority, t.scheduled_at into best from {schema}.tasks t
        where t.lane = wanted and t.state = 'blocked' order by t.priority desc, t.scheduled_at, t.id limit 1
        for update skip locked;
        exit when not found;
        select t.id, t.priority, t.scheduled_at into worst from {schema}.tasks t
        where t.lane = wanted and t.state = 'pending' order by t.priority, t.scheduled_at desc, t.id desc limit 1
        for update skip locked;
        exit when not found or (-worst.priority::bigint, worst.scheduled_at, worst.id)
                             < (-best.priority::bigint, best.scheduled_at, best.id);
        update {schema}.tasks t
        set state = case when t.id <> best.id then 'blocked' when t.crashes > 0 then 'suspect'
                         else 'pending' end::{schema}.task_state
        where t.id in (best.id, worst.id);
        chosen := chosen || best.id;
    end loop;

    if most_starts is not null then
        -- Its rate opens it again when the oldest start leaves the window. Of one that has not started yet that is not
        -- known: after a window's length another look will tell.
        select case when exists (select from {schema}.tasks t where t.lane = wanted and t.state = 'blocked') then least(
            coalesce(opens, now()) + make_interval(secs => span),
            to_timestamp((min(u.key::bigint) + 101) * span / 100)) end
        into opens from jsonb_each_text(memory.used) u;
        update {schema}.lanes l set used = memory.used, open_at = opens
        where l.lane = wanted and (l.used, l.open_at) is distinct from (memory.used, opens);
    elsif memory.open_at is not null then
        update {schema}.lanes l set open_at = null where l.lane = wanted;
    end if;
    perform {schema}.wake(array(
        select r.queue from {schema}.tasks t join {schema}.routes r on r.id = t.route_id where t.id = any(chosen)))
    where chosen is not null;
end $$;
