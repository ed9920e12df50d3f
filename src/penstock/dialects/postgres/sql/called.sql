-- What of other roles runs when functions, operators and types of the names in $1 (kinds), $2 (schemas) and $3 (names) are
-- called: role, and what it has. Whatever is of a name counts, for of several the nearest is called. With a type go the types
-- it is made of, what they call (checks, defaults, input and output), and casts between them. Trusted are the same as in
-- owners.sql. If $4, also functions, whoever's, that are not known to be harmless (harmless.sql), with no role: expressions that
-- the server lets call anything, as checks and defaults, would have them do as they say.
WITH RECURSIVE trusted AS (
  SELECT r.oid FROM pg_roles r
  WHERE r.rolsuper OR (pg_has_role(session_user, r.oid, 'MEMBER')
    AND NOT EXISTS (SELECT FROM pg_roles s WHERE s.rolsuper AND pg_has_role(session_user, s.oid, 'MEMBER')))
), named AS (
  SELECT w.kind, n.oid AS namespace, w.name
  FROM unnest($1::text[], $2::text[], $3::text[]) w (kind, schema, name) JOIN pg_namespace n ON n.nspname = w.schema
), typ (oid) AS (
  SELECT t.oid FROM named w JOIN pg_type t ON w.kind = 'type' AND (t.typnamespace, t.typname) = (w.namespace, w.name)
  UNION
  SELECT inner_type.oid FROM typ JOIN pg_type t ON t.oid = typ.oid CROSS JOIN LATERAL (
    SELECT t.typelem UNION ALL SELECT t.typbasetype
    UNION ALL SELECT a.atttypid FROM pg_attribute a
      WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid
    UNION ALL SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = t.oid
  ) inner_type (oid)
  WHERE inner_type.oid <> 0 AND t.oid >= 16384
), part (classid, objid) AS (
  SELECT 'pg_type'::regclass, typ.oid FROM typ WHERE typ.oid >= 16384
  UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM typ JOIN pg_constraint c ON c.contypid = typ.oid
  UNION ALL SELECT 'pg_cast'::regclass, k.oid FROM pg_cast k WHERE k.oid >= 16384
    AND (k.castsource < 16384 OR k.castsource IN (SELECT typ.oid FROM typ))
    AND (k.casttarget < 16384 OR k.casttarget IN (SELECT typ.oid FROM typ))
), called (kind, oid, is_named) AS (
  SELECT w.kind, f.oid, true FROM named w JOIN pg_proc f
    ON w.kind = 'function' AND (f.pronamespace, f.proname) = (w.namespace, w.name)
  UNION SELECT w.kind, o.oid, true FROM named w JOIN pg_operator o
    ON w.kind = 'operator' AND (o.oprnamespace, o.oprname) = (w.namespace, w.name)
  UNION SELECT CASE d.refclassid WHEN 'pg_proc'::regclass THEN 'function' ELSE 'operator' END, d.refobjid, false
    FROM part p JOIN pg_depend d ON (d.classid, d.objid) = (p.classid, p.objid)
    WHERE d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass)
), thing (shown, owner) AS (
  SELECT f.oid::regprocedure::text, f.proowner FROM called c JOIN pg_proc f ON c.kind = 'function' AND f.oid = c.oid
  UNION ALL SELECT format('operator %s', o.oid::regoperator), f.proowner
    FROM called c JOIN pg_operator o ON c.kind = 'operator' AND o.oid = c.oid JOIN pg_proc f ON f.oid = o.oprcode
  UNION ALL SELECT format('type %s', t.oid::regtype), t.typowner FROM typ JOIN pg_type t ON t.oid = typ.oid
), asked AS (
  SELECT coalesce(o.oprcode::oid, c.oid) AS oid
  FROM called c LEFT JOIN pg_operator o ON c.kind = 'operator' AND o.oid = c.oid
  WHERE $4 AND c.is_named
),
\ir harmless.sql
SELECT r.rolname::text, array_agg(DISTINCT t.shown)
FROM thing t JOIN pg_roles r ON r.oid = t.owner
WHERE t.owner NOT IN (SELECT oid FROM trusted)
GROUP BY 1
UNION ALL
SELECT NULL, array_agg(DISTINCT d.oid::regprocedure::text) FROM doubtful d HAVING count(*) > 0
ORDER BY 1
