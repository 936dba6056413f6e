-- Two more states, alone in a transaction of their own: PostgreSQL lets nothing use a new value before it is committed.
alter type {schema}.task_state add value 'blocked' before 'pending';  -- due, and waits for its lane
alter type {schema}.task_state add value 'suspect' before 'running';  -- due again, after its worker died while it ran
