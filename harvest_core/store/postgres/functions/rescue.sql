-- Take back at most `batch` claims: of workers that have not beaten for their ttl, or are unknown, back to pending, the
-- attempt counted as started; past their deadline (plus slack in seconds) as a failed attempt: retried after the
-- activity's published wait, or finished as failed. Pages by id, so that a row it cannot take hides no other.
create or replace function {schema}.rescue(batch integer, slack double precision)
returns table (orphaned integer, timed_out integer) language plpgsql volatile as $$
declare
    lost bigint[];
    late record;
    tokens bigint[];
    texts text[];
    done integer := 0;
begin
    select array_agg(l.id) into lost from (
        select t.id from {schema}.tasks t
        where t.state = 'running' and not exists (
            select from {schema}.workers w
            where w.id = t.worker_id and w.beaten_at > now() - make_interval(secs => w.ttl))
        order by t.id limit batch for update skip locked
    ) l;
    update {schema}.tasks t
    set state = 'pending', token = null, worker_id = null, deadline = null where t.id = any(lost) and t.state = 'running';

    for late in
        select t.id, t.token, t.attempt < t.max_attempts as again,
               case when now() >= t.claimed_at + make_interval(secs => t.start_to_close)
                    then 'TimeoutError: start_to_close of ' || t.start_to_close || ' s has passed'
                    else 'TimeoutError: no heartbeat for ' || t.heartbeat || ' s' end as text,
               least(coalesce(a.retry_initial, 1) * coalesce(a.retry_factor, 2) ^ least(t.attempt - 1, 60),
                     coalesce(a.retry_maximum, 3600)) * (1 - random() * coalesce(a.retry_jitter, 0.25)) as wait
        from {schema}.tasks t
        left join {schema}.routes r on r.id = t.route_id left join {schema}.activities a on a.name = r.name
        where t.state = 'running' and t.deadline < now() - make_interval(secs => slack)
        order by t.id limit batch for update of t skip locked
    loop
        tokens := array[late.token];
        texts := array[late.text];
        if late.again then
            perform {schema}.retry(array[late.id], tokens, array[late.wait::double precision], texts, array[null::text]);
        else
            perform {schema}.finish(array[late.id], tokens, array['failed'], array[null::jsonb], texts,
                                    array[null::text]);
        end if;
        done := done + 1;
    end loop;

    delete from {schema}.workers w
    where w.beaten_at < now() - make_interval(secs => 2 * w.ttl)
      and not exists (select from {schema}.tasks t where t.state = 'running' and t.worker_id = w.id);
    return query select coalesce(cardinality(lost), 0), done;
end $$;
