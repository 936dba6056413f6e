-- Remove routes without tasks. ACCESS EXCLUSIVE waits for every open enqueue, and the caller's lock_timeout ends the
-- wait; under it nothing can be enqueued unseen, because this statement's snapshot is newer than the lock.
create or replace function {schema}.remove_idle_routes() returns integer language plpgsql volatile as $$
declare
    removed integer;
begin
    lock table {schema}.routes in access exclusive mode;
    with recursive pending(id) as (
        (select t.route_id from {schema}.tasks t where t.state = 'pending' order by t.route_id limit 1)
        union all
        select (select t.route_id from {schema}.tasks t where t.state = 'pending' and t.route_id > p.id
                order by t.route_id limit 1)
        from pending p where p.id is not null
    )
    delete from {schema}.routes r
    where not exists (select from pending p where p.id = r.id)
      and not exists (select from {schema}.tasks t where t.state = 'scheduled' and t.route_id = r.id)
      and not exists (select from {schema}.tasks t where t.state = 'blocked' and t.route_id = r.id)
      and not exists (select from {schema}.tasks t where t.state = 'suspect' and t.route_id = r.id)
      and not exists (select from {schema}.tasks t where t.state = 'running' and t.route_id = r.id);
    get diagnostics removed = row_count;
    return removed;
end $$;

-- Remove what nothing refers to any more: expired keys, keys and marks of tasks that are gone, the memory of idle lanes.
create or replace function {schema}.remove_leftovers() returns integer language plpgsql volatile as $$
declare
    removed integer;
    more integer;
    ended bigint[];
begin
    with idle as (
        select k.name, k.key from {schema}.keys k
        where k.expires_at <= now() and not exists (select from {schema}.tasks t where t.id = k.task_id)
        limit 10000 for update skip locked
    )
    delete from {schema}.keys k using idle i where k.name = i.name and k.key = i.key;
    get diagnostics removed = row_count;
    -- Of keys without expiry only those older than all tasks: the others would cost a look at each task.
    -- Judged once more when they are locked, by a statement that knows the task of a replace that committed meanwhile.
    with idle as (
        select k.task_id from {schema}.keys k
        where k.task_id < coalesce((select min(t.id) from {schema}.tasks t), 9223372036854775807) and k.expires_at is null
        limit 10000 for update skip locked
    )
    select array_agg(i.task_id) into ended from idle i;
    delete from {schema}.keys k
    where k.task_id = any(ended) and k.expires_at is null and not exists (select from {schema}.tasks t where t.id = k.task_id);
    get diagnostics more = row_count;
    removed := removed + more;
    delete from {schema}.replaced p where not exists (select from {schema}.tasks t where t.id = p.task_id);
    get diagnostics more = row_count;
    removed := removed + more;
    with idle as (
        select l.lane from {schema}.lanes l left join {schema}.lane_limits m on m.name = split_part(l.lane, '/', 1)
        where not exists (select from {schema}.tasks t where t.lane = l.lane and t.state = 'blocked')
          and not exists (select from {schema}.tasks t
                          where t.lane = l.lane and t.state in ('pending', 'suspect', 'running'))
          and not exists (select from {schema}.lane_news n where n.lane = l.lane)
          and {schema}.window_starts(l.used, coalesce(m.period, 1)) = 0
        limit 10000 for update of l skip locked
    )
    delete from {schema}.lanes l using idle i where l.lane = i.lane;
    get diagnostics more = row_count;
    return removed + more;
end $$;
