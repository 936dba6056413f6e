-- Move due tasks to pending, at most `batch`. Returns how many, and the seconds until the next one is due.
create or replace function {schema}.promote(batch integer) returns table (promoted integer, next_due double precision)
language plpgsql volatile set enable_seqscan = off set enable_bitmapscan = off as $$
declare
    due bigint[];
begin
    select array_agg(d.id) into due from (
        select t.id from {schema}.tasks t where t.state = 'scheduled' and t.scheduled_at <= now()
        order by t.scheduled_at, t.id limit batch for update skip locked
    ) d;
    update {schema}.tasks t set state = 'pending' where t.id = any(due);
    return query select coalesce(cardinality(due), 0), (
        select extract(epoch from t.scheduled_at - now())::double precision from {schema}.tasks t
        where t.state = 'scheduled' order by t.scheduled_at, t.id limit 1);
end $$;
