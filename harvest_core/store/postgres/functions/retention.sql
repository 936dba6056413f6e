-- Make the partitions of `finished` for today and the days after, by UTC days. Owned by the schema's owner, so that a
-- worker's role needs no right to create tables. ATTACH does not block finishes as CREATE ... PARTITION OF would.
create or replace function {schema}.extend_finished(days integer) returns integer language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp as $$
declare
    day date;
    part text;
    made integer := 0;
begin
    perform pg_advisory_xact_lock(hashtext('harvest.extend_finished'), hashtext({schema_text}));
    for i in 0 .. least(days, 30) loop
        day := (now() at time zone 'UTC')::date + i;
        part := 'finished_' || to_char(day, 'YYYYMMDD');
        if to_regclass(format('%I.%I', {schema_text}, part)) is null then
            execute format('create table %1$I.%2$I (like %1$I.finished including defaults including constraints)',
                           {schema_text}, part);
            execute format('alter table %1$I.finished attach partition %1$I.%2$I for values from (%3$L) to (%4$L)',
                           {schema_text}, part, day::timestamp at time zone 'UTC',
                           (day + 1)::timestamp at time zone 'UTC');
            made := made + 1;
        end if;
    end loop;
    return made;
end $$;

-- Drop the partitions of `finished` in which every task ended at least `keep` seconds ago; returns how many. Waits a moment
-- only for those who read or write: a later call finds what this one had to leave.
create or replace function {schema}.prune_finished(keep double precision) returns integer language plpgsql volatile
security definer set search_path = pg_catalog, pg_temp set lock_timeout = '100ms' as $$
declare
    part text;
    dropped integer := 0;
begin
    perform pg_advisory_xact_lock(hashtext('harvest.extend_finished'), hashtext({schema_text}));
    for part in
        select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
        where i.inhparent = format('%I.finished', {schema_text})::regclass and c.relname ~ '^finished_\d{{8}}$'
          and (right(c.relname, 8)::date + 1)::timestamp at time zone 'UTC' <= now() - make_interval(secs => keep)
        order by 1
    loop
        execute format('drop table %I.%I', {schema_text}, part);
        dropped := dropped + 1;
    end loop;
    return dropped;
end $$;

select {schema}.extend_finished(7);
