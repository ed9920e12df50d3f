-- The user-defined types that the columns of the tables in $1 are made of, in the order they must be created:
-- (schema, name, statement, extension, tables, called, made_of). There is no statement for a type of an extension or of a
-- table's rows. `tables` are the oids of those that need it; it is `called` so as a column's type, and so is the multirange
-- of a range; `made_of` are the types beneath it. The same of the types in $2.
WITH RECURSIVE part (root, typ, depth) AS (
  -- What the server's own types are made of is the server's own.
  SELECT DISTINCT a.attrelid, a.atttypid, 0 FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
  WHERE a.attrelid = ANY ($1) AND a.attnum > 0 AND NOT a.attisdropped AND t.typnamespace <> 'pg_catalog'::regnamespace
  UNION
  SELECT 0::oid, typ, 0 FROM unnest($2::oid[]) typ
  UNION
  SELECT p.root, inner_type.oid, p.depth + 1
  FROM part p JOIN pg_type t ON t.oid = p.typ
  CROSS JOIN LATERAL (
\ir inner_types.sql
  ) inner_type (oid)
), needed AS (
  SELECT typ, max(depth) AS depth, array_agg(DISTINCT root::bigint) AS roots FROM part GROUP BY typ
), expression AS (
  SELECT 'pg_constraint'::regclass::oid AS classid, c.oid AS objid, c.conbin::text AS tree
  FROM needed JOIN pg_constraint c ON c.contypid = needed.typ AND c.contype = 'c' AND c.convalidated
),
\ir expressions.sql
, safe AS (
  -- Checks of domains are code, which runs with the rights of who applies: those come that are known to be harmless, and
  -- name nothing but the server's own. What rows from before may break would keep them out.
  SELECT c.oid, c.contypid, c.conname, pg_get_constraintdef(c.oid) AS definition
  FROM expression e JOIN pg_constraint c ON c.oid = e.objid
  WHERE c.oid NOT IN (SELECT u.objid FROM unknown u) AND NOT EXISTS (
    SELECT FROM pg_depend d JOIN (
      SELECT 'pg_proc'::regclass AS classid, oid, pronamespace AS namespace FROM pg_proc
      UNION ALL SELECT 'pg_operator'::regclass, oid, oprnamespace FROM pg_operator
      UNION ALL SELECT 'pg_type'::regclass, oid, typnamespace FROM pg_type
    ) o ON (o.classid, o.oid) = (d.refclassid, d.refobjid) AND o.namespace <> 'pg_catalog'::regnamespace
    WHERE d.classid = 'pg_constraint'::regclass AND d.objid = c.oid AND d.refobjid <> c.contypid
  )
)
SELECT n.nspname, t.typname,
  CASE
    WHEN e.extname IS NOT NULL THEN NULL
    WHEN t.typtype = 'e' THEN format('CREATE TYPE %I.%I AS ENUM (%s)', n.nspname, t.typname,
      (SELECT string_agg(quote_literal(l.enumlabel), ', ' ORDER BY l.enumsortorder) FROM pg_enum l WHERE l.enumtypid = t.oid))
    WHEN t.typtype = 'd' THEN format('CREATE DOMAIN %I.%I AS %s%s%s%s', n.nspname, t.typname,
      format_type(t.typbasetype, t.typtypmod),
      (SELECT format(' COLLATE %I.%I', cn.nspname, c.collname) FROM pg_collation c
       JOIN pg_namespace cn ON cn.oid = c.collnamespace JOIN pg_type b ON b.oid = t.typbasetype
       WHERE c.oid = t.typcollation AND t.typcollation <> b.typcollation),
      CASE WHEN t.typnotnull THEN ' NOT NULL' ELSE '' END,
      (SELECT string_agg(format(' CONSTRAINT %I %s', safe.conname, safe.definition), '' ORDER BY safe.conname)
       FROM safe WHERE safe.contypid = t.oid))
    WHEN t.typtype = 'c' AND (SELECT relkind FROM pg_class WHERE oid = t.typrelid) = 'c' THEN format('CREATE TYPE %I.%I AS (%s)', n.nspname, t.typname,
      (SELECT string_agg(format('%I %s%s', a.attname, format_type(a.atttypid, a.atttypmod),
         (SELECT format(' COLLATE %I.%I', cn.nspname, c.collname) FROM pg_collation c
          JOIN pg_namespace cn ON cn.oid = c.collnamespace JOIN pg_type b ON b.oid = a.atttypid
          WHERE c.oid = a.attcollation AND a.attcollation <> b.typcollation)), ', ' ORDER BY a.attnum)
       FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped))
    WHEN t.typtype = 'r' THEN (SELECT format('CREATE TYPE %I.%I AS RANGE (SUBTYPE = %s, SUBTYPE_OPCLASS = %I.%I%s%s%s, MULTIRANGE_TYPE_NAME = %s)',
        n.nspname, t.typname, format_type(r.rngsubtype, NULL), on_.nspname, o.opcname,
        (SELECT format(', COLLATION = %I.%I', cn.nspname, c.collname) FROM pg_collation c
         JOIN pg_namespace cn ON cn.oid = c.collnamespace WHERE c.oid = r.rngcollation),
        CASE WHEN r.rngcanonical::oid <> 0 THEN format(', CANONICAL = %s', r.rngcanonical) ELSE '' END,
        CASE WHEN r.rngsubdiff::oid <> 0 THEN format(', SUBTYPE_DIFF = %s', r.rngsubdiff) ELSE '' END,
        format_type(r.rngmultitypid, NULL))
      FROM pg_range r JOIN pg_opclass o ON o.oid = r.rngsubopc JOIN pg_namespace on_ ON on_.oid = o.opcnamespace
      WHERE r.rngtypid = t.oid)
  END AS statement,
  e.extname, needed.roots,
  ARRAY(SELECT format_type(t.oid, NULL)
    UNION ALL SELECT format_type(r.rngmultitypid, NULL) FROM pg_range r WHERE r.rngtypid = t.oid),
  CASE t.typtype
    WHEN 'd' THEN ARRAY[format_type(t.typbasetype, t.typtypmod)]
    WHEN 'r' THEN ARRAY(SELECT format_type(r.rngsubtype, NULL) FROM pg_range r WHERE r.rngtypid = t.oid)
    WHEN 'c' THEN ARRAY(SELECT format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
      WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum)
    ELSE '{}' END
FROM needed JOIN pg_type t ON t.oid = needed.typ JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_depend d ON d.classid = 'pg_type'::regclass AND d.objid = t.oid AND d.deptype = 'e'
LEFT JOIN pg_extension e ON e.oid = d.refobjid
WHERE n.nspname <> 'pg_catalog' AND t.typtype IN ('e', 'd', 'c', 'r', 'b') AND (t.typtype <> 'b' OR t.typcategory <> 'A')
ORDER BY needed.depth DESC, n.nspname, t.typname
