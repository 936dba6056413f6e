alter table {schema}.queues
    add column paused_for interval not null default '0',  -- all past pauses
    add column resumed_at timestamptz;
