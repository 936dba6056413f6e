with recursive heads(route_id, priority, due, head) as (
    (select t.route_id, t.priority, t.scheduled_at, t.id from {schema}.tasks t
     where t.state = '{pool}' order by t.route_id, t.priority desc, t.scheduled_at, t.id limit 1)
    union all
    select n.* from heads h cross join lateral (
        select t.route_id, t.priority, t.scheduled_at, t.id from {schema}.tasks t
        where t.state = '{pool}' and t.route_id > h.route_id
        order by t.route_id, t.priority desc, t.scheduled_at, t.id limit 1
    ) n
),
eligible as materialized (
    select r.id, r.queue, r.kind, r.name, r.traits, p.lane, h.priority, h.due, h.head
    from heads h
    join {schema}.routes r on r.id = h.route_id
    join unnest(%(queues)s::text[], %(lanes)s::integer[]) p(polled, lane) on p.polled = r.queue
    where case r.kind when 'activity' then r.name = any(%(activities)s::text[])
                      when 'workflow' then r.name = any(%(workflows)s::text[]) else false end
    and r.queue <> all(array(select q.name from {schema}.queues q where q.paused_at is not null)){clauses}
),{entries}
claimant as (  -- one that others may take for dead claims nothing
    select from {schema}.workers w
    where w.id = %(worker)s::uuid and w.beaten_at > now() - make_interval(secs => w.ttl)
),
claimed as materialized (
    select c.* from (
        select array_agg(e.id order by e.lane, e.priority desc, e.due, e.head) as routes,
               array_agg(e.lane order by e.lane, e.priority desc, e.due, e.head) as lanes,
               array_agg(e.priority order by e.lane, e.priority desc, e.due, e.head) as priorities,
               array_agg(e.due order by e.lane, e.priority desc, e.due, e.head) as times,
               array_agg(e.head order by e.lane, e.priority desc, e.due, e.head) as ids{arrays}
        from {source} e
    ) s
    cross join lateral {schema}.claim(
        s.routes, s.lanes, s.priorities, s.times, s.ids, %(tiers)s::integer[], %(starts)s::bigint[],
        %(steps)s::bigint[], %(worker)s::uuid, %(free)s::integer{arguments}
    ) c
    where s.routes is not null and exists (select from claimant)
)
select (select array_agg(p.polled) from unnest(%(queues)s::text[]) p(polled)
        where exists (
            select from eligible e cross join lateral (
                select from {schema}.tasks t
                where t.route_id = e.id and t.state = '{pool}' and t.id <> all(array(select c.id from claimed c))
                order by t.priority desc, t.scheduled_at, t.id limit 1
            ) t where e.queue = p.polled{unguarded}
        )) as waiting,
       exists (select from claimant) as registered,
       c.id, c.token, c.attempt, c.max_attempts, c.priority, c.scheduled_at, c.enqueued_at, c.start_to_close,
       c.heartbeat, c.args, c.kwargs, c.turn, e.queue, e.kind, e.name, e.traits
from (select) one left join claimed c on true left join eligible e on e.id = c.route_id
order by c.ordinal
