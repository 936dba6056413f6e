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
      and not exists (select from {schema}.tasks t where t.state = 'running' and t.route_id = r.id);
    get diagnostics removed = row_count;
    return removed;
end $$;
