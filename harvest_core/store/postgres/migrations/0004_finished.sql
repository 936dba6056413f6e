-- What a task that is put back by hand needs.
alter table {schema}.finished
    add column start_to_close double precision,
    add column heartbeat double precision,
    add column schedule_to_start double precision,
    add column schedule_to_close double precision,
    add column lane text;
