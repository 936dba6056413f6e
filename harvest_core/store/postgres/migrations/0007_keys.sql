-- A key with a time of expiry outlives its task; one without belongs to a task that has not ended.
alter table {schema}.keys add column expires_at timestamptz;
create index keys_expired on {schema}.keys (expires_at) where expires_at is not null;
