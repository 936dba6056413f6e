-- Take the best n tasks of the given routes for a worker: one cursor per route, merged by (tier, turn, K2).
--
-- Routes come as parallel arrays sorted by (lane, head), head being their best task in the caller's snapshot: a lower
-- bound of what a cursor will find. A cursor is opened, and so its first row locked, only when its route's bound is the
-- best of its lane: a claim locks what it takes plus one head for each route that could have won, and waits for none.
-- Lanes are the queues, or one lane for all of them where no plugin owns the order; lane i has tiers[i], starts[i] and
-- steps[i], and its k-th task the turn start + k * step. The limit in the cursors is for the planner, which would cost
-- the whole route without it.
create or replace function {schema}.claim(
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
    taken bigint[] := '{{}}';
    turns bigint[] := '{{}}';
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
                    select t.id, t.priority, t.scheduled_at from {schema}.tasks t
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

    claim_token := nextval('{schema}.tokens');
    return query
    with claimed as (
        update {schema}.tasks t
        set state = 'running', attempt = t.attempt + 1, token = claim_token, worker_id = worker, claimed_at = now(),
            deadline = now() + make_interval(secs => least(t.start_to_close, t.heartbeat)), details = null
        where t.id = any(taken)
        returning t.*, array_position(taken, t.id) as n
    )
    select c.n::bigint, turns[c.n], c.id, c.route_id, c.token, c.attempt, c.max_attempts, c.priority, c.scheduled_at,
           c.enqueued_at, c.start_to_close, c.heartbeat, c.args, c.kwargs
    from claimed c order by c.n;
end $$;
