-- The collations that columns and indexes of the tables in $1 need and that are not the server's own: (schema, name,
-- statement). What a collation is made of has other columns in other versions of the server.
WITH rel AS (
  SELECT t.relid FROM unnest($1::oid[]) root, pg_partition_tree(root) t UNION SELECT unnest($1::oid[])
), used AS (
  SELECT a.attcollation AS oid FROM rel JOIN pg_attribute a ON a.attrelid = rel.relid AND a.attnum > 0 AND NOT a.attisdropped
  UNION SELECT unnest(i.indcollation::oid[]) FROM rel JOIN pg_index i ON i.indrelid = rel.relid
  UNION SELECT t.typcollation FROM rel JOIN pg_attribute a ON a.attrelid = rel.relid JOIN pg_type t ON t.oid = a.atttypid
)
SELECT n.nspname, c.collname, format('CREATE COLLATION %I.%I (%s)', n.nspname, c.collname, concat_ws(', ',
  format('PROVIDER = %s', CASE c.collprovider WHEN 'i' THEN 'icu' WHEN 'b' THEN 'builtin' ELSE 'libc' END),
  CASE WHEN c.collprovider = 'c' THEN format('LC_COLLATE = %L, LC_CTYPE = %L', c.collcollate, c.collctype)
    ELSE format('LOCALE = %L', coalesce(j ->> 'colllocale', j ->> 'colliculocale', c.collcollate)) END,
  CASE WHEN NOT c.collisdeterministic THEN 'DETERMINISTIC = false' END,
  'RULES = ' || quote_literal(j ->> 'collicurules')))
FROM used u JOIN pg_collation c ON c.oid = u.oid JOIN pg_namespace n ON n.oid = c.collnamespace
CROSS JOIN LATERAL (SELECT to_jsonb(c) AS j) w
WHERE n.nspname <> 'pg_catalog'
ORDER BY 1, 2
