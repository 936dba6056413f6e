
entries as materialized (  -- a route with ages once for each of its priorities and spans of age, so that no task of one span
    -- stands behind those of another; what is under a cap with its group
    select e.id, e.lane, e.priority, e.due, e.head, null::timestamptz as after, null::timestamptz as before,
           case when e.kind = 'activity' then coalesce(array_position(%(capped)s::text[], e.name), 0) else 0 end as cap_group
    from eligible e where e.kind <> 'activity' or e.name <> all(%(aged)s::text[])
    union all
    select e.id, e.lane, p.priority, f.scheduled_at, f.id, b.after, b.before,
           coalesce(array_position(%(capped)s::text[], e.name), 0)
    from eligible e
    join unnest(%(aged)s::text[], %(oldest)s::double precision[], %(youngest)s::double precision[])
        a(name, oldest, youngest) on a.name = e.name and e.kind = 'activity'
    cross join lateral (
        select coalesce(now() - make_interval(secs => a.oldest), '-infinity') as after,
               now() - make_interval(secs => a.youngest) as before
    ) b
    cross join lateral (
        with recursive priorities(priority) as (
            select e.priority
            union all
            select (select t.priority from {schema}.tasks t
                    where t.route_id = e.id and t.state = '{pool}' and t.priority < p.priority
                    order by t.priority desc limit 1)
            from priorities p where p.priority is not null
        )
        select p.priority from priorities p where p.priority is not null
    ) p
    cross join lateral (
        select t.scheduled_at, t.id from {schema}.tasks t
        where t.route_id = e.id and t.state = '{pool}' and t.priority = p.priority
          and t.scheduled_at > b.after and t.scheduled_at <= b.before
        order by t.scheduled_at, t.id limit 1
    ) f
),