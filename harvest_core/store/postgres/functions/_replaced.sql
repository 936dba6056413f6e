-- Signatures of version 0.1 whose functions take further arguments now, each with a default: dropped together with the
-- making of the new ones, which the calls of that version find.
drop function if exists {schema}.enqueue(text, jsonb, jsonb, text, integer, timestamptz, double precision, text, jsonb,
    integer, double precision, double precision, boolean);
drop function if exists {schema}.enqueue_many(text[], jsonb[], jsonb[], text[], integer[], timestamptz[],
    double precision[], text[], jsonb[], integer[], double precision[], double precision[], boolean);
drop function if exists {schema}.claim(bigint[], integer[], integer[], timestamptz[], bigint[], integer[], bigint[],
    bigint[], uuid, integer);
