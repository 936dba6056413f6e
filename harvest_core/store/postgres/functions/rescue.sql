-- Take back at most `batch` claims of each kind. Of workers that have not beaten for their ttl: what had started is a
-- suspect from now on, and after `max_crashes` such deaths ends as quarantined; what was only prefetched, or is of a worker
-- that took its leave, is pending again. Past their deadline (plus slack in seconds): a failed attempt, retried after the activity's published
-- wait or ended. Ends what is overdue before it started. Pages by id, so that a row it cannot take hides no other.
create or replace function {schema}.rescue_tasks(batch integer, slack double precision, max_crashes integer)
returns table (orphaned integer, quarantined integer, timed_out integer, overdue integer) language plpgsql volatile as $$
declare
    lost record;
    lost_ids bigint[] := '{{}}';
    crashed_ids bigint[] := '{{}}';
    ended_ids bigint[] := '{{}}';
    ended_tokens bigint[] := '{{}}';
    ended_states text[] := '{{}}';
    ended_texts text[] := '{{}}';
    again_ids bigint[] := '{{}}';
    again_tokens bigint[] := '{{}}';
    again_waits double precision[] := '{{}}';
    again_texts text[] := '{{}}';
    late record;
    done integer := 0;
begin
    quarantined := 0;
    for lost in
        select t.id, t.token, t.prefetched_until is null and w.id is not null as crashed, t.crashes, t.cancelled_at,
               t.error, p.by_id
        from {schema}.tasks t
        left join {schema}.workers w on w.id = t.worker_id left join {schema}.replaced p on p.task_id = t.id
        where t.state = 'running' and (w.id is null or w.beaten_at <= now() - make_interval(secs => w.ttl))
        order by t.id limit batch for update of t skip locked
    loop
        if lost.cancelled_at is null and lost.by_id is null and not (lost.crashed and lost.crashes + 1 >= max_crashes) then
            lost_ids := lost_ids || lost.id;
            if lost.crashed then
                crashed_ids := crashed_ids || lost.id;
            end if;
            continue;
        end if;
        ended_ids := ended_ids || lost.id;
        ended_tokens := ended_tokens || lost.token;
        if lost.cancelled_at is not null or lost.by_id is not null then
            ended_states := ended_states || 'cancelled'::text;
            ended_texts := ended_texts
                || coalesce(case when lost.cancelled_at is not null then lost.error end, 'replaced by task ' || lost.by_id);
        else
            ended_states := ended_states || 'failed'::text;
            ended_texts := ended_texts || ('quarantined: ' || lost.crashes + 1 || ' workers died while they ran it; find '
                'out why before it is retried by hand');
            quarantined := quarantined + 1;
        end if;
    end loop;
    with given as (
        update {schema}.tasks t
        set state = case when t.prefetched_until is null and t.lane is not null then 'blocked'
                         when t.crashes > 0 or t.id = any(crashed_ids) then 'suspect'
                         else 'pending' end::{schema}.task_state,
            crashes = t.crashes + case when t.id = any(crashed_ids) then 1 else 0 end,
            start_by = case when t.prefetched_until is not null then t.start_by end,  -- it did start in time
            token = null, worker_id = null, deadline = null, prefetched_until = null
        where t.id = any(lost_ids) and t.state = 'running'
        returning t.state, t.lane, t.claimed_at
    )
    insert into {schema}.lane_news (lane, started_at) select g.lane, g.claimed_at from given g where g.state = 'blocked';
    perform {schema}.end_tasks(ended_ids, ended_tokens, ended_states, null, ended_texts, null);

    for late in
        select t.id, t.token, t.prefetched_until is not null as prefetched, t.start_to_close,
               t.cancelled_at is not null  -- as which it ends there
                   or t.attempt < t.max_attempts and (t.close_by is null or now() < t.close_by) as again,
               case when now() >= t.close_by then 'TimeoutError: schedule_to_close of ' || t.schedule_to_close || ' s has passed'
                    when now() >= t.claimed_at + make_interval(secs => t.start_to_close)
                    then 'TimeoutError: start_to_close of ' || t.start_to_close || ' s has passed'
                    else 'TimeoutError: no heartbeat for ' || t.heartbeat || ' s' end as text,
               least(coalesce(a.retry_initial, 1) * coalesce(a.retry_factor, 2)
                         ^ least(t.attempt - 1, 250 / nullif(log(coalesce(a.retry_factor, 2)), 0)),  -- or it overflows
                     coalesce(a.retry_maximum, 3600)) * (1 - random() * coalesce(a.retry_jitter, 0.25)) as wait
        from {schema}.tasks t
        left join {schema}.routes r on r.id = t.route_id left join {schema}.activities a on a.name = r.name
        where t.state = 'running' and t.deadline < now() - make_interval(secs => slack)
        order by t.id limit batch for update of t skip locked
    loop
        if late.prefetched then
            update {schema}.tasks t
            set state = case when t.crashes > 0 then 'suspect' else 'pending' end::{schema}.task_state,
                token = null, worker_id = null, deadline = null, prefetched_until = null
            where t.id = late.id;
        elsif late.again then
            again_ids := again_ids || late.id;
            again_tokens := again_tokens || late.token;
            again_waits := again_waits || late.wait::double precision;
            again_texts := again_texts || late.text;
        else
            perform {schema}.end_tasks(array[late.id], array[late.token], array['failed'], array[null::jsonb],
                                       array[late.text], array[null::text]);
        end if;
        done := done + 1;
    end loop;

    delete from {schema}.workers w
    where w.beaten_at < now() - make_interval(secs => 2 * w.ttl)
      and not exists (select from {schema}.tasks t where t.state = 'running' and t.worker_id = w.id);
    orphaned := cardinality(lost_ids) + cardinality(ended_ids);
    timed_out := done;
    overdue := {schema}.end_unstartable({schema}.overdue_tasks(batch));
    -- At the end, and once: it locks the lanes of all that ended, in their order.
    perform {schema}.retry(again_ids, again_tokens, again_waits, again_texts, null);
    return next;
end $$;

-- Tasks that have not started and may not start any more, at most `batch` of them, locked. Walks the routes that have any
-- start_by, so that a million waiting tasks of a paused queue are one probe.
create or replace function {schema}.overdue_tasks(batch integer) returns bigint[] language plpgsql volatile
set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    late bigint[];
    never_closed bigint[];
begin
    with recursive first(route_id, start_by) as (
        (select t.route_id, t.start_by from {schema}.tasks t
         where t.start_by is not null and t.state in ('pending', 'blocked') order by t.route_id, t.start_by limit 1)
        union all
        select n.* from first f cross join lateral (
            select t.route_id, t.start_by from {schema}.tasks t
            where t.start_by is not null and t.state in ('pending', 'blocked') and t.route_id > f.route_id
            order by t.route_id, t.start_by limit 1
        ) n
    ), clocks as materialized (
        select f.route_id, {schema}.queue_time(r.queue) as now from first f
        join {schema}.routes r on r.id = f.route_id where f.start_by <= {schema}.queue_time(r.queue)
    )
    select array_agg(o.id) into late from clocks c cross join lateral (
        select t.id from {schema}.tasks t
        where t.route_id = c.route_id and t.start_by is not null and t.start_by <= c.now and t.state in ('pending', 'blocked')
        order by t.start_by limit batch for update skip locked
    ) o;
    select array_agg(o.id) into never_closed from (
        select t.id from {schema}.tasks t
        where t.close_by is not null and t.close_by <= now() and t.state in ('pending', 'blocked', 'suspect')
        order by t.close_by limit batch for update skip locked
    ) o;
    return late || never_closed;
end $$;

-- As version 0.1 calls it.
create or replace function {schema}.rescue(batch integer, slack double precision)
returns table (orphaned integer, timed_out integer) language sql volatile as $$
    select r.orphaned, r.timed_out from {schema}.rescue_tasks(batch, slack, 3) r
$$;
