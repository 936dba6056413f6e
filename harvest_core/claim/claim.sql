with recursive active(route_id) as (
    (select t.route_id from {schema}.tasks t where t.state = 'pending' order by t.route_id limit 1)
    union all
    select (
        select t.route_id from {schema}.tasks t
        where t.state = 'pending' and t.route_id > a.route_id order by t.route_id limit 1
    )
    from active a where a.route_id is not null
),
eligible as materialized (
    select r.id, r.queue, r.kind, r.name, r.traits, p.lane
    from active a
    join {schema}.routes r on r.id = a.route_id
    join unnest(%(queues)s::text[], %(lanes)s::integer[]) p(queue, lane) on p.queue = r.queue
    where case r.kind when 'activity' then r.name = any(%(activities)s::text[])
                      when 'workflow' then r.name = any(%(workflows)s::text[]) else false end
    and not exists (select from {schema}.queues q where q.name = r.queue and q.paused_at is not null){clauses}
),
heads as (
    select e.id as route_id, e.lane, h.id, h.priority, h.scheduled_at
    from eligible e cross join lateral (
        select t.id, t.priority, t.scheduled_at from {schema}.tasks t
        where t.route_id = e.id and t.state = 'pending'
        order by t.priority desc, t.scheduled_at, t.id limit 1
    ) h
),
claimed as materialized (
    select c.* from (
        select array_agg(h.route_id order by h.lane, h.priority desc, h.scheduled_at, h.id) as routes,
               array_agg(h.lane order by h.lane, h.priority desc, h.scheduled_at, h.id) as lanes,
               array_agg(h.priority order by h.lane, h.priority desc, h.scheduled_at, h.id) as priorities,
               array_agg(h.scheduled_at order by h.lane, h.priority desc, h.scheduled_at, h.id) as times,
               array_agg(h.id order by h.lane, h.priority desc, h.scheduled_at, h.id) as ids
        from heads h
    ) s
    cross join lateral {schema}.claim(
        s.routes, s.lanes, s.priorities, s.times, s.ids, %(tiers)s::integer[], %(starts)s::bigint[],
        %(steps)s::bigint[], %(worker)s::uuid, %(free)s::integer
    ) c
    where s.routes is not null and exists (select from {schema}.workers w where w.id = %(worker)s::uuid)
)
select (select array_agg(distinct e.queue) from eligible e
        where exists (
            select from {schema}.tasks t
            where t.route_id = e.id and t.state = 'pending' and t.id <> all(array(select c.id from claimed c))
        )) as waiting,
       exists (select from {schema}.workers w where w.id = %(worker)s::uuid) as registered,
       c.id, c.token, c.attempt, c.max_attempts, c.priority, c.scheduled_at, c.enqueued_at, c.start_to_close,
       c.heartbeat, c.args, c.kwargs, c.turn, e.queue, e.kind, e.name, e.traits
from (select) one left join claimed c on true left join eligible e on e.id = c.route_id
order by c.ordinal
