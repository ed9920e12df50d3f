-- What must be at the target before tables like those in $1 can be made, and is neither a table nor a type nor the server's
-- own: (root, kind, schema, name, signature, statement, extension). `signature` tells those of one name apart. A statement is there
-- for collations; what one is made of has other columns in other versions of the server. Types of the tables' columns, their
-- partitions, keys and unique indexes are looked into; of collations also indexes that are built later.
WITH RECURSIVE rel AS (
  SELECT root, t.relid AS oid FROM unnest($1::oid[]) root, pg_partition_tree(root) t UNION SELECT r, r FROM unnest($1::oid[]) r
), typ (root, oid) AS (
  SELECT rel.root, a.atttypid FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped
  UNION
  SELECT typ.root, inner_type.oid FROM typ JOIN pg_type t ON t.oid = typ.oid CROSS JOIN LATERAL (
\ir inner_types.sql
  ) inner_type (oid)
), idx AS (
  SELECT rel.root, i.indexrelid AS oid, i.indisunique OR i.indisexclusion AS is_key FROM rel JOIN pg_index i ON i.indrelid = rel.oid
  WHERE i.indisvalid
), part (root, classid, objid, is_later) AS (
  SELECT root, 'pg_class'::regclass::oid, oid, false FROM rel
  UNION SELECT root, 'pg_class'::regclass, oid, NOT is_key FROM idx
  UNION SELECT root, 'pg_type'::regclass, oid, false FROM typ
  UNION SELECT typ.root, 'pg_class'::regclass, t.typrelid, false FROM typ JOIN pg_type t ON t.oid = typ.oid WHERE t.typtype = 'c'
  UNION SELECT root, 'pg_constraint'::regclass, c.oid, false FROM rel
    JOIN pg_constraint c ON c.conrelid = rel.oid AND c.contype = 'x'
  UNION SELECT root, 'pg_attrdef'::regclass, d.oid, false FROM rel
    JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attgenerated <> ''
    JOIN pg_attrdef d ON d.adrelid = rel.oid AND d.adnum = a.attnum
), known AS (
  SELECT 'collation' AS kind, 'pg_collation'::regclass AS classid, c.oid, collnamespace AS namespace, collname AS name,
    '' AS signature, format('CREATE COLLATION %I.%I (%s)', n.nspname, c.collname, concat_ws(', ',
      format('PROVIDER = %s', CASE c.collprovider WHEN 'i' THEN 'icu' WHEN 'b' THEN 'builtin' ELSE 'libc' END),
      CASE WHEN c.collprovider = 'c' THEN format('LC_COLLATE = %L, LC_CTYPE = %L', c.collcollate, c.collctype)
        ELSE format('LOCALE = %L', coalesce(j ->> 'colllocale', j ->> 'colliculocale', c.collcollate)) END,
      CASE WHEN NOT c.collisdeterministic THEN 'DETERMINISTIC = false' END,
      'RULES = ' || quote_literal(j ->> 'collicurules'))) AS statement
  FROM pg_collation c JOIN pg_namespace n ON n.oid = c.collnamespace CROSS JOIN LATERAL (SELECT to_jsonb(c) AS j) w
  UNION ALL
  SELECT 'operator class', 'pg_opclass'::regclass, o.oid, opcnamespace, opcname, a.amname, NULL
  FROM pg_opclass o JOIN pg_am a ON a.oid = o.opcmethod
  UNION ALL
  SELECT 'function', 'pg_proc'::regclass, oid, pronamespace, proname, pg_get_function_identity_arguments(oid), NULL FROM pg_proc
  UNION ALL
  SELECT 'operator', 'pg_operator'::regclass, oid, oprnamespace, oprname,
    concat_ws(', ', format_type(nullif(oprleft, 0), NULL), format_type(oprright, NULL)), NULL
  FROM pg_operator
)
SELECT DISTINCT p.root, k.kind, n.nspname, k.name, k.signature, k.statement, e.extname
FROM part p JOIN pg_depend d ON d.classid = p.classid AND d.objid = p.objid
JOIN known k ON k.classid = d.refclassid AND k.oid = d.refobjid JOIN pg_namespace n ON n.oid = k.namespace
LEFT JOIN pg_depend x ON x.classid = k.classid AND x.objid = k.oid AND x.deptype = 'e'
LEFT JOIN pg_extension e ON e.oid = x.refobjid
WHERE n.nspname <> 'pg_catalog' AND (k.kind = 'collation' OR NOT p.is_later)
  -- What a type that nobody can make of its definition is made of is asked for with it.
  AND NOT (p.classid = 'pg_type'::regclass AND k.kind IN ('function', 'operator')
    AND (SELECT t.typtype = 'b' FROM pg_type t WHERE t.oid = p.objid))
ORDER BY 2, 3, 4, 5, 1
