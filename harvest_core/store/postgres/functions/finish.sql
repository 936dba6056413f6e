-- Every function below changes only tasks whose live claim carries the given token, and returns the ids it changed: a
-- holder that lost its claim changes nothing and is told so. Only a running task has a token, so they ask for no state:
-- named, it would let the planner walk tasks_running, which holds the claims of all workers, in place of the given ids.

-- Move finished claims to `finished` and free their keys. One entry a task in each array.
create or replace function {schema}.finish(
    ids bigint[], held_tokens bigint[], states text[], results jsonb[], errors text[], tracebacks text[]
) returns setof bigint language plpgsql volatile  -- keeps its plan, which language sql does from 18 on only
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off
set plan_cache_mode = force_generic_plan as $$
begin
    return query
    with gone as (
        delete from {schema}.tasks t using unnest(ids, held_tokens, states, results, errors, tracebacks)
            o(id, token, state, result, error, traceback)
        where t.id = o.id and t.token = o.token
        returning t.*, o.state::{schema}.task_state as outcome, o.result, coalesce(o.error, t.error) as last_error,
                  coalesce(o.traceback, t.traceback) as last_traceback
    ), freed as (
        delete from {schema}.keys k using gone g where g.key is not null and k.task_id = g.id
    )
    insert into {schema}.finished (id, scheduled_at, enqueued_at, claimed_at, worker_id, priority, attempt, max_attempts,
                                   state, queue, kind, name, traits, key, args, kwargs, result, error, traceback)
    select g.id, g.scheduled_at, g.enqueued_at, g.claimed_at, g.worker_id, g.priority, g.attempt, g.max_attempts,
           g.outcome, coalesce(r.queue, ''), coalesce(r.kind, ''), coalesce(r.name, ''), coalesce(r.traits, '{{}}'),
           g.key, g.args, g.kwargs, g.result, g.last_error, g.last_traceback
    from gone g left join {schema}.routes r on r.id = g.route_id  -- a task outlives a route removed by hand
    returning id;
end $$;

-- Schedule claims for another attempt after their waits in seconds, keeping error and traceback.
create or replace function {schema}.retry(
    ids bigint[], held_tokens bigint[], waits double precision[], errors text[], tracebacks text[]
) returns setof bigint language sql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
    update {schema}.tasks t
    set state = 'scheduled', scheduled_at = now() + make_interval(secs => o.wait), token = null, worker_id = null,
        deadline = null, error = o.error, traceback = o.traceback
    from unnest(ids, held_tokens, waits, errors, tracebacks) o(id, token, wait, error, traceback)
    where t.id = o.id and t.token = o.token
    returning t.id
$$;

-- Give claims back untouched: pending again in their old place, the attempt restored.
create or replace function {schema}.release(ids bigint[], held_tokens bigint[]) returns setof bigint language sql volatile
set enable_seqscan = off set enable_hashjoin = off set enable_mergejoin = off as $$
    update {schema}.tasks t
    set state = 'pending', attempt = t.attempt - 1, token = null, worker_id = null, claimed_at = null, deadline = null
    from unnest(ids, held_tokens) o(id, token)
    where t.id = o.id and t.token = o.token
    returning t.id
$$;

-- Prove that an attempt lives and keep its details; false when the claim was lost.
create or replace function {schema}.heartbeat(task bigint, held_token bigint, new_details jsonb) returns boolean
language sql volatile as $$
    with beaten as (
        update {schema}.tasks t
        set details = coalesce(new_details, t.details),
            deadline = least(t.claimed_at + make_interval(secs => t.start_to_close),
                             now() + make_interval(secs => t.heartbeat))
        where t.id = task and t.token = held_token
        returning 1
    )
    select exists (select from beaten)
$$;
