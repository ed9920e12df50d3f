-- Code of other roles that runs when somebody writes to tables, or only reads them ($3): role, and what it has, by table.
-- $1, $2 are the tables' schemas and names; $4: by an ordinary session, and not by one that applies changes. Whoever reads a table has its indexes' and statistics' expressions, and its
-- checks, evaluated as far as they depend on no row, while the server plans; so it is with tables that foreign keys lead to and
-- from, in which apply looks for parents and children. Trusted are the same as in owners.sql.
WITH RECURSIVE trusted AS (
  SELECT r.oid FROM pg_roles r
  WHERE r.rolsuper OR (pg_has_role(session_user, r.oid, 'MEMBER')
    AND NOT EXISTS (SELECT FROM pg_roles s WHERE s.rolsuper AND pg_has_role(session_user, s.oid, 'MEMBER')))
), given AS (
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE (n.nspname, c.relname) IN (SELECT * FROM unnest($1::text[], $2::text[]))
), written AS (
  SELECT g.oid FROM given g UNION SELECT p.relid FROM given g, pg_partition_tree(g.oid) p
), relation AS (
  SELECT c.oid, c.oid::regclass::text AS name, c.relowner AS owner, c.relkind, c.oid NOT IN (SELECT g.oid FROM given g) OR $3 AS is_read
  FROM pg_class c WHERE c.oid IN (SELECT g.oid FROM given g
    UNION SELECT CASE f.conrelid WHEN w.oid THEN f.confrelid ELSE f.conrelid END
      FROM written w JOIN pg_constraint f ON f.contype = 'f' AND w.oid IN (f.conrelid, f.confrelid) WHERE NOT $3 AND NOT $4)
  UNION SELECT k.oid, k.oid::regclass::text, k.relowner, k.relkind, r.is_read FROM relation r CROSS JOIN LATERAL (
    SELECT p.relid FROM pg_partition_tree(r.oid) p
    -- A view is what it calls, and the tables and views that it is made of.
    UNION ALL SELECT d.refobjid FROM pg_rewrite w JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
      AND d.refclassid = 'pg_class'::regclass WHERE w.ev_class = r.oid AND r.relkind = 'v'
  ) part JOIN pg_class k ON k.oid = part.relid WHERE k.oid <> r.oid
), typed (typid, name, owner) AS (
  SELECT a.atttypid, r.name, y.typowner FROM relation r JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0
    AND NOT a.attisdropped JOIN pg_type y ON y.oid = a.atttypid WHERE NOT r.is_read
  -- Whatever a value is made of is checked with it.
  UNION SELECT u.oid, t.name, u.typowner FROM typed t JOIN pg_type y ON y.oid = t.typid CROSS JOIN LATERAL (
    SELECT y.typbasetype UNION ALL SELECT y.typelem
    UNION ALL SELECT a.atttypid FROM pg_attribute a
      WHERE y.typtype = 'c' AND a.attrelid = y.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE y.oid IN (g.rngtypid, g.rngmultitypid)
    UNION ALL SELECT g.rngtypid FROM pg_range g WHERE y.oid = g.rngmultitypid
  ) inner_type (oid) JOIN pg_type u ON u.oid = inner_type.oid
), part (classid, objid, name, owner, tree, is_read) AS (
  SELECT 'pg_trigger'::regclass, t.oid, format('trigger %I on %s', t.tgname, r.name), r.owner, t.tgqual::text, r.is_read
    FROM relation r JOIN pg_trigger t ON t.tgrelid = r.oid
    WHERE t.tgenabled IN ('A', CASE WHEN $4 THEN 'O' ELSE 'R' END) AND NOT t.tgisinternal
  UNION ALL SELECT 'pg_rewrite'::regclass, w.oid, format('rule %I on %s', w.rulename, r.name), r.owner,
      concat(w.ev_qual, w.ev_action), r.is_read
    FROM relation r JOIN pg_rewrite w ON w.ev_class = r.oid WHERE w.ev_enabled IN ('A', CASE WHEN $4 THEN 'O' ELSE 'R' END)
  UNION ALL SELECT 'pg_constraint'::regclass, c.oid, format('constraint %I on %s', c.conname, r.name), r.owner, c.conbin::text,
      r.is_read
    FROM relation r JOIN pg_constraint c ON c.conrelid = r.oid
  UNION ALL SELECT 'pg_constraint'::regclass, c.oid, format('constraint %I of a type in %s', c.conname, t.name), t.owner,
      c.conbin::text, false
    FROM typed t JOIN pg_constraint c ON c.contypid = t.typid
  -- The default of a domain, and what a range is made with.
  UNION ALL SELECT 'pg_type'::regclass, t.typid, format('type %s in %s', t.typid::regtype, t.name), t.owner,
      y.typdefaultbin::text, false
    FROM typed t JOIN pg_type y ON y.oid = t.typid
  UNION ALL SELECT 'pg_attrdef'::regclass, d.oid, format('column %I of %s', a.attname, r.name), r.owner, d.adbin::text,
      r.is_read
    FROM relation r JOIN pg_attrdef d ON d.adrelid = r.oid
    JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum = d.adnum
  UNION ALL SELECT 'pg_class'::regclass, i.indexrelid, format('index %s', i.indexrelid::regclass), r.owner,
      concat(i.indexprs, i.indpred), r.is_read
    FROM relation r JOIN pg_index i ON i.indrelid = r.oid
  UNION ALL SELECT 'pg_class'::regclass, r.oid, format('partition key of %s', r.name), r.owner, k.partexprs::text, r.is_read
    FROM relation r JOIN pg_partitioned_table k ON k.partrelid = r.oid
  UNION ALL SELECT 'pg_statistic_ext'::regclass, x.oid, format('statistics %I on %s', x.stxname, r.name), r.owner,
      x.stxexprs::text, r.is_read
    FROM relation r JOIN pg_statistic_ext x ON x.stxrelid = r.oid
), running AS (
  SELECT p.* FROM part p WHERE NOT p.is_read OR p.classid IN ('pg_class'::regclass, 'pg_statistic_ext'::regclass)
    OR p.classid = 'pg_rewrite'::regclass AND p.objid IN (SELECT w.oid FROM pg_rewrite w WHERE w.ev_type = '1')
    OR p.classid = 'pg_constraint'::regclass AND p.objid IN (SELECT c.oid FROM pg_constraint c WHERE c.contypid = 0)
), expression AS (
  SELECT r.classid, r.objid, r.tree FROM running r
),
\ir expressions.sql
, called (classid, oid, name, owner) AS (
  SELECT 'pg_proc'::regclass, p.oid, p.oid::regprocedure::text, p.proowner FROM pg_proc p
  UNION ALL SELECT 'pg_operator'::regclass, o.oid, format('operator %s', o.oid::regoperator), p.proowner
    FROM pg_operator o JOIN pg_proc p ON p.oid = o.oprcode
), code (owner, called, by) AS (
  SELECT c.owner, c.name, p.name
  FROM running p JOIN pg_depend d ON d.classid = p.classid AND d.objid = p.objid
  JOIN called c ON c.classid = d.refclassid AND c.oid = d.refobjid
  -- Of others, the server's own included, those that are not known to be harmless: some run what a text says, as
  -- ts_rewrite() and query_to_xml() do, others do what only few may: lo_export(). Whoever has them called decides what they do.
  UNION ALL SELECT r.owner, u.what, r.name FROM running r JOIN unknown u ON (u.classid, u.objid) = (r.classid, r.objid)
    -- A view is a query, which says nothing; what it calls does.
    LEFT JOIN pg_rewrite v ON r.classid = 'pg_rewrite'::regclass AND v.oid = r.objid AND v.ev_type = '1'
    WHERE v.oid IS NULL OR u.what LIKE '%(%'
)
SELECT r.rolname::text, array_agg(DISTINCT format('%s, called by %s', c.called, c.by))
FROM code c JOIN pg_roles r ON r.oid = c.owner
WHERE c.owner NOT IN (SELECT t.oid FROM trusted t)
GROUP BY 1 ORDER BY 1
