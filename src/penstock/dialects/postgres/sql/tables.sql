-- Statements that make tables like those in $1, with their partitions: (root, kind, schema, name, own_name, other_schema,
-- other_name, is_part, statement). `schema` and `name` are those of the table or partition, `own_name` that of its key or
-- index, the others those of the table that a partition is of, that a foreign key refers to, or of the index that one of a
-- partition is attached to. `is_part`: the server makes it by itself where a partition is made later.
-- Steps: 1 the table, 2 keys and unique constraints and indexes, 3 those of partitions attached, 4 foreign keys.
WITH rel AS (
  SELECT c.oid, n.nspname, c.relname, c.relkind, c.relispartition, c.relpartbound, t.level, root.oid AS root
  FROM unnest($1::oid[]) root (oid)
  CROSS JOIN LATERAL (
    SELECT root.oid AS relid, 0 AS level
    UNION SELECT p.relid, p.level FROM pg_partition_tree(root.oid) p
  ) t
  JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p')
), not_null AS (
  -- Constraints of their own from PostgreSQL 18 on. One that is not valid lets rows be that have to be copied.
  SELECT con.conrelid, con.conkey[1] AS attnum, con.convalidated AS is_valid,
    -- The server gives a name to no second one in a schema, unless it is told to.
    CASE WHEN con.conname <> concat(c.relname, '_', a.attname, '_not_null') OR EXISTS (SELECT FROM pg_constraint o
        WHERE o.conname = con.conname AND o.connamespace = con.connamespace AND o.conrelid <> con.conrelid)
      THEN format(' CONSTRAINT %I', con.conname) ELSE '' END AS named,
    CASE WHEN con.connoinherit THEN ' NO INHERIT' ELSE '' END AS inherits
  FROM rel JOIN pg_constraint con ON con.conrelid = rel.oid AND con.contype = 'n' JOIN pg_class c ON c.oid = con.conrelid
  JOIN pg_attribute a ON a.attrelid = con.conrelid AND a.attnum = con.conkey[1]
), columns AS (
  SELECT rel.oid, string_agg(format('%I %s%s%s%s', a.attname, format_type(a.atttypid, a.atttypmod),
    (SELECT format(' COLLATE %I.%I', cn.nspname, k.collname) FROM pg_collation k
     JOIN pg_namespace cn ON cn.oid = k.collnamespace JOIN pg_type b ON b.oid = a.atttypid
     WHERE k.oid = a.attcollation AND a.attcollation <> b.typcollation),
    CASE
      WHEN a.attgenerated = 's' THEN format(' GENERATED ALWAYS AS (%s) STORED', pg_get_expr(d.adbin, d.adrelid))
      WHEN a.attgenerated = 'v' THEN format(' GENERATED ALWAYS AS (%s) VIRTUAL', pg_get_expr(d.adbin, d.adrelid))
      WHEN a.attidentity <> '' AND rel.level = 0 THEN format(' GENERATED %s AS IDENTITY%s',
        CASE a.attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END,
        -- By a name of its own where another one may take the usual one.
        (SELECT format(' (SEQUENCE NAME %I.%I)', sn.nspname, s.relname) FROM pg_depend e
         JOIN pg_class s ON s.oid = e.objid AND s.relkind = 'S' JOIN pg_namespace sn ON sn.oid = s.relnamespace
         WHERE e.classid = 'pg_class'::regclass AND e.refclassid = 'pg_class'::regclass AND e.deptype = 'i'
           AND e.refobjid = rel.oid AND e.refobjsubid = a.attnum
           AND s.relname <> concat(rel.relname, '_', a.attname, '_seq')))
      ELSE '' END,
    CASE WHEN a.attnotnull AND coalesce(n.is_valid, true) THEN concat(n.named, ' NOT NULL', n.inherits) ELSE '' END),
    ', ' ORDER BY a.attnum) AS definition, array_agg(a.attname ORDER BY a.attnum) AS names
  FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN not_null n ON n.conrelid = a.attrelid AND n.attnum = a.attnum
  GROUP BY rel.oid
), key AS (
  -- What an index that is not valid says holds for no row.
  SELECT rel.*, i.indexrelid, ic.relname AS own_name, con.oid AS con, con.contype, h.inhparent
  FROM rel JOIN pg_index i ON i.indrelid = rel.oid JOIN pg_class ic ON ic.oid = i.indexrelid
  LEFT JOIN pg_constraint con ON con.conindid = i.indexrelid AND con.conrelid = rel.oid AND con.contype IN ('p', 'u', 'x')
  LEFT JOIN pg_inherits h ON h.inhrelid = i.indexrelid
  WHERE (i.indisunique OR con.oid IS NOT NULL) AND i.indisvalid
)
SELECT root, kind, nspname, relname, own_name, other_schema, other_name, is_part, statement FROM (
SELECT rel.root, 1 AS step, CASE WHEN rel.level > 0 THEN 'partition' ELSE 'table' END AS kind, rel.nspname, rel.relname,
  NULL::name AS own_name, pn.nspname AS other_schema, p.relname AS other_name, false AS is_part,
  CASE
    -- One whose columns stand in another order was a table of its own before.
    WHEN rel.level > 0 AND c.names = (SELECT names FROM columns r WHERE r.oid = i.inhparent) THEN
      format('CREATE TABLE %I.%I PARTITION OF %I.%I %s', rel.nspname, rel.relname, pn.nspname, p.relname,
        pg_get_expr(rel.relpartbound, rel.oid))
    ELSE format('CREATE TABLE %I.%I (%s)', rel.nspname, rel.relname, concat_ws(', ', c.definition, (
      SELECT string_agg(format('CONSTRAINT %I %s', k.conname, pg_get_constraintdef(k.oid)), ', ' ORDER BY k.conname)
      FROM pg_constraint k WHERE rel.level > 0 AND k.conrelid = rel.oid AND k.contype = 'c' AND k.coninhcount > 0)))
  END
  || CASE WHEN rel.relkind = 'p' THEN ' PARTITION BY ' || pg_get_partkeydef(rel.oid) ELSE '' END
  || CASE WHEN rel.level > 0 AND c.names <> (SELECT names FROM columns r WHERE r.oid = i.inhparent) THEN
      format('; ALTER TABLE ONLY %I.%I ATTACH PARTITION %I.%I %s', pn.nspname, p.relname, rel.nspname, rel.relname,
        pg_get_expr(rel.relpartbound, rel.oid)) ELSE '' END AS statement, rel.level
FROM rel LEFT JOIN columns c ON c.oid = rel.oid LEFT JOIN pg_inherits i ON i.inhrelid = rel.oid AND rel.level > 0
LEFT JOIN pg_class p ON p.oid = i.inhparent LEFT JOIN pg_namespace pn ON pn.oid = p.relnamespace
UNION ALL
SELECT key.root, 2, CASE key.contype WHEN 'p' THEN 'primary key' WHEN 'u' THEN 'unique key' WHEN 'x' THEN
    'exclusion constraint' ELSE 'index' END, key.nspname, key.relname, key.own_name, NULL, NULL,
  key.inhparent IN (SELECT indexrelid FROM key),
  CASE WHEN key.con IS NULL THEN pg_get_indexdef(key.indexrelid)
    -- As those of its partitions are made and attached one by one, by their names.
    ELSE format('ALTER TABLE %s%I.%I ADD CONSTRAINT %I %s', CASE key.relkind WHEN 'p' THEN 'ONLY ' ELSE '' END, key.nspname,
      key.relname, key.own_name, pg_get_constraintdef(key.con)) END,
  key.level
FROM key
UNION ALL
SELECT key.root, 3, 'attached index', key.nspname, key.relname, key.own_name, pn.nspname, p.own_name, true,
  format('ALTER INDEX %I.%I ATTACH PARTITION %I.%I', pn.nspname, p.own_name, key.nspname, key.own_name), key.level
FROM key JOIN key p ON p.indexrelid = key.inhparent AND p.root = key.root
JOIN pg_class pc ON pc.oid = p.indexrelid JOIN pg_namespace pn ON pn.oid = pc.relnamespace
UNION ALL
SELECT rel.root, 4, 'foreign key', rel.nspname, rel.relname, con.conname, pn.nspname, p.relname, false,
  -- One that is not valid lets rows be that have to be copied, and says nothing of them.
  format('ALTER TABLE %I.%I ADD CONSTRAINT %I %s', rel.nspname, rel.relname, con.conname, pg_get_constraintdef(con.oid)),
  rel.level
FROM rel JOIN pg_constraint con ON con.conrelid = rel.oid
JOIN pg_class p ON p.oid = con.confrelid JOIN pg_namespace pn ON pn.oid = p.relnamespace
WHERE con.contype = 'f' AND con.conparentid = 0 AND con.conislocal
) s ORDER BY step, level, nspname, relname, statement
