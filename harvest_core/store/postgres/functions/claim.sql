-- Take the best n tasks of the given routes for a worker: one cursor per route, merged by (tier, turn, K2).
--
-- Routes come as parallel arrays sorted by (lane, head), head being their best task in the caller's snapshot: a lower
-- bound of what a cursor will find. A cursor is opened, and so its first row locked, only when its route's bound is the
-- best of its lane: a claim locks what it takes plus one head for each route that could have won, and waits for none.
-- Lanes are the queues, or one lane for all of them where no plugin owns the order; lane i has tiers[i], starts[i] and
-- steps[i], and its k-th task the turn start + k * step. The limit in the cursors is for the planner, which would cost
-- the whole route without it.
--
-- Further arguments narrow the claim. `pool` 'suspect' takes suspects in place of pending tasks. `prefetch` takes tasks for so
-- many seconds without starting them. Lane i gives at most mosts[i] tasks. A route with befores[i] gives only tasks of
-- exactly priorities[i] that were due after afters[i] and by befores[i]. A route with groups[i] above 0 is under the caps of that group: cap c lets
-- take from its group only while counter cap_counters[c] lasts, and counts only tasks due by cap_untils[c], if that is
-- given. A counter k has counts[k] left, or else draws from budgets[k], which is locked here and counted by a statement whose
-- snapshot is newer than the lock: at most concurrencies[k] running tasks of the activities of its groups, and at most
-- budget_starts[k] starts in any periods[k] seconds. What has become overdue is failed in place of being started.
create or replace function {schema}.claim(
    routes bigint[], lanes integer[], priorities integer[], times timestamptz[], ids bigint[],
    tiers integer[], starts bigint[], steps bigint[], worker uuid, n integer,
    pool text default 'pending', prefetch double precision default null, mosts integer[] default null,
    afters timestamptz[] default null, befores timestamptz[] default null, groups integer[] default null, group_names text[] default null,
    cap_groups integer[] default null, cap_counters integer[] default null, cap_untils timestamptz[] default null,
    counts integer[] default null, budgets text[] default null, concurrencies integer[] default null,
    budget_starts integer[] default null, periods double precision[] default null
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
    charged integer[];
    full_route boolean;
    moment timestamptz;
    claimed_count integer;
begin
    if counts is not null then
        counts := {schema}.budget_counts(counts, budgets, concurrencies, budget_starts, periods, group_names, cap_groups,
                                         cap_counters);
        charged := array_fill(0, array[cardinality(counts)]);
    end if;
    for i in reverse cardinality(routes) .. 1 loop
        firsts[lanes[i]] := i;
        lasts[lanes[i]] := greatest(lasts[lanes[i]], i);
    end loop;
    nexts := firsts;

    <<slots>>
    for slot in
        -- From unnest, which the planner takes for few rows: for a million it would compile the query first (JIT).
        select l.lane, l.start + k * l.step as turn
        from unnest(tiers, starts, steps) with ordinality l(tier, start, step, lane) 
            cross join generate_series(1, least(n, coalesce(mosts[l.lane], n))) k
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
            full_route := false;
            if groups[best] > 0 then
                -- Of an unopened route only a bound of its head is known: it counts where the cap counts all it gives.
                for c in 1 .. cardinality(cap_groups) loop
                    full_route := full_route or cap_groups[c] = groups[best] and counts[cap_counters[c]] <= 0
                        and (cap_untils[c] is null or befores[best] <= cap_untils[c]
                             or is_open and times[best] <= cap_untils[c]);
                end loop;
                if is_open and not full_route then
                    for c in 1 .. cardinality(cap_groups) loop
                        if cap_groups[c] = groups[best] and (cap_untils[c] is null or times[best] <= cap_untils[c]) then
                            counts[cap_counters[c]] := counts[cap_counters[c]] - 1;
                            charged[cap_counters[c]] := charged[cap_counters[c]] + 1;
                        end if;
                    end loop;
                end if;
            end if;
            if full_route then
                null;
            elsif is_open then
                taken := taken || ids[best];
                turns := turns || slot.turn;
                exit slots when cardinality(taken) = n;
            else
                if pool = 'suspect' and befores[best] is not null then
                    open one for
                        select t.id, t.priority, t.scheduled_at from {schema}.tasks t
                        where t.route_id = routes[best] and t.state = 'suspect' and t.priority = priorities[best]
                          and t.scheduled_at > afters[best] and t.scheduled_at <= befores[best]
                        order by t.scheduled_at, t.id limit n for update skip locked;
                elsif pool = 'suspect' then
                    open one for
                        select t.id, t.priority, t.scheduled_at from {schema}.tasks t
                        where t.route_id = routes[best] and t.state = 'suspect'
                        order by t.priority desc, t.scheduled_at, t.id limit n for update skip locked;
                elsif befores[best] is not null then
                    open one for
                        select t.id, t.priority, t.scheduled_at from {schema}.tasks t
                        where t.route_id = routes[best] and t.state = 'pending' and t.priority = priorities[best]
                          and t.scheduled_at > afters[best] and t.scheduled_at <= befores[best]
                        order by t.scheduled_at, t.id limit n for update skip locked;
                else
                    open one for
                        select t.id, t.priority, t.scheduled_at from {schema}.tasks t
                        where t.route_id = routes[best] and t.state = 'pending'
                        order by t.priority desc, t.scheduled_at, t.id limit n for update skip locked;
                end if;
                cursors[best] := one;
                nexts[lane] := best + 1;
            end if;

            if not full_route then
                fetch one into head;
            end if;
            if not full_route and found then
                priorities[best] := head.priority;
                times[best] := head.scheduled_at;
                ids[best] := head.id;
            else
                if one is null then  -- a full route is dropped unopened: it was the first of those
                    nexts[lane] := best + 1;
                else
                    close one;
                end if;
                routes[best] := routes[firsts[lane]];
                afters[best] := afters[firsts[lane]];
                befores[best] := befores[firsts[lane]];
                groups[best] := groups[firsts[lane]];
                cursors[best] := cursors[firsts[lane]];
                priorities[best] := priorities[firsts[lane]];
                times[best] := times[firsts[lane]];
                ids[best] := ids[firsts[lane]];
                firsts[lane] := firsts[lane] + 1;
            end if;
            exit when is_open and not full_route;
        end loop;
    end loop;
    if cardinality(taken) = 0 then
        return;
    end if;

    moment := clock_timestamp();  -- and not now(): a cursor may have found what was freed after this statement began
    if budgets is not null then
        update {schema}.budgets b
        set used = {schema}.window_add(b.used, periods[k.k], array_fill(moment, array[charged[k.k]]))
        from generate_subscripts(budgets, 1) k(k)
        where b.name = budgets[k.k] and budget_starts[k.k] is not null and charged[k.k] > 0;
    end if;
    claim_token := nextval('{schema}.tokens');
    return query
    with claimed as (
        update {schema}.tasks t
        set state = 'running', token = claim_token, worker_id = worker, details = null,
            attempt = t.attempt + case when prefetch is null then 1 else 0 end,
            claimed_at = case when prefetch is null then moment end,
            prefetched_until = moment + make_interval(secs => prefetch),
            deadline = least(moment + make_interval(secs => coalesce(prefetch, least(t.start_to_close, t.heartbeat))),
                             t.close_by)
        where t.id = any(taken) and (t.start_by is null and t.close_by is null or not {schema}.is_overdue(t))
          and (t.key is null or not {schema}.is_replaced(t))
        returning t.*, array_position(taken, t.id) as n
    )
    select c.n::bigint, turns[c.n], c.id, c.route_id, c.token, c.attempt, c.max_attempts, c.priority, c.scheduled_at,
           c.enqueued_at, least(c.start_to_close, extract(epoch from c.close_by - now())::double precision), c.heartbeat,
           c.args, c.kwargs
    from claimed c order by c.n;
    get diagnostics claimed_count = row_count;
    if claimed_count < cardinality(taken) then
        perform {schema}.end_unstartable(taken);
    end if;
end $$;

-- What each counter of a claim has left, its budgets locked in the order of their names and counted under the lock.
create or replace function {schema}.budget_counts(
    counts integer[], budgets text[], concurrencies integer[], budget_starts integer[], periods double precision[],
    group_names text[], cap_groups integer[], cap_counters integer[]
) returns integer[] language plpgsql volatile as $$
declare
    share record;
    used jsonb;
begin
    for share in
        select k.k, budgets[k.k] as name from generate_subscripts(budgets, 1) k(k) where budgets[k.k] is not null
        order by 2
    loop
        loop
            select b.used into used from {schema}.budgets b where b.name = share.name for update;
            exit when found;
            insert into {schema}.budgets (name) values (share.name) on conflict do nothing;
        end loop;
        counts[share.k] := {schema}.budget_room(
            used, concurrencies[share.k], budget_starts[share.k], periods[share.k], array(
                select group_names[c.cap_group] from unnest(cap_groups, cap_counters) c(cap_group, counter)
                where c.counter = share.k));
    end loop;
    return counts;
end $$;

-- How many tasks of these activities a budget lets start now.
create or replace function {schema}.budget_room(
    used jsonb, concurrency integer, starts integer, period double precision, activities text[]
) returns integer language sql volatile as $$
    select least(
        concurrency - case when concurrency is not null then (
            select count(*) from {schema}.tasks t join {schema}.routes r on r.id = t.route_id
            where t.state = 'running' and r.kind = 'activity' and r.name = any(activities)) end,
        starts - {schema}.window_starts(used, period), 2147483647)::integer
$$;
