-- What the tables whose oids are in $1 have besides what applying changes needs, their partitions' checks and indexes
-- included: (root, level, schema, name, kind, own_name, definition, is_valid, columns, has_row, sequences, is_nextval,
-- of_schema, of_name, calls, refused, is_partitioned).
-- `kind` is default, identity, check, index or comment; `own_name` that of the column, constraint or index, and '' for the
-- table's comment. `definition` is an expression, options, CHECK (...), USING ..., or the comment itself. `columns` are those
-- that it names, unless `has_row`: then it names the row as a whole. `sequences` are those that a default reads; `is_nextval`
-- if it does nothing else. The index that another one is a part of is called `of_schema`.`of_name`.
-- `calls` are functions, operators, types and the like that are not the server's own, as [kind, schema, name]; `refused`
-- what is not known to be harmless (expressions.sql), which would run with the rights of whoever writes a row.
WITH RECURSIVE rel AS (
  SELECT c.oid, n.nspname, c.relname, c.relkind, t.level, root.oid AS root
  FROM unnest($1::oid[]) root (oid)
  CROSS JOIN LATERAL (
    SELECT root.oid AS relid, 0 AS level
    UNION SELECT p.relid, p.level FROM pg_partition_tree(root.oid) p
  ) t
  JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p')
), part (rel, kind, own_name, definition, is_valid, numbers, tree, classid, objid, parent) AS MATERIALIZED (
  SELECT rel.oid, 'default', a.attname::text, pg_get_expr(d.adbin, d.adrelid), true, ARRAY[a.attnum], d.adbin::text,
    'pg_attrdef'::regclass::oid, d.oid, 0::oid
  FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
  JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  WHERE rel.level = 0
  UNION ALL
  SELECT rel.oid, 'identity', a.attname,
    format('%s INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s',
      CASE a.attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END, s.seqincrement, s.seqmin, s.seqmax, s.seqstart,
      s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END),
    true, ARRAY[a.attnum], '', 0::oid, 0::oid, 0::oid
  FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attidentity <> '' AND NOT a.attisdropped
  JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = rel.oid
    AND d.refobjsubid = a.attnum AND d.deptype = 'i'
  JOIN pg_sequence s ON s.seqrelid = d.objid
  WHERE rel.level = 0
  UNION ALL
  SELECT rel.oid, 'check', con.conname, regexp_replace(pg_get_constraintdef(con.oid), ' NOT VALID$', ''),
    con.convalidated, '{}', con.conbin::text, 'pg_constraint'::regclass, con.oid, 0
  FROM rel JOIN pg_constraint con ON con.conrelid = rel.oid
  WHERE con.contype = 'c' AND con.conislocal AND con.coninhcount = 0
  UNION ALL
  SELECT rel.oid, 'index', ic.relname,
    substr(pg_get_indexdef(i.indexrelid), length(format('CREATE INDEX %I ON %s%I.%I ', ic.relname,
      CASE rel.relkind WHEN 'p' THEN 'ONLY ' ELSE '' END, rel.nspname, rel.relname)) + 1),
    i.indisvalid, ARRAY(SELECT unnest(i.indkey::int2[]) EXCEPT SELECT 0::int2), concat(i.indexprs, i.indpred),
    'pg_class'::regclass, i.indexrelid, (SELECT h.inhparent FROM pg_inherits h WHERE h.inhrelid = i.indexrelid)
  FROM rel JOIN pg_index i ON i.indrelid = rel.oid JOIN pg_class ic ON ic.oid = i.indexrelid
  WHERE NOT i.indisunique AND NOT EXISTS (SELECT FROM pg_constraint con WHERE con.conindid = i.indexrelid)
  UNION ALL
  SELECT rel.oid, 'comment', coalesce(a.attname, ''), c.description, true, ARRAY[c.objsubid::int2], '', 0, 0, 0
  FROM rel JOIN pg_description c ON c.classoid = 'pg_class'::regclass AND c.objoid = rel.oid
  LEFT JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum = c.objsubid AND c.objsubid > 0
  WHERE rel.level = 0
), needed AS (
  -- All at once: asked part by part, it takes a hundred times as long.
  SELECT DISTINCT p.classid AS part_class, p.objid AS part, d.refclassid, d.refobjid
  FROM part p JOIN pg_depend d ON d.classid = p.classid AND d.objid = p.objid
  WHERE d.refobjid <> p.rel AND d.refobjid IS DISTINCT FROM p.parent
), thing (kind, classid, oid, namespace, name) AS (
  SELECT 'function', 'pg_proc'::regclass, oid, pronamespace, proname FROM pg_proc
  UNION ALL SELECT 'operator', 'pg_operator'::regclass, oid, oprnamespace, oprname FROM pg_operator
  UNION ALL SELECT 'type', 'pg_type'::regclass, oid, typnamespace, typname FROM pg_type
  UNION ALL SELECT 'operator class', 'pg_opclass'::regclass, oid, opcnamespace, opcname FROM pg_opclass
  UNION ALL SELECT 'collation', 'pg_collation'::regclass, oid, collnamespace, collname FROM pg_collation
  UNION ALL SELECT 'text search configuration', 'pg_ts_config'::regclass, oid, cfgnamespace, cfgname FROM pg_ts_config
  UNION ALL SELECT 'relation', 'pg_class'::regclass, oid, relnamespace, relname FROM pg_class WHERE relkind <> 'S'
), calls AS (
  SELECT u.part_class, u.part, jsonb_agg(jsonb_build_array(t.kind, n.nspname, t.name) ORDER BY t.kind, n.nspname, t.name)
    AS found
  FROM needed u JOIN thing t ON t.classid = u.refclassid AND t.oid = u.refobjid
  JOIN pg_namespace n ON n.oid = t.namespace AND n.nspname <> 'pg_catalog'
  GROUP BY 1, 2
), seq AS (
  SELECT u.part_class, u.part, array_agg(ARRAY[n.nspname, s.relname] ORDER BY s.oid) AS names,
    array_agg(s.oid::regclass::text ORDER BY s.oid) AS texts
  FROM needed u JOIN pg_class s ON u.refclassid = 'pg_class'::regclass AND s.oid = u.refobjid AND s.relkind = 'S'
  JOIN pg_namespace n ON n.oid = s.relnamespace
  GROUP BY 1, 2
), expression AS (
  SELECT p.classid, p.objid, p.tree FROM part p WHERE p.kind IN ('default', 'check', 'index')
),
\ir expressions.sql
, refused AS (
  SELECT u.classid AS part_class, u.objid AS part, array_agg(DISTINCT u.what) AS found FROM unknown u GROUP BY 1, 2
)
SELECT rel.root, rel.level, rel.nspname, rel.relname, p.kind, p.own_name, p.definition, p.is_valid,
  ARRAY(SELECT a.attname FROM pg_attribute a WHERE a.attrelid = rel.oid AND (a.attnum = ANY (p.numbers)
    OR a.attnum IN (SELECT v[1]::int2 FROM regexp_matches(p.tree, ':varattno (\d+)', 'g') v)) ORDER BY a.attnum) AS columns,
  p.tree ~ ':varattno 0\y' AS has_row,
  seq.names, coalesce(p.kind = 'default' AND array_length(seq.names, 1) = 1
    AND p.definition = format('nextval(%L::regclass)', seq.texts[1]), false) AS is_nextval,
  xn.nspname, x.relname, coalesce(calls.found, '[]'), coalesce(refused.found, '{}'), rel.relkind = 'p'
FROM part p JOIN rel ON rel.oid = p.rel
LEFT JOIN seq ON (seq.part_class, seq.part) = (p.classid, p.objid)
LEFT JOIN calls ON (calls.part_class, calls.part) = (p.classid, p.objid)
LEFT JOIN refused ON (refused.part_class, refused.part) = (p.classid, p.objid)
LEFT JOIN pg_class x ON x.oid = p.parent AND p.parent <> 0 LEFT JOIN pg_namespace xn ON xn.oid = x.relnamespace
ORDER BY rel.root, CASE p.kind WHEN 'comment' THEN 2 WHEN 'index' THEN 1 ELSE 0 END, rel.level, rel.nspname, rel.relname,
  p.kind, p.own_name
