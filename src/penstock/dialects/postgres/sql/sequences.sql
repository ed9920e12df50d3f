-- The sequences that columns of the tables whose oids are in $1 draw their values from, or own, and those of the schemas $2
-- that no column does: (schema, name, table, column, how, type, increment, minimum, maximum, start, cache, does_cycle, may_read,
-- may_set). `how` is identity, owned, default, or free.
WITH used (seq, root, attnum, how) AS (
  SELECT d.objid, d.refobjid, d.refobjsubid, CASE d.deptype WHEN 'i' THEN 'identity' ELSE 'owned' END
  FROM pg_depend d
  WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = ANY ($1::oid[])
    AND d.refobjsubid > 0 AND d.deptype IN ('a', 'i')
  UNION ALL
  SELECT d.refobjid, f.adrelid, f.adnum, 'default'
  FROM pg_attrdef f JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid
    AND d.refclassid = 'pg_class'::regclass
  WHERE f.adrelid = ANY ($1::oid[])
  UNION ALL
  SELECT c.oid, c.oid, 0, 'free'
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind = 'S' AND n.nspname = ANY ($2::text[])
    AND NOT EXISTS (SELECT FROM pg_depend d
      WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('a', 'i', 'e'))
    AND NOT EXISTS (SELECT FROM pg_depend d
      WHERE d.classid = 'pg_attrdef'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid)
)
SELECT n.nspname, c.relname, u.root, coalesce(a.attname, ''), u.how, format_type(s.seqtypid, NULL), s.seqincrement, s.seqmin, s.seqmax,
  s.seqstart, s.seqcache, s.seqcycle,
  has_schema_privilege(n.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'SELECT'),
  has_schema_privilege(n.oid, 'USAGE') AND has_sequence_privilege(c.oid, 'UPDATE')
FROM used u JOIN pg_sequence s ON s.seqrelid = u.seq JOIN pg_class c ON c.oid = u.seq AND c.relkind = 'S'
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = u.root AND a.attnum = u.attnum
ORDER BY 1, 2, 3, 4, 5
