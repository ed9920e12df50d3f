-- Which of our sessions, $1, wait for a lock, and who is in their way: the session, for how many seconds, the table if it
-- can be told, and of the one in the way: session (0 for a prepared transaction), user, program, state, seconds since its
-- transaction began. Who waits before us in the queue is not to blame, but who that one waits for.
WITH RECURSIVE waiting AS (
  SELECT l.pid, l.waitstart FROM pg_catalog.pg_locks l
  WHERE l.pid = ANY ($1) AND NOT l.granted AND l.waitstart < clock_timestamp() - $2 * interval '1 s'
), chain (pid, blocker, path) AS (
  SELECT w.pid, b.pid, ARRAY[b.pid] FROM waiting w, unnest(pg_catalog.pg_blocking_pids(w.pid)) AS b (pid)
  UNION ALL
  SELECT c.pid, b.pid, c.path || b.pid FROM chain c, unnest(pg_catalog.pg_blocking_pids(c.blocker)) AS b (pid)
  WHERE b.pid <> ALL (c.path) AND cardinality(c.path) < 20
)
SELECT DISTINCT ON (w.waitstart, w.pid, c.blocker) w.pid,
  extract(epoch FROM clock_timestamp() - w.waitstart)::float8 AS waited_s, held.schema_name, held.table_name,
  c.blocker AS blocked_by, b.usename, b.application_name, b.state,
  extract(epoch FROM clock_timestamp() - b.xact_start)::float8 AS open_s
FROM waiting w JOIN chain c ON c.pid = w.pid
LEFT JOIN pg_catalog.pg_stat_activity b ON b.pid = c.blocker
LEFT JOIN LATERAL (
  -- Who waits for a row waits for the transaction that changed it, and holds the row's own lock meanwhile.
  SELECT n.nspname AS schema_name, k.relname AS table_name
  FROM pg_catalog.pg_locks l
  JOIN pg_catalog.pg_class k ON k.oid = l.relation
  JOIN pg_catalog.pg_namespace n ON n.oid = k.relnamespace
  WHERE l.pid = w.pid AND k.relkind IN ('r', 'p') AND (NOT l.granted OR l.locktype = 'tuple')
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database())
  ORDER BY l.granted LIMIT 1
) held ON true
WHERE pg_catalog.pg_blocking_pids(c.blocker) = '{}'
ORDER BY w.waitstart, w.pid, c.blocker
