create or replace function {schema}.pause_queue(queue text) returns boolean language sql volatile as $$
    insert into {schema}.queues as q (name, paused_at) values (queue, now())
    on conflict (name) do update set paused_at = coalesce(q.paused_at, now()) returning true
$$;

create or replace function {schema}.resume_queue(queue text) returns boolean language sql volatile as $$
    with resumed as (
        update {schema}.queues q set paused_at = null where q.name = queue and q.paused_at is not null returning 1
    ), woken as (
        select pg_notify({channel}, queue) from resumed
    )
    select exists (select from resumed) and (select count(*) >= 0 from woken)
$$;

-- Set a runtime setting; every process that listens hears of it when the caller's transaction commits.
create or replace function {schema}.set_setting(key text, value jsonb) returns bigint language sql volatile as $$
    with changed as (
        insert into {schema}.settings as s (key, value) values (set_setting.key, set_setting.value)
        on conflict (key) do update
            set value = excluded.value, version = nextval('{schema}.setting_versions'), changed_at = now()
        returning version
    ), told as (
        select pg_notify({channel}, 'setting:' || set_setting.key) from changed
    )
    select version from changed where (select count(*) >= 0 from told)
$$;
