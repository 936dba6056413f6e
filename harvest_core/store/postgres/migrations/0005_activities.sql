alter table {schema}.activities
    add column schedule_to_start double precision,
    add column schedule_to_close double precision;
