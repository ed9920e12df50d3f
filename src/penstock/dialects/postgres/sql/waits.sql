-- Which of our sessions, $1, wait for a lock, and who is in their way: the session, for how many seconds, the table if it
-- can be told, and of the one in the way: session (0 for a prepared transaction), user, program, state, seconds since its
-- transaction began. A session of ours that waits for another of ours is left out: that one says who is to blame.
SELECT l.pid, extract(epoch FROM clock_timestamp() - l.waitstart)::float8 AS waited_s, held.schema_name, held.table_name,
  blocker.pid AS blocked_by, b.usename, b.application_name, b.state,
  extract(epoch FROM clock_timestamp() - b.xact_start)::float8 AS open_s
FROM pg_catalog.pg_locks l
CROSS JOIN LATERAL unnest(pg_catalog.pg_blocking_pids(l.pid)) AS blocker (pid)
LEFT JOIN pg_catalog.pg_stat_activity b ON b.pid = blocker.pid
LEFT JOIN LATERAL (
  -- Who waits for a row waits for the transaction that changed it, and holds the row's own lock meanwhile.
  SELECT n.nspname AS schema_name, c.relname AS table_name
  FROM pg_catalog.pg_locks k
  JOIN pg_catalog.pg_class c ON c.oid = k.relation
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE k.pid = l.pid AND c.relkind IN ('r', 'p') AND (NOT k.granted OR k.locktype = 'tuple')
    AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
  ORDER BY k.granted LIMIT 1
) held ON true
WHERE l.pid = ANY ($1) AND NOT l.granted AND l.waitstart < clock_timestamp() - $2 * interval '1 s'
  AND blocker.pid <> ALL ($1)
ORDER BY l.waitstart, blocker.pid
