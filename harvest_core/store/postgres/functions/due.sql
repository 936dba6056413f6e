-- Move due tasks to pending, or where they have a lane into it, at most `batch`. Returns how many, the seconds until the
-- next one is due or a lane opens, and whether there are suspects and pending tasks.
create or replace function {schema}.promote_due(batch integer)
returns table (promoted integer, next_due double precision, suspects boolean, pending boolean)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    due bigint[];
begin
    select array_agg(d.id) into due from (
        select t.id from {schema}.tasks t where t.state = 'scheduled' and t.scheduled_at <= now()
        order by t.scheduled_at, t.id limit batch for update skip locked
    ) d;
    with moved as (
        update {schema}.tasks t
        set state = case when t.lane is null then 'pending' else 'blocked' end::{schema}.task_state,
            start_by = case when t.schedule_to_start is not null then (
                select {schema}.queue_time(r.queue, greatest(t.scheduled_at, t.enqueued_at)) + make_interval(secs => t.schedule_to_start)
                from {schema}.routes r where r.id = t.route_id) end
        where t.id = any(due) returning t.lane
    )
    insert into {schema}.lane_news (lane) select distinct m.lane from moved m where m.lane is not null;
    insert into {schema}.lane_news (lane) select l.lane from {schema}.lanes l where l.open_at <= now();
    if exists (select from {schema}.lane_news) then
        perform {schema}.fill_lanes();
    end if;
    return query select coalesce(cardinality(due), 0), extract(epoch from least(
            (select t.scheduled_at from {schema}.tasks t where t.state = 'scheduled' order by t.scheduled_at, t.id limit 1),
            (select min(l.open_at) from {schema}.lanes l)) - now())::double precision,
        exists (select from {schema}.tasks t where t.state = 'suspect'),
        -- Ordered, so that no other index is walked for it.
        (select t.id from {schema}.tasks t where t.state = 'pending'
         order by t.route_id, t.priority desc, t.scheduled_at, t.id limit 1) is not null;
end $$;

-- As version 0.1 calls it.
create or replace function {schema}.promote(batch integer) returns table (promoted integer, next_due double precision)
language sql volatile as $$
    select p.promoted, p.next_due from {schema}.promote_due(batch) p
$$;
