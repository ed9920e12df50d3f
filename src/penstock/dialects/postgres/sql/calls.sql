-- What the tables whose oids are in $1 call when rows are written to them, apart from the server's own: functions,
-- operators and types of generated columns, indexes, exclusion constraints, partition keys and ranges, as (kind, schema, name,
-- tables); `tables` are the oids of those that call it.
WITH RECURSIVE relation AS (
  SELECT r.oid, r.oid AS root FROM unnest($1::oid[]) r (oid)
  UNION SELECT p.relid, r.root FROM relation r, pg_partition_tree(r.oid) p
), part (root, classid, objid) AS (
  SELECT root, 'pg_class'::regclass, oid FROM relation
  UNION SELECT r.root, 'pg_class'::regclass, i.indexrelid FROM relation r JOIN pg_index i ON i.indrelid = r.oid
  UNION SELECT r.root, 'pg_attrdef'::regclass, d.oid FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid
    JOIN pg_attrdef d ON d.adrelid = r.oid AND d.adnum = a.attnum WHERE a.attgenerated <> ''
  UNION SELECT r.root, 'pg_constraint'::regclass, c.oid FROM relation r JOIN pg_constraint c ON c.conrelid = r.oid
    WHERE c.contype = 'x'
  UNION SELECT r.root, 'pg_type'::regclass, g.rngtypid FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid
    JOIN pg_range g ON a.atttypid IN (g.rngtypid, g.rngmultitypid)
)
SELECT c.kind, n.nspname, c.name, array_agg(DISTINCT p.root::bigint)
FROM part p JOIN pg_depend d ON d.classid = p.classid AND d.objid = p.objid
JOIN (
  SELECT 'function' AS kind, 'pg_proc'::regclass AS classid, oid, pronamespace AS namespace, proname AS name FROM pg_proc
  UNION ALL SELECT 'operator', 'pg_operator'::regclass, oid, oprnamespace, oprname FROM pg_operator
  UNION ALL SELECT 'type', 'pg_type'::regclass, oid, typnamespace, typname FROM pg_type
) c ON c.classid = d.refclassid AND c.oid = d.refobjid
JOIN pg_namespace n ON n.oid = c.namespace
WHERE n.nspname <> 'pg_catalog'
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
