-- What a superuser has had Penstock make, and a role that takes its place has to own: (kind, name), with the kind as
-- ALTER ... OWNER TO has it. That is the ledger, and of the tables that setup has made ($1 schemas, $2 names) they and their
-- partitions, their enums, which get labels, and the sequences that they draw from. What is not the user's is left alone.
WITH relation AS (
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest($1::text[], $2::text[]))
), part AS (
  SELECT oid FROM relation UNION SELECT p.relid FROM relation r, pg_partition_tree(r.oid) p
)
SELECT w.kind, w.name FROM (
  SELECT 1 AS place, 'SCHEMA' AS kind, quote_ident(n.nspname) AS name, n.nspowner AS owner
    FROM pg_namespace n WHERE n.nspname = 'penstock'
  UNION ALL SELECT 2, CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, c.oid::regclass::text, c.relowner
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'penstock' WHERE c.relkind IN ('r', 'v')
  UNION ALL SELECT 3, 'TABLE', c.oid::regclass::text, c.relowner FROM part JOIN pg_class c ON c.oid = part.oid
  UNION ALL SELECT DISTINCT 4, 'SEQUENCE', s.oid::regclass::text, s.relowner
    FROM part JOIN pg_attrdef d ON d.adrelid = part.oid
    JOIN pg_depend u ON u.classid = 'pg_attrdef'::regclass AND u.objid = d.oid AND u.refclassid = 'pg_class'::regclass
    JOIN pg_class s ON s.oid = u.refobjid AND s.relkind = 'S'
    -- One that a column owns goes with its table.
    WHERE NOT EXISTS (SELECT FROM pg_depend o WHERE o.classid = 'pg_class'::regclass AND o.objid = s.oid AND o.deptype IN ('a', 'i'))
  UNION ALL SELECT DISTINCT 5, 'TYPE', t.oid::regtype::text, t.typowner
    FROM part JOIN pg_attribute a ON a.attrelid = part.oid AND a.attnum > 0 AND NOT a.attisdropped
    JOIN pg_type c ON c.oid = a.atttypid JOIN pg_type t ON t.oid IN (c.oid, c.typelem) AND t.typtype = 'e'
) w JOIN pg_roles r ON r.oid = w.owner AND r.rolname = current_user
ORDER BY w.place, w.name
