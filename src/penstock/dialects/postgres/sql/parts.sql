-- The partitioned tables among $1, and the partitions below them at any depth, parents first: (schema, name, key,
-- parent_schema, parent_name, bound). Only the words for a bound and a key may wait for somebody who alters the table.
WITH RECURSIVE tree (relid, parent, level) AS (
  SELECT c.oid, NULL::oid, 0 FROM pg_class c WHERE c.oid = ANY ($1::oid[]) AND c.relkind = 'p'
  UNION ALL
  SELECT i.inhrelid, i.inhparent, t.level + 1 FROM tree t
  JOIN pg_inherits i ON i.inhparent = t.relid AND NOT i.inhdetachpending
)
SELECT n.nspname, c.relname, pg_get_partkeydef(c.oid), pn.nspname, p.relname, pg_get_expr(c.relpartbound, c.oid)
FROM tree t JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_class p ON p.oid = t.parent LEFT JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE c.relkind IN ('r', 'p')
ORDER BY t.level, n.nspname, c.relname
