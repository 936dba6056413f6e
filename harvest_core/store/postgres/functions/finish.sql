-- Every function below but end_tasks changes only tasks whose live claim carries the given token, and returns the ids it
-- changed: a holder that lost its claim changes nothing and is told so. Only a running task has a token, so they ask for no
-- state: named, it would let the planner walk tasks_running, which holds the claims of all workers, in place of the given
-- ids.

-- Move tasks to `finished` and free their keys. One entry a task in each array; a token of NULL stands for a task that is
-- not claimed. Waits for no one who takes over a key.
create or replace function {schema}.end_tasks(
    ids bigint[], held_tokens bigint[], states text[], results jsonb[], errors text[], tracebacks text[]
) returns setof bigint language plpgsql volatile  -- keeps its plan, which language sql does from 18 on only
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan as $$
begin
    return query
    with gone as (
        delete from {schema}.tasks t using unnest(ids, held_tokens, states, results, errors, tracebacks)
            o(id, token, state, result, error, traceback)
        where t.id = o.id and t.token is not distinct from o.token
        returning t.*, o.state::{schema}.task_state as outcome, o.result,
                  case when o.state <> 'completed' then coalesce(o.error, t.error) end as last_error,
                  case when o.state <> 'completed' then coalesce(o.traceback, t.traceback) end as last_traceback
    ), ended_keys as (
        select k.name, k.key from {schema}.keys k join gone g on g.key is not null and k.task_id = g.id
        where k.expires_at is null or k.expires_at <= now() for update of k skip locked
    ), freed as (
        delete from {schema}.keys k using ended_keys e where k.name = e.name and k.key = e.key
    ), forgotten as (
        delete from {schema}.replaced p using gone g where g.key is not null and p.task_id = g.id
    ), told as (
        insert into {schema}.lane_news (lane, started_at)
        select g.lane, case when g.state = 'running' then g.claimed_at end from gone g where g.lane is not null
    )
    insert into {schema}.finished (id, scheduled_at, enqueued_at, claimed_at, worker_id, priority, attempt, max_attempts,
                                   state, queue, kind, name, traits, key, lane, args, kwargs, result, error, traceback,
                                   start_to_close, heartbeat, schedule_to_start, schedule_to_close)
    select g.id, g.scheduled_at, g.enqueued_at, g.claimed_at, g.worker_id, g.priority, g.attempt, g.max_attempts,
           g.outcome, coalesce(r.queue, ''), coalesce(r.kind, ''), coalesce(r.name, ''), coalesce(r.traits, '{{}}'),
           g.key, g.lane, g.args, g.kwargs, g.result, g.last_error, g.last_traceback,
           g.start_to_close, g.heartbeat, g.schedule_to_start, g.schedule_to_close
    from gone g left join {schema}.routes r on r.id = g.route_id  -- a task outlives a route removed by hand
    returning id;
end $$;

-- End claims, and let the next of their lanes come.
create or replace function {schema}.finish(
    ids bigint[], held_tokens bigint[], states text[], results jsonb[], errors text[], tracebacks text[]
) returns setof bigint language plpgsql volatile as $$
begin
    return query select e from {schema}.end_tasks(ids, held_tokens, states, results, errors, tracebacks) e;
    if exists (select from {schema}.lane_news) then
        perform {schema}.fill_lanes();
    end if;
end $$;

-- Schedule claims for another attempt after their waits in seconds, keeping error and traceback. Those that were asked to
-- stop, whose key another task took over, or whose schedule_to_close comes first, end instead.
create or replace function {schema}.retry(
    ids bigint[], held_tokens bigint[], waits double precision[], errors text[], tracebacks text[]
) returns setof bigint language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    -- All in the order in which a cancel locks them: what follows takes them in parts.
    perform from {schema}.tasks t where t.id = any(ids) order by t.id for update;
    return query
    with moved as (
        update {schema}.tasks t
        set state = 'scheduled', scheduled_at = now() + make_interval(secs => o.wait), token = null, worker_id = null,
            deadline = null, start_by = null, error = o.error, traceback = o.traceback
        from unnest(ids, held_tokens, waits, errors, tracebacks) o(id, token, wait, error, traceback)
        where t.id = o.id and t.token = o.token and t.cancelled_at is null
          and (t.close_by is null or t.close_by > now() + make_interval(secs => o.wait))
          and not {schema}.is_replaced(t)
        returning t.id, t.lane, t.claimed_at
    ), told as (
        insert into {schema}.lane_news (lane, started_at) select m.lane, m.claimed_at from moved m where m.lane is not null
    )
    select m.id from moved m;
    return query
    select f from unnest(ids, held_tokens, errors, tracebacks) o(id, token, error, traceback)
    join {schema}.tasks t on t.id = o.id and t.token = o.token
    left join {schema}.replaced p on p.task_id = t.id
    cross join lateral {schema}.end_tasks(
        array[o.id], array[o.token],
        array[case when t.cancelled_at is not null or p.task_id is not null then 'cancelled' else 'failed' end],
        array[null::jsonb],
        array[coalesce(case when t.cancelled_at is not null then t.error end, 'replaced by task ' || p.by_id,
                       o.error || '; schedule_to_close leaves no time for another attempt')],
        array[o.traceback]) f;
    if exists (select from {schema}.lane_news) then
        perform {schema}.fill_lanes();
    end if;
end $$;

-- Give claims back untouched, in their old place, the attempt restored. What had started in a lane enters it anew: its start
-- counts, and the lane's rate may leave no room for another. Those that were asked to stop or whose key another task took
-- over end instead.
create or replace function {schema}.release(ids bigint[], held_tokens bigint[]) returns setof bigint
language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    perform from {schema}.tasks t where t.id = any(ids) order by t.id for update;  -- as a cancel locks them
    return query
    with given as (
        update {schema}.tasks t
        set state = case when t.prefetched_until is null and t.lane is not null then 'blocked'
                         when t.crashes > 0 then 'suspect' else 'pending' end::{schema}.task_state,
            attempt = t.attempt - case when t.prefetched_until is null then 1 else 0 end,
            start_by = case when t.prefetched_until is not null then t.start_by end,  -- it did start in time
            token = null, worker_id = null, claimed_at = null, deadline = null, prefetched_until = null
        from unnest(ids, held_tokens) o(id, token) join {schema}.tasks before on before.id = o.id
        where t.id = o.id and t.token = o.token and t.cancelled_at is null and not {schema}.is_replaced(t)
        returning t.id, t.state, t.lane, before.claimed_at
    ), told as (
        insert into {schema}.lane_news (lane, started_at) select g.lane, g.claimed_at from given g where g.state = 'blocked'
    )
    select g.id from given g;
    return query
    select f from unnest(ids, held_tokens) o(id, token)
    join {schema}.tasks t on t.id = o.id and t.token = o.token
    left join {schema}.replaced p on p.task_id = t.id
    cross join lateral {schema}.end_tasks(
        array[o.id], array[o.token], array['cancelled'], array[null::jsonb],
        array[coalesce(case when t.cancelled_at is not null then t.error end, 'replaced by task ' || p.by_id)],
        array[null::text]) f;
    if exists (select from {schema}.lane_news) then
        perform {schema}.fill_lanes();
    end if;
end $$;

-- Begin prefetched claims: the attempt counts from now. Returns, of those still held, the attempt and the seconds left to
-- close it. What has become overdue ends instead, and what is of a queue that was paused meanwhile goes back.
create or replace function {schema}.start_claims(ids bigint[], held_tokens bigint[])
returns table (task_id bigint, attempt integer, start_to_close double precision) language plpgsql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
begin
    perform from {schema}.tasks t where t.id = any(ids) order by t.id for update;  -- as a cancel locks them
    return query
    update {schema}.tasks t
    set attempt = t.attempt + 1, claimed_at = now(), prefetched_until = null,
        deadline = least(now() + make_interval(secs => least(t.start_to_close, t.heartbeat)), t.close_by)
    from unnest(ids, held_tokens) o(id, token)
    where t.id = o.id and t.token = o.token and t.prefetched_until is not null
      and not {schema}.is_overdue(t) and not {schema}.is_replaced(t)
      and not exists (select from {schema}.routes r join {schema}.queues q on q.name = r.queue
                      where r.id = t.route_id and q.paused_at is not null)
    returning t.id, t.attempt, least(t.start_to_close, extract(epoch from t.close_by - now())::double precision);
    perform {schema}.end_unstartable(array(
        select t.id from unnest(ids, held_tokens) o(id, token)
        join {schema}.tasks t on t.id = o.id and t.token = o.token and t.prefetched_until is not null));
    perform {schema}.release(array_agg(t.id order by t.id), array_agg(t.token order by t.id)) from unnest(ids, held_tokens) o(id, token)
    join {schema}.tasks t on t.id = o.id and t.token = o.token and t.prefetched_until is not null
    having count(*) > 0;
    if exists (select from {schema}.lane_news) then
        perform {schema}.fill_lanes();
    end if;
end $$;

-- Whether a task that has not started may not start any more.
create or replace function {schema}.is_overdue(t {schema}.tasks) returns boolean language sql stable as $$
    select coalesce(t.close_by <= now(), false) or case when t.start_by is null then false else coalesce((
        select t.start_by <= {schema}.queue_time(r.queue) from {schema}.routes r where r.id = t.route_id), false) end
$$;

-- Whether another task has taken over the key of one that has not started: it ran when that was decided, and was given
-- back or retried before the replacing transaction committed.
create or replace function {schema}.is_replaced(t {schema}.tasks) returns boolean language sql stable as $$
    select t.key is not null and exists (select from {schema}.replaced p where p.task_id = t.id)
$$;

-- End those of these tasks that have not started and may not start any more; returns how many. Their lanes are left to the
-- next who looks.
create or replace function {schema}.end_unstartable(ids bigint[]) returns integer language plpgsql volatile as $$
declare
    ended integer;
begin
    select count(f) into ended from {schema}.tasks t
    left join {schema}.replaced p on p.task_id = t.id
    cross join lateral {schema}.end_tasks(
        array[t.id], array[t.token], array[case when p.task_id is null then 'failed' else 'cancelled' end],
        array[null::jsonb],
        array[case when p.task_id is not null then 'replaced by task ' || p.by_id
              when t.close_by <= now()
              then 'TimeoutError: schedule_to_close of ' || t.schedule_to_close || ' s has passed'
              else 'TimeoutError: not started within schedule_to_start of ' || t.schedule_to_start || ' s' end],
        array[null::text]) f
    where t.id = any(ids) and (t.state <> 'running' or t.prefetched_until is not null)
      and (p.task_id is not null or {schema}.is_overdue(t));
    return ended;
end $$;

-- Prove that an attempt lives and keep its details; false when the claim was lost.
create or replace function {schema}.heartbeat(task bigint, held_token bigint, new_details jsonb) returns boolean
language sql volatile as $$
    with beaten as (
        update {schema}.tasks t
        set details = coalesce(new_details, t.details),
            deadline = least(t.claimed_at + make_interval(secs => t.start_to_close),
                             now() + make_interval(secs => t.heartbeat), t.close_by)
        where t.id = task and t.token = held_token
        returning 1
    )
    select exists (select from beaten)
$$;
