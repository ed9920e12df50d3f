-- What the tables whose oids are in $1 are made of, their partitions included, and what their schemas, and those in $2, hold
-- besides, an object a row: (root, schema, table, kind, name, holder, definition, parent, made, is_plain, make, change, remove). Both databases
-- are asked this, and what differs is what the copy is not.
-- `table` is NULL for what belongs to a schema; `name` is qualified then. `holder` is "kind name" of the object that an owner,
-- a right or a comment belongs to. `definition` is compared. `parent` is the index that one of a partition is attached to.
-- `made` says when a copy gets it (setup, copied, cutover) if `is_plain`: it calls nothing but the server's own functions, and
-- none of these that is not known to be harmless (expressions.sql). `make`, `change` and `remove` are statements for who makes it by hand.
-- Extensions' objects and Penstock's own are left out. An index that is not valid is of a kind of its own.
WITH RECURSIVE rel AS (
  SELECT c.oid, c.relnamespace, n.nspname, c.relname, c.relkind, c.relowner, c.relacl, c.reloptions, c.relpersistence, c.relam,
    c.reloftype, c.relreplident, c.relrowsecurity, c.relforcerowsecurity, c.relpartbound, c.reltoastrelid, t.level, t.root,
    format('%I.%I', n.nspname, c.relname) AS path
  FROM (
    -- One that is captured as a table, and is a partition here, is that.
    SELECT DISTINCT ON (relid) root, relid, level FROM (
      SELECT root, root AS relid, 0 AS level FROM unnest($1::oid[]) root
      UNION SELECT root, p.relid, p.level FROM unnest($1::oid[]) root, pg_partition_tree(root) p
    ) u ORDER BY relid, level DESC
  ) t
  JOIN pg_class c ON c.oid = t.relid JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE c.relkind IN ('r', 'p')
), extended AS (
  SELECT d.classid, d.objid FROM pg_depend d WHERE d.deptype = 'e'
  -- Ours, beside a capture set.
  UNION ALL SELECT d.classoid, d.objoid FROM pg_description d WHERE d.objsubid = 0
    AND starts_with(d.description, 'penstock: documented tables of ')
), used (typ) AS (
  SELECT DISTINCT a.atttypid FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped
  UNION
  SELECT inner_type.oid FROM used u JOIN pg_type t ON t.oid = u.typ CROSS JOIN LATERAL (
\ir inner_types.sql
  ) inner_type (oid)
), space AS (
  SELECT n.oid, n.nspname, n.nspowner, n.nspacl FROM pg_namespace n
  WHERE n.oid IN (SELECT relnamespace FROM rel) OR n.nspname = ANY ($2::text[])
    -- What setup makes for a table elsewhere.
    OR n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.oid IN (
      SELECT t.typnamespace FROM used u JOIN pg_type t ON t.oid = u.typ
      WHERE NOT EXISTS (SELECT FROM extended e WHERE e.classid = 'pg_type'::regclass AND e.objid = t.oid)
      UNION ALL SELECT s.relnamespace FROM rel JOIN pg_attrdef f ON f.adrelid = rel.oid
      JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = f.oid AND d.refclassid = 'pg_class'::regclass
      JOIN pg_class s ON s.oid = d.refobjid AND s.relkind = 'S')
), att AS (
  SELECT rel.root, rel.level, rel.nspname, rel.relname, rel.path, rel.relkind, rel.relowner, a.*, d.oid AS def, d.adbin,
    format('ALTER TABLE %s ALTER COLUMN %I', rel.path, a.attname) AS alter
  FROM rel JOIN pg_attribute a ON a.attrelid = rel.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
), con AS (
  SELECT rel.root, rel.level, rel.nspname, rel.relname, rel.path, rel.relkind, c.*, pg_get_constraintdef(c.oid) AS definition,
    format('ALTER TABLE %s', rel.path) AS alter
  FROM rel JOIN pg_constraint c ON c.conrelid = rel.oid
), idx AS (
  SELECT rel.root, rel.level, rel.nspname, rel.relname, rel.path, i.*, c.relname AS index, c.reloptions, c.relkind,
    format('%I.%I', rel.nspname, c.relname) AS index_path, k.oid AS con, (
      SELECT concat(pn.nspname, '.', p.relname) FROM pg_inherits h JOIN pg_class p ON p.oid = h.inhparent
      JOIN pg_namespace pn ON pn.oid = p.relnamespace WHERE h.inhrelid = i.indexrelid) AS parent
  FROM rel JOIN pg_index i ON i.indrelid = rel.oid JOIN pg_class c ON c.oid = i.indexrelid
  LEFT JOIN pg_constraint k ON k.conindid = i.indexrelid AND k.conrelid = rel.oid AND k.contype IN ('p', 'u', 'x')
), typ AS (
  SELECT t.*, n.nspname, format('%I.%I', n.nspname, t.typname) AS path
  FROM pg_type t JOIN space n ON n.oid = t.typnamespace
  LEFT JOIN pg_class c ON c.oid = t.typrelid
  WHERE (t.typtype IN ('e', 'd', 'r') OR c.relkind = 'c')
    AND NOT EXISTS (SELECT FROM extended e WHERE e.classid = 'pg_type'::regclass AND e.objid = t.oid)
), obj (root, nspname, relname, kind, name, definition, parent, made, make, change, remove, classid, objid, tree, owner, acl,
    called) AS MATERIALIZED (
  SELECT root, nspname, relname, CASE WHEN level > 0 THEN 'partition' ELSE 'table' END, ''::text,
    concat_ws(' ', CASE WHEN reloftype <> 0 THEN format('OF %s', format_type(reloftype, NULL)) END,
      (SELECT format('USING %I', amname) FROM pg_am WHERE pg_am.oid = relam AND amname <> 'heap'),
      CASE WHEN level > 0 THEN format('PARTITION OF %s %s', parent, pg_get_expr(relpartbound, rel.oid)) END,
      CASE WHEN relkind = 'p' THEN 'PARTITION BY ' || pg_get_partkeydef(rel.oid) END),
    NULL::text, '',
    CASE WHEN level > 0 THEN concat(format('CREATE TABLE %s PARTITION OF %s %s', path, parent, pg_get_expr(relpartbound, rel.oid)),
      CASE WHEN relkind = 'p' THEN ' PARTITION BY ' || pg_get_partkeydef(rel.oid) END) END,
    CASE WHEN level > 0 THEN format('ALTER TABLE %s ATTACH PARTITION %s %s', parent, path, pg_get_expr(relpartbound, rel.oid)) END,
    CASE WHEN level > 0 THEN format('ALTER TABLE %s DETACH PARTITION %s', parent, path) END, 'pg_class'::regclass::oid, oid,
    NULL::text, relowner, relacl, format('TABLE %s', path)
  FROM rel LEFT JOIN LATERAL (SELECT i.inhparent::regclass AS parent FROM pg_inherits i WHERE i.inhrelid = rel.oid AND level > 0) h
    ON true
  UNION ALL
  SELECT root, nspname, relname, 'persistence', '', lower(word), NULL, '', alter, alter, NULL, 0, 0, NULL, NULL, NULL, NULL
  FROM rel CROSS JOIN LATERAL (SELECT CASE relpersistence WHEN 'u' THEN 'UNLOGGED' ELSE 'LOGGED' END AS word) w
  CROSS JOIN LATERAL (SELECT format('ALTER TABLE %s SET %s', path, word) AS alter) a WHERE relkind = 'r'
  UNION ALL
  SELECT root, nspname, relname, 'column order', '', string_agg(format('%I', attname), ', ' ORDER BY attnum), NULL, '', NULL,
    NULL, NULL, 0, 0, NULL, NULL::oid, NULL::aclitem[], NULL
  FROM att GROUP BY root, nspname, relname
  UNION ALL
  SELECT root, nspname, relname, 'column', attname, concat(kind, generated), NULL, '',
    format('ALTER TABLE %s ADD COLUMN IF NOT EXISTS %I %s%s', path, attname, kind, generated),
    CASE WHEN attgenerated = '' THEN format('%s TYPE %s', alter, kind) END,
    format('ALTER TABLE %s DROP COLUMN IF EXISTS %I', path, attname), 0, 0, NULL, NULL, attacl, format('%I, TABLE %s', attname, path)
  FROM att CROSS JOIN LATERAL (
    SELECT concat(format_type(atttypid, atttypmod), (SELECT format(' COLLATE %I.%I', cn.nspname, k.collname)
        FROM pg_collation k JOIN pg_namespace cn ON cn.oid = k.collnamespace JOIN pg_type b ON b.oid = atttypid
        WHERE k.oid = attcollation AND attcollation <> b.typcollation)) AS kind,
      CASE attgenerated WHEN 's' THEN format(' GENERATED ALWAYS AS (%s) STORED', pg_get_expr(adbin, attrelid))
        WHEN 'v' THEN format(' GENERATED ALWAYS AS (%s) VIRTUAL', pg_get_expr(adbin, attrelid)) END AS generated
  ) w
  UNION ALL
  SELECT a.root, a.nspname, a.relname, 'not null', a.attname,
    concat('NOT NULL', CASE WHEN c.convalidated IS FALSE THEN ' NOT VALID' END, CASE WHEN c.connoinherit THEN ' NO INHERIT' END,
      CASE WHEN a.level = 0 AND c.conname <> concat(a.relname, '_', a.attname, '_not_null')
        THEN format(' CONSTRAINT %I', c.conname) END),
    NULL, CASE WHEN c.convalidated IS FALSE AND c.coninhcount = 0 THEN 'cutover' ELSE '' END,
    -- Before PostgreSQL 18 there is no constraint of a name.
    CASE WHEN c.conname IS NULL THEN a.alter || ' SET NOT NULL'
      ELSE format('ALTER TABLE %s ADD CONSTRAINT %I %s', a.path, c.conname, c.definition) END, NULL,
    a.alter || ' DROP NOT NULL', 'pg_constraint'::regclass, c.oid, NULL, NULL, NULL, NULL
  FROM att a LEFT JOIN con c ON c.conrelid = a.attrelid AND c.contype = 'n' AND c.conkey = ARRAY[a.attnum]
  WHERE a.attnotnull
  UNION ALL
  SELECT root, nspname, relname, 'default', attname, pg_get_expr(adbin, attrelid), NULL, '',
    format('%s SET DEFAULT %s', alter, pg_get_expr(adbin, attrelid)),
    format('%s SET DEFAULT %s', alter, pg_get_expr(adbin, attrelid)), alter || ' DROP DEFAULT', 'pg_attrdef'::regclass, def,
    adbin::text, NULL, NULL, NULL
  FROM att WHERE def IS NOT NULL AND attgenerated = '' AND level = 0
  UNION ALL
  -- A partition has its table's default, or is told of.
  SELECT a.root, a.nspname, a.relname, 'default', a.attname, coalesce(own, 'none'), NULL, 'setup', set_own, set_own,
    coalesce(format('%s SET DEFAULT %s', a.alter, general), a.alter || ' DROP DEFAULT'), 'pg_attrdef'::regclass, a.def,
    a.adbin::text, NULL, NULL, NULL
  FROM att a JOIN att r ON r.attrelid = a.root AND r.attname = a.attname AND r.attgenerated = ''
  CROSS JOIN LATERAL (SELECT pg_get_expr(a.adbin, a.attrelid) AS own, pg_get_expr(r.adbin, r.attrelid) AS general) d
  CROSS JOIN LATERAL (SELECT coalesce(format('%s SET DEFAULT %s', a.alter, own), a.alter || ' DROP DEFAULT') AS set_own) w
  WHERE a.level > 0 AND own IS DISTINCT FROM general
  UNION ALL
  SELECT a.root, a.nspname, a.relname, 'identity', a.attname, concat(how, sequence, options), NULL, '',
    format('%s ADD GENERATED %s AS IDENTITY (%s%s)', a.alter, how, ltrim(sequence || ' '), ltrim(options)),
    format('%s SET GENERATED %s%s', a.alter, how, regexp_replace(options, ' (INCREMENT|MINVALUE|MAXVALUE|START|CACHE|NO CYCLE|(?<!NO )CYCLE)',
      ' SET \1', 'g')),
    a.alter || ' DROP IDENTITY', 0, 0, NULL, NULL, c.relacl, format('SEQUENCE %I.%I', n.nspname, c.relname)
  FROM att a JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
    AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum AND d.deptype = 'i'
  JOIN pg_sequence s ON s.seqrelid = d.objid JOIN pg_class c ON c.oid = d.objid JOIN pg_namespace n ON n.oid = c.relnamespace
  CROSS JOIN LATERAL (SELECT CASE a.attidentity WHEN 'a' THEN 'ALWAYS' ELSE 'BY DEFAULT' END AS how,
    CASE WHEN c.relname <> concat(a.relname, '_', a.attname, '_seq') THEN format(' SEQUENCE NAME %I.%I', n.nspname, c.relname)
      ELSE '' END AS sequence,
    format(' INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s', s.seqincrement, s.seqmin, s.seqmax,
      s.seqstart, s.seqcache, CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END) AS options) o
  WHERE a.level = 0
  UNION ALL
  SELECT c.root, c.nspname, c.relname, CASE c.contype WHEN 'p' THEN 'primary key' WHEN 'u' THEN 'unique key' WHEN 'c' THEN 'check'
      WHEN 'x' THEN 'exclusion constraint' WHEN 't' THEN 'constraint trigger' ELSE 'foreign key' END,
    c.conname, c.definition, i.parent, '',
    format('%s ADD CONSTRAINT %I %s', c.alter, c.conname, c.definition), NULL,
    format('%s DROP CONSTRAINT IF EXISTS %I', c.alter, c.conname), 'pg_constraint'::regclass, c.oid, c.conbin::text, NULL, NULL, NULL
  FROM con c LEFT JOIN idx i ON i.con = c.oid
  WHERE c.contype IN ('p', 'u', 'x', 'f', 'c') AND NOT (c.contype = 'f' AND c.conparentid <> 0)
    AND NOT (c.contype = 'c' AND c.coninhcount > 0 AND (c.level > 0 OR EXISTS (SELECT FROM pg_inherits h
      WHERE h.inhrelid = c.conrelid AND h.inhparent IN (SELECT oid FROM rel))))
    AND coalesce(i.indisvalid, true)
  UNION ALL
  -- Of a child that was made later than a check which is not valid for its parent.
  SELECT c.root, c.nspname, c.relname, 'valid check', c.conname, '', NULL, '', format('%s VALIDATE CONSTRAINT %I', c.alter, c.conname),
    NULL, NULL, 0, 0, NULL, NULL, NULL, NULL
  FROM con c WHERE c.contype = 'c' AND c.coninhcount > 0 AND c.convalidated AND EXISTS (
    SELECT FROM pg_inherits h JOIN con p ON p.conrelid = h.inhparent AND p.contype = 'c' AND p.conname = c.conname
      AND NOT p.convalidated WHERE h.inhrelid = c.conrelid)
  UNION ALL
  SELECT root, nspname, relname, 'index', index, pg_get_indexdef(indexrelid), parent, '',
    -- Of a partitioned table it is made for all partitions at once.
    overlay(pg_get_indexdef(indexrelid) PLACING '' FROM strpos(pg_get_indexdef(indexrelid), ' ON ONLY ') + 3
      FOR CASE relkind WHEN 'I' THEN 5 ELSE 0 END), NULL,
    format('DROP INDEX IF EXISTS %s', index_path), 'pg_class'::regclass, indexrelid, concat(indexprs, indpred), NULL, NULL, NULL
  FROM idx WHERE con IS NULL AND indisvalid
  UNION ALL
  SELECT root, nspname, relname, 'invalid index', index, pg_get_indexdef(indexrelid), parent,
    CASE WHEN indisunique OR indisexclusion THEN 'unique' ELSE '' END,
    -- Of a partitioned table for all partitions at once: made of it alone, it would not be valid again.
    CASE WHEN con IS NULL THEN overlay(pg_get_indexdef(indexrelid) PLACING ''
        FROM strpos(pg_get_indexdef(indexrelid), ' ON ONLY ') + 3 FOR CASE relkind WHEN 'I' THEN 5 ELSE 0 END)
      ELSE format('ALTER TABLE %s ADD CONSTRAINT %I %s', path, index, pg_get_constraintdef(con)) END, NULL,
    CASE WHEN con IS NULL THEN format('DROP INDEX %s', index_path) ELSE format('ALTER TABLE %s DROP CONSTRAINT %I', path,
      (SELECT conname FROM pg_constraint WHERE oid = con)) END, 0, 0, NULL, NULL, NULL, NULL
  FROM idx WHERE NOT indisvalid
  UNION ALL
  SELECT root, nspname, relname, 'storage parameters of key', index, array_to_string(reloptions, ', '), NULL, 'setup',
    format('ALTER INDEX %s SET (%s)', index_path, array_to_string(reloptions, ', ')),
    format('ALTER INDEX %s SET (%s)', index_path, array_to_string(reloptions, ', ')),
    format('ALTER INDEX %s RESET (%s)', index_path, (SELECT string_agg(split_part(o, '=', 1), ', ') FROM unnest(reloptions) o)),
    0, 0, NULL, NULL, NULL, NULL
  FROM idx WHERE con IS NOT NULL AND reloptions IS NOT NULL AND indisvalid AND relkind = 'i'
  UNION ALL
  SELECT i.root, i.nspname, i.relname, 'statistics target of index', format('%s, %s', i.index, a.attnum), a.attstattarget::text,
    NULL, 'copied', format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS %s', i.index_path, a.attnum, a.attstattarget),
    format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS %s', i.index_path, a.attnum, a.attstattarget),
    format('ALTER INDEX %s ALTER COLUMN %s SET STATISTICS -1', i.index_path, a.attnum), 0, 0, NULL, NULL, NULL, NULL
  FROM idx i JOIN pg_attribute a ON a.attrelid = i.indexrelid AND a.attstattarget >= 0 WHERE i.indisvalid
  UNION ALL
  SELECT root, nspname, relname, 'clustering', '', index, NULL, 'copied', format('ALTER TABLE %s CLUSTER ON %I', path, index),
    format('ALTER TABLE %s CLUSTER ON %I', path, index), format('ALTER TABLE %s SET WITHOUT CLUSTER', path), 0, 0, NULL, NULL,
    NULL, NULL
  FROM idx WHERE indisclustered AND indisvalid
  UNION ALL
  SELECT rel.root, rel.nspname, rel.relname, 'replica identity', '', how, NULL, 'setup',
    format('ALTER TABLE %s REPLICA IDENTITY %s', rel.path, how), format('ALTER TABLE %s REPLICA IDENTITY %s', rel.path, how),
    format('ALTER TABLE %s REPLICA IDENTITY DEFAULT', rel.path), 0, 0, NULL, NULL, NULL, NULL
  FROM rel LEFT JOIN idx i ON i.indrelid = rel.oid AND i.indisreplident
  CROSS JOIN LATERAL (SELECT CASE rel.relreplident WHEN 'f' THEN 'FULL' WHEN 'n' THEN 'NOTHING'
    WHEN 'i' THEN 'USING INDEX ' || quote_ident(i.index) END AS how) h
  WHERE rel.relreplident <> 'd' AND (rel.relreplident <> 'i' OR i.index IS NOT NULL)
  UNION ALL
  SELECT rel.root, rel.nspname, rel.relname, 'storage parameters', '', sorted, NULL, 'setup',
    format('ALTER TABLE %s SET (%s)', rel.path, options), format('ALTER TABLE %s SET (%s)', rel.path, options),
    format('ALTER TABLE %s RESET (%s)', rel.path, regexp_replace(options, '=[^,]*', '', 'g')), 0, 0, NULL, NULL, NULL, NULL
  FROM rel LEFT JOIN pg_class toast ON toast.oid = rel.reltoastrelid AND toast.reloptions IS NOT NULL
  CROSS JOIN LATERAL (SELECT string_agg(o, ', ' ORDER BY n) AS options, string_agg(o, ', ' ORDER BY o) AS sorted FROM (
    SELECT o, n FROM unnest(rel.reloptions) WITH ORDINALITY u (o, n)
    UNION ALL SELECT 'toast.' || o, 1000 + n FROM unnest(toast.reloptions) WITH ORDINALITY u (o, n)) u) w
  WHERE options IS NOT NULL
  UNION ALL
  SELECT a.root, a.nspname, a.relname, setting, a.attname, value, NULL, 'setup', format('%s SET %s %s', itself, word, value),
    format('%s SET %s %s', itself, word, value), format('%s %s', itself, reset), 0, 0, NULL, NULL, NULL, NULL
  FROM att a JOIN pg_type t ON t.oid = a.atttypid CROSS JOIN LATERAL (VALUES
    ('storage', 'STORAGE', CASE WHEN a.attstorage <> t.typstorage THEN CASE a.attstorage WHEN 'p' THEN 'PLAIN' WHEN 'e' THEN
      'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END END, format('SET STORAGE %s', CASE t.typstorage WHEN 'p' THEN 'PLAIN'
      WHEN 'e' THEN 'EXTERNAL' WHEN 'm' THEN 'MAIN' ELSE 'EXTENDED' END)),
    ('compression', 'COMPRESSION', CASE a.attcompression WHEN 'p' THEN 'pglz' WHEN 'l' THEN 'lz4' END, 'SET COMPRESSION default'),
    ('statistics target', 'STATISTICS', CASE WHEN a.attstattarget >= 0 THEN a.attstattarget::text END, 'SET STATISTICS -1'),
    ('options', '', '(' || array_to_string(a.attoptions, ', ') || ')', format('RESET (%s)',
      (SELECT string_agg(split_part(o, '=', 1), ', ') FROM unnest(a.attoptions) o)))
  ) v (setting, word, value, reset)
  -- Each child has its own.
  CROSS JOIN LATERAL (SELECT format('ALTER TABLE ONLY %s ALTER COLUMN %I', a.path, a.attname) AS itself) o
  WHERE value IS NOT NULL
  UNION ALL
  SELECT rel.root, rel.nspname, rel.relname, 'inheritance', format('%I.%I', n.nspname, p.relname), 'INHERIT', NULL, 'setup',
    format('ALTER TABLE %s INHERIT %I.%I', rel.path, n.nspname, p.relname), NULL,
    format('ALTER TABLE %s NO INHERIT %I.%I', rel.path, n.nspname, p.relname), 0, 0, NULL, NULL, NULL, NULL
  FROM rel JOIN pg_inherits h ON h.inhrelid = rel.oid AND rel.relpartbound IS NULL AND rel.level = 0
  JOIN pg_class p ON p.oid = h.inhparent JOIN pg_namespace n ON n.oid = p.relnamespace
  UNION ALL
  SELECT rel.root, rel.nspname, rel.relname, 'row security', '', CASE WHEN rel.relforcerowsecurity THEN 'forced' ELSE '' END
      || CASE WHEN rel.relrowsecurity THEN ' enabled' ELSE '' END, NULL, '',
    concat_ws('; ', CASE WHEN rel.relrowsecurity THEN format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY', rel.path) END,
      CASE WHEN rel.relforcerowsecurity THEN format('ALTER TABLE %s FORCE ROW LEVEL SECURITY', rel.path) END), NULL,
    format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY; ALTER TABLE %s NO FORCE ROW LEVEL SECURITY', rel.path, rel.path),
    0, 0, NULL, NULL, NULL, NULL
  FROM rel WHERE rel.relrowsecurity OR rel.relforcerowsecurity
  UNION ALL
  SELECT rel.root, rel.nspname, rel.relname, 'policy', p.polname, words, NULL, '',
    format('CREATE POLICY %I ON %s %s', p.polname, rel.path, words), NULL, format('DROP POLICY %I ON %s', p.polname, rel.path),
    'pg_policy'::regclass, p.oid, NULL, NULL, NULL, NULL
  FROM rel JOIN pg_policy p ON p.polrelid = rel.oid CROSS JOIN LATERAL (SELECT concat_ws(' ',
    CASE WHEN NOT p.polpermissive THEN 'AS RESTRICTIVE' END,
    CASE p.polcmd WHEN 'r' THEN 'FOR SELECT' WHEN 'a' THEN 'FOR INSERT' WHEN 'w' THEN 'FOR UPDATE' WHEN 'd' THEN 'FOR DELETE' END,
    (SELECT 'TO ' || string_agg(coalesce(quote_ident(r.rolname), 'PUBLIC'), ', ' ORDER BY r.rolname)
      FROM unnest(p.polroles) o LEFT JOIN pg_roles r ON r.oid = o WHERE p.polroles <> '{0}'),
    'USING (' || pg_get_expr(p.polqual, p.polrelid) || ')',
    'WITH CHECK (' || pg_get_expr(p.polwithcheck, p.polrelid) || ')') AS words) w
  UNION ALL
  SELECT rel.root, rel.nspname, rel.relname, 'trigger', t.tgname, concat(pg_get_triggerdef(t.oid), enabled), NULL, '',
    concat(pg_get_triggerdef(t.oid), enabled), NULL, format('DROP TRIGGER %I ON %s', t.tgname, rel.path),
    'pg_trigger'::regclass, t.oid, NULL, NULL, NULL, NULL
  FROM rel JOIN pg_trigger t ON t.tgrelid = rel.oid AND NOT t.tgisinternal AND t.tgparentid = 0
    AND NOT starts_with(t.tgname::text, 'R_penstock_')
  CROSS JOIN LATERAL (SELECT CASE WHEN t.tgenabled <> 'O' THEN format('; ALTER TABLE %s %s TRIGGER %I', rel.path,
    CASE t.tgenabled WHEN 'D' THEN 'DISABLE' WHEN 'A' THEN 'ENABLE ALWAYS' ELSE 'ENABLE REPLICA' END, t.tgname) END AS enabled) e
  UNION ALL
  SELECT rel.root, rel.nspname, rel.relname, 'rule', w.rulename, pg_get_ruledef(w.oid), NULL, '',
    concat(rtrim(pg_get_ruledef(w.oid), ';'), CASE WHEN w.ev_enabled <> 'O' THEN format('; ALTER TABLE %s %s RULE %I', rel.path,
      CASE w.ev_enabled WHEN 'D' THEN 'DISABLE' WHEN 'A' THEN 'ENABLE ALWAYS' ELSE 'ENABLE REPLICA' END, w.rulename) END), NULL,
    format('DROP RULE %I ON %s', w.rulename, rel.path), 'pg_rewrite'::regclass, w.oid, NULL, NULL, NULL, NULL
  FROM rel JOIN pg_rewrite w ON w.ev_class = rel.oid AND w.rulename <> '_RETURN'
  UNION ALL
  SELECT rel.root, rel.nspname, rel.relname, 'statistics', format('%I.%I', n.nspname, x.stxname), pg_get_statisticsobjdef(x.oid),
    NULL, 'setup', pg_get_statisticsobjdef(x.oid), NULL, format('DROP STATISTICS %I.%I', n.nspname, x.stxname),
    'pg_statistic_ext'::regclass, x.oid, x.stxexprs::text, x.stxowner, NULL, format('STATISTICS %I.%I', n.nspname, x.stxname)
  FROM rel JOIN pg_statistic_ext x ON x.stxrelid = rel.oid JOIN pg_namespace n ON n.oid = x.stxnamespace
  UNION ALL
  SELECT rel.root, rel.nspname, rel.relname, 'target of statistics', format('%I.%I', n.nspname, x.stxname), x.stxstattarget::text,
    NULL, 'setup', format('ALTER STATISTICS %I.%I SET STATISTICS %s', n.nspname, x.stxname, x.stxstattarget),
    format('ALTER STATISTICS %I.%I SET STATISTICS %s', n.nspname, x.stxname, x.stxstattarget),
    format('ALTER STATISTICS %I.%I SET STATISTICS -1', n.nspname, x.stxname), 0, 0, NULL, NULL, NULL, NULL
  FROM rel JOIN pg_statistic_ext x ON x.stxrelid = rel.oid AND x.stxstattarget >= 0
  JOIN pg_namespace n ON n.oid = x.stxnamespace
  UNION ALL
  SELECT 0, n.nspname, NULL, 'sequence', concat(n.nspname, '.', c.relname), options, NULL, '',
    format('CREATE SEQUENCE %I.%I %s', n.nspname, c.relname, options),
    format('ALTER SEQUENCE %I.%I %s', n.nspname, c.relname, options), format('DROP SEQUENCE %I.%I', n.nspname, c.relname),
    'pg_class'::regclass, c.oid, NULL, c.relowner, c.relacl, format('SEQUENCE %I.%I', n.nspname, c.relname)
  FROM space n JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind = 'S' JOIN pg_sequence s ON s.seqrelid = c.oid
  CROSS JOIN LATERAL (SELECT format('AS %s INCREMENT BY %s MINVALUE %s MAXVALUE %s START WITH %s CACHE %s %s',
    format_type(s.seqtypid, NULL), s.seqincrement, s.seqmin, s.seqmax, s.seqstart, s.seqcache,
    CASE WHEN s.seqcycle THEN 'CYCLE' ELSE 'NO CYCLE' END) AS options) o
  WHERE NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype IN ('i', 'e'))
    AND NOT EXISTS (SELECT FROM extended e WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid)
  UNION ALL
  SELECT a.root, a.nspname, a.relname, 'owner of sequence', concat(n.nspname, '.', c.relname), a.attname, NULL, '',
    format('ALTER SEQUENCE %I.%I OWNED BY %s.%I', n.nspname, c.relname, a.path, a.attname),
    format('ALTER SEQUENCE %I.%I OWNED BY %s.%I', n.nspname, c.relname, a.path, a.attname),
    format('ALTER SEQUENCE %I.%I OWNED BY NONE', n.nspname, c.relname), 0, 0, NULL, NULL, NULL, NULL
  FROM att a JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass
    AND d.refobjid = a.attrelid AND d.refobjsubid = a.attnum AND d.deptype = 'a'
  JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'S' JOIN pg_namespace n ON n.oid = c.relnamespace
  UNION ALL
  SELECT 0, t.nspname, NULL, 'type', concat(t.nspname, '.', t.typname), definition, NULL, '', format('CREATE %s %s AS %s',
      CASE t.typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, t.path, definition),
    (SELECT string_agg(format('ALTER TYPE %s ADD VALUE IF NOT EXISTS %L%s', t.path, label, ' AFTER ' || quote_literal(before)), '; '
      ORDER BY enumsortorder) FROM (SELECT enumlabel AS label, enumsortorder, lag(enumlabel) OVER (ORDER BY enumsortorder) AS before
      FROM pg_enum WHERE enumtypid = t.oid) l),
    format('DROP TYPE %s', t.path), 'pg_type'::regclass, t.oid, NULL, t.typowner, t.typacl, format('TYPE %s', t.path)
  FROM typ t CROSS JOIN LATERAL (SELECT CASE t.typtype
    WHEN 'e' THEN format('ENUM (%s)', (SELECT string_agg(quote_literal(l.enumlabel), ', ' ORDER BY l.enumsortorder)
      FROM pg_enum l WHERE l.enumtypid = t.oid))
    WHEN 'd' THEN concat(format_type(t.typbasetype, t.typtypmod), (SELECT format(' COLLATE %I.%I', cn.nspname, c.collname)
      FROM pg_collation c JOIN pg_namespace cn ON cn.oid = c.collnamespace JOIN pg_type b ON b.oid = t.typbasetype
      WHERE c.oid = t.typcollation AND t.typcollation <> b.typcollation))
    WHEN 'c' THEN format('(%s)', (SELECT string_agg(format('%I %s%s', a.attname, format_type(a.atttypid, a.atttypmod),
        (SELECT format(' COLLATE %I.%I', cn.nspname, c.collname) FROM pg_collation c
         JOIN pg_namespace cn ON cn.oid = c.collnamespace JOIN pg_type b ON b.oid = a.atttypid
         WHERE c.oid = a.attcollation AND a.attcollation <> b.typcollation)), ', ' ORDER BY a.attnum)
      FROM pg_attribute a WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped))
    ELSE (SELECT format('RANGE (SUBTYPE = %s, SUBTYPE_OPCLASS = %I.%I%s%s%s, MULTIRANGE_TYPE_NAME = %s)',
        format_type(r.rngsubtype, NULL), on_.nspname, o.opcname,
        (SELECT format(', COLLATION = %I.%I', cn.nspname, c.collname) FROM pg_collation c
         JOIN pg_namespace cn ON cn.oid = c.collnamespace WHERE c.oid = r.rngcollation),
        CASE WHEN r.rngcanonical::oid <> 0 THEN format(', CANONICAL = %s', r.rngcanonical) END,
        CASE WHEN r.rngsubdiff::oid <> 0 THEN format(', SUBTYPE_DIFF = %s', r.rngsubdiff) END,
        format_type(r.rngmultitypid, NULL))
      FROM pg_range r JOIN pg_opclass o ON o.oid = r.rngsubopc JOIN pg_namespace on_ ON on_.oid = o.opcnamespace
      WHERE r.rngtypid = t.oid) END AS definition) w
  UNION ALL
  SELECT 0, t.nspname, NULL, 'domain check', concat(c.conname, ' of ', t.nspname, '.', t.typname), pg_get_constraintdef(c.oid), NULL,
    CASE WHEN c.convalidated THEN 'type' ELSE '' END,
    format('ALTER DOMAIN %s ADD CONSTRAINT %I %s', t.path, c.conname, pg_get_constraintdef(c.oid)), NULL,
    format('ALTER DOMAIN %s DROP CONSTRAINT %I', t.path, c.conname), 'pg_constraint'::regclass, c.oid, c.conbin::text, NULL, NULL,
    NULL
  FROM typ t JOIN pg_constraint c ON c.contypid = t.oid AND c.contype = 'c'
  UNION ALL
  SELECT 0, t.nspname, NULL, 'domain not null', concat(t.nspname, '.', t.typname), 'NOT NULL', NULL, 'type', format('ALTER DOMAIN %s SET NOT NULL', t.path),
    NULL, format('ALTER DOMAIN %s DROP NOT NULL', t.path), 0, 0, NULL, NULL, NULL, NULL
  FROM typ t WHERE t.typtype = 'd' AND t.typnotnull
  UNION ALL
  SELECT 0, t.nspname, NULL, 'domain default', concat(t.nspname, '.', t.typname), t.typdefault, NULL, '',
    format('ALTER DOMAIN %s SET DEFAULT %s', t.path, t.typdefault),
    format('ALTER DOMAIN %s SET DEFAULT %s', t.path, t.typdefault), format('ALTER DOMAIN %s DROP DEFAULT', t.path), 0, 0, NULL,
    NULL, NULL, NULL
  FROM typ t WHERE t.typtype = 'd' AND t.typdefault IS NOT NULL
  UNION ALL
  SELECT 0, n.nspname, NULL, CASE c.relkind WHEN 'v' THEN 'view' WHEN 'm' THEN 'materialized view' ELSE 'foreign table' END,
    format('%I.%I', n.nspname, c.relname), pg_get_viewdef(c.oid), NULL, '',
    CASE WHEN c.relkind <> 'f' THEN concat(format('CREATE %sVIEW %I.%I%s AS %s',
      CASE c.relkind WHEN 'm' THEN 'MATERIALIZED ' ELSE '' END, n.nspname, c.relname,
      ' WITH (' || array_to_string(c.reloptions, ', ') || ')', rtrim(pg_get_viewdef(c.oid), '; ' || chr(10))),
      (SELECT string_agg('; ' || pg_get_indexdef(i.indexrelid), '' ORDER BY i.indexrelid) FROM pg_index i WHERE i.indrelid = c.oid),
      (SELECT string_agg('; ' || pg_get_triggerdef(g.oid), '' ORDER BY g.tgname) FROM pg_trigger g WHERE g.tgrelid = c.oid
        AND NOT g.tgisinternal),
      (SELECT string_agg('; ' || rtrim(pg_get_ruledef(w.oid), ';'), '' ORDER BY w.rulename) FROM pg_rewrite w
        WHERE w.ev_class = c.oid AND w.rulename <> '_RETURN')) END, NULL,
    format('DROP %sVIEW %I.%I', CASE c.relkind WHEN 'm' THEN 'MATERIALIZED ' ELSE '' END, n.nspname, c.relname),
    'pg_class'::regclass, c.oid, NULL, c.relowner, c.relacl, format('TABLE %I.%I', n.nspname, c.relname)
  FROM space n JOIN pg_class c ON c.relnamespace = n.oid AND c.relkind IN ('v', 'm', 'f')
  WHERE NOT EXISTS (SELECT FROM extended e WHERE e.classid = 'pg_class'::regclass AND e.objid = c.oid)
  UNION ALL
  SELECT 0, n.nspname, NULL, CASE p.prokind WHEN 'a' THEN 'aggregate' WHEN 'p' THEN 'procedure' ELSE 'function' END,
    p.oid::regprocedure::text, CASE WHEN p.prokind <> 'a' THEN pg_get_functiondef(p.oid) END, NULL, '',
    CASE WHEN p.prokind <> 'a' THEN rtrim(pg_get_functiondef(p.oid), chr(10)) END, NULL,
    format('DROP ROUTINE %s', p.oid::regprocedure), 'pg_proc'::regclass, p.oid, NULL, p.proowner, p.proacl,
    format('ROUTINE %s', p.oid::regprocedure)
  FROM space n JOIN pg_proc p ON p.pronamespace = n.oid
  WHERE NOT EXISTS (SELECT FROM pg_depend e WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid
    AND e.deptype IN ('e', 'i')) AND NOT EXISTS (SELECT FROM extended e WHERE e.classid = 'pg_proc'::regclass AND e.objid = p.oid)
  UNION ALL
  SELECT 0, n.nspname, NULL, o.kind, format('%I.%s', n.nspname, o.name), '', NULL, '', o.make, NULL, NULL, o.classid, o.oid, NULL,
    o.owner, NULL, NULL
  FROM space n JOIN (
    SELECT 'operator' AS kind, 'pg_operator'::regclass AS classid, oid, oprnamespace AS namespace,
      format('%s (%s, %s)', oprname, format_type(oprleft, NULL), format_type(oprright, NULL)) AS name, NULL::oid AS owner, NULL AS make
    FROM pg_operator
    UNION ALL SELECT 'operator class', 'pg_opclass'::regclass, oid, opcnamespace, quote_ident(opcname), NULL, NULL FROM pg_opclass
    UNION ALL SELECT 'text search configuration', 'pg_ts_config'::regclass, oid, cfgnamespace, quote_ident(cfgname), NULL, NULL
    FROM pg_ts_config
    UNION ALL SELECT 'text search dictionary', 'pg_ts_dict'::regclass, oid, dictnamespace, quote_ident(dictname), NULL, NULL
    FROM pg_ts_dict
    UNION ALL SELECT 'collation', 'pg_collation'::regclass, oid, collnamespace, quote_ident(collname), NULL, NULL
    FROM pg_collation
  ) o ON o.namespace = n.oid
  WHERE NOT EXISTS (SELECT FROM extended e WHERE e.classid = o.classid AND e.objid = o.oid)
  UNION ALL
  SELECT 0, n.nspname, NULL, 'schema', n.nspname, '', NULL, '', format('CREATE SCHEMA %I', n.nspname), NULL, NULL,
    'pg_namespace'::regclass, n.oid, NULL, n.nspowner, n.nspacl, format('SCHEMA %I', n.nspname)
  FROM space n
), expression AS (
  SELECT o.classid, o.objid, o.tree FROM obj o WHERE o.tree IS NOT NULL
),
\ir expressions.sql
, unsafe AS (
  SELECT u.classid, u.objid FROM unknown u
  UNION
  SELECT e.classid, e.objid FROM expression e JOIN pg_depend d ON (d.classid, d.objid) = (e.classid, e.objid) JOIN (
    SELECT 'pg_proc'::regclass AS classid, oid, pronamespace AS namespace FROM pg_proc
    UNION ALL SELECT 'pg_operator'::regclass, oid, oprnamespace FROM pg_operator
    UNION ALL SELECT 'pg_type'::regclass, oid, typnamespace FROM pg_type
  ) c ON (c.classid, c.oid) = (d.refclassid, d.refobjid) AND c.namespace <> 'pg_catalog'::regnamespace
  WHERE d.refobjid NOT IN (SELECT k.contypid FROM pg_constraint k WHERE k.oid = e.objid)
)
SELECT o.root, o.nspname, o.relname, o.kind, o.name, NULL AS holder, o.definition, o.parent, o.made,
  NOT EXISTS (SELECT FROM unsafe u WHERE u.classid = o.classid AND u.objid = o.objid) AS is_plain, o.make, o.change, o.remove
FROM obj o
UNION ALL
SELECT o.root, o.nspname, o.relname, 'owner', '', rtrim(concat(o.kind, ' ', o.name)), r.rolname, NULL,
  '', true, format('ALTER %s OWNER TO %I', o.called, r.rolname), format('ALTER %s OWNER TO %I', o.called, r.rolname), NULL
FROM obj o JOIN pg_roles r ON r.oid = o.owner
-- A sequence that a column owns goes with its table.
WHERE o.called IS NOT NULL AND NOT (o.kind = 'sequence' AND EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = o.objid
  AND o.classid = 'pg_class'::regclass AND d.deptype = 'a' AND d.refclassid = 'pg_class'::regclass))
UNION ALL
SELECT o.root, o.nspname, o.relname, 'grant', who, rtrim(concat(o.kind, ' ', o.name)),
  string_agg(g.privileges || g.option, ', ' ORDER BY g.privileges), NULL, '', true,
  string_agg(format('GRANT %s ON %s TO %s%s', CASE o.kind WHEN 'column' THEN replace(g.privileges, ',', format(' (%s),', column_name))
      || format(' (%s)', column_name) ELSE g.privileges END, on_, who, g.option), '; ' ORDER BY g.privileges), NULL,
  string_agg(format('REVOKE %s ON %s FROM %s', CASE o.kind WHEN 'column' THEN replace(g.privileges, ',', format(' (%s),', column_name))
      || format(' (%s)', column_name) ELSE g.privileges END, on_, who), '; ' ORDER BY g.privileges)
FROM obj o CROSS JOIN LATERAL (
  SELECT coalesce(quote_ident(r.rolname), 'PUBLIC') AS who, CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END AS option,
    string_agg(a.privilege_type, ',' ORDER BY a.privilege_type) AS privileges
  FROM aclexplode(o.acl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
  WHERE a.grantee <> coalesce(o.owner, (SELECT relowner FROM rel WHERE rel.nspname = o.nspname AND rel.relname = o.relname))
  GROUP BY a.grantee, r.rolname, a.is_grantable
) g CROSS JOIN LATERAL (
  SELECT CASE o.kind WHEN 'column' THEN split_part(o.called, ', TABLE ', 1) END AS column_name,
    CASE o.kind WHEN 'column' THEN 'TABLE ' || split_part(o.called, ', TABLE ', 2) ELSE o.called END AS on_
) w
WHERE o.acl IS NOT NULL AND NOT (who = 'PUBLIC' AND o.kind IN ('function', 'procedure', 'aggregate', 'type'))
GROUP BY o.root, o.nspname, o.relname, o.kind, o.name, who
UNION ALL
-- What a role gives away with each object that it will make; for all schemas at once also what it keeps back of what is usual.
-- What the pipeline's own role gets is what it needs there.
SELECT 0, coalesce(n.nspname, ''), NULL, 'default privileges',
  format('of %I on %s for %s%s', r.rolname, lower(word), who, ' in schema ' || quote_ident(n.nspname)), NULL,
  string_agg(concat_ws(' ', verb, privileges, option), ', ' ORDER BY verb, privileges), NULL, '', true,
  string_agg(concat_ws(' ', alter, verb, privileges, 'ON', word, CASE verb WHEN 'GRANT' THEN 'TO' ELSE 'FROM' END, who, option), '; '
    ORDER BY verb, privileges), NULL,
  string_agg(concat_ws(' ', alter, CASE verb WHEN 'GRANT' THEN 'REVOKE' ELSE 'GRANT' END, privileges, 'ON', word,
    CASE verb WHEN 'GRANT' THEN 'FROM' ELSE 'TO' END, who), '; ' ORDER BY verb, privileges)
FROM pg_default_acl d JOIN pg_roles r ON r.oid = d.defaclrole LEFT JOIN space n ON n.oid = d.defaclnamespace
CROSS JOIN LATERAL (
  SELECT CASE d.defaclobjtype WHEN 'r' THEN 'TABLES' WHEN 'S' THEN 'SEQUENCES' WHEN 'f' THEN 'FUNCTIONS' WHEN 'T' THEN 'TYPES'
      WHEN 'n' THEN 'SCHEMAS' ELSE 'LARGE OBJECTS' END AS word,
    format('ALTER DEFAULT PRIVILEGES FOR ROLE %I%s', r.rolname, ' IN SCHEMA ' || quote_ident(n.nspname)) AS alter,
    CASE WHEN d.defaclnamespace = 0 THEN acldefault(CASE d.defaclobjtype WHEN 'S' THEN 's'::"char" ELSE d.defaclobjtype END, r.oid)
      END AS usual
) w CROSS JOIN LATERAL (
  SELECT coalesce(quote_ident(g.rolname), 'PUBLIC') AS who, verb, CASE WHEN is_grantable THEN 'WITH GRANT OPTION' END AS option,
    string_agg(privilege_type, ', ' ORDER BY privilege_type) AS privileges
  FROM (
    SELECT 'GRANT' AS verb, new.* FROM (SELECT grantee, privilege_type, is_grantable FROM aclexplode(d.defaclacl)
      EXCEPT SELECT grantee, privilege_type, is_grantable FROM aclexplode(usual)) new
    UNION ALL
    SELECT 'REVOKE', grantee, privilege_type, false FROM (SELECT grantee, privilege_type FROM aclexplode(usual)
      EXCEPT SELECT grantee, privilege_type FROM aclexplode(d.defaclacl)) gone
  ) a LEFT JOIN pg_roles g ON g.oid = a.grantee
  WHERE g.rolname IS DISTINCT FROM current_user
  GROUP BY g.rolname, verb, is_grantable
) p
WHERE d.defaclnamespace = 0 OR n.oid IS NOT NULL
GROUP BY r.rolname, n.nspname, word, who
UNION ALL
-- What everybody has by default, and was taken away.
SELECT o.root, o.nspname, o.relname, 'grant', 'PUBLIC', rtrim(concat(o.kind, ' ', o.name)), 'REVOKE', NULL, '', true, format('REVOKE ALL ON %s FROM PUBLIC', o.called), NULL,
  format('GRANT %s ON %s TO PUBLIC', CASE o.kind WHEN 'type' THEN 'USAGE' ELSE 'EXECUTE' END, o.called)
FROM obj o WHERE o.acl IS NOT NULL AND o.kind IN ('function', 'procedure', 'aggregate', 'type')
  AND NOT EXISTS (SELECT FROM aclexplode(o.acl) a WHERE a.grantee = 0)
UNION ALL
SELECT o.root, o.nspname, o.relname, 'comment', '', rtrim(concat(o.kind, ' ', o.name)), d.description, NULL, CASE WHEN o.relname IS NULL OR o.kind IN ('policy', 'rule', 'trigger') THEN '' ELSE 'copied' END, true,
  format('COMMENT ON %s %s IS %L', upper(k.keyword), k.identity, d.description),
  format('COMMENT ON %s %s IS %L', upper(k.keyword), k.identity, d.description),
  format('COMMENT ON %s %s IS NULL', upper(k.keyword), k.identity)
FROM obj o JOIN pg_description d ON d.classoid = o.classid AND d.objoid = o.objid AND d.objsubid = 0
CROSS JOIN LATERAL pg_identify_object(d.classoid, d.objoid, 0) i
CROSS JOIN LATERAL (SELECT CASE i.type WHEN 'table constraint' THEN 'constraint' WHEN 'domain constraint' THEN 'constraint'
  WHEN 'statistics object' THEN 'statistics' ELSE i.type END AS keyword,
  CASE i.type WHEN 'domain constraint' THEN regexp_replace(i.identity, '^(.*) on ', '\1 ON DOMAIN ') ELSE i.identity END AS identity) k
WHERE o.kind NOT IN ('table', 'partition')
UNION ALL
-- Of columns of composite types and of views, each by its name.
SELECT 0, c.nspname, NULL, 'comment', a.attname, c.holder, d.description, NULL, '', true,
  format('COMMENT ON COLUMN %s.%I IS %L', c.path, a.attname, d.description),
  format('COMMENT ON COLUMN %s.%I IS %L', c.path, a.attname, d.description), format('COMMENT ON COLUMN %s.%I IS NULL', c.path, a.attname)
FROM (
  SELECT typrelid AS relid, nspname, path, concat('type ', nspname, '.', typname) AS holder FROM typ WHERE typtype = 'c'
  UNION ALL SELECT objid, nspname, name, concat(kind, ' ', name) FROM obj WHERE kind IN ('view', 'materialized view', 'foreign table')
) c JOIN pg_attribute a ON a.attrelid = c.relid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_description d ON d.classoid = 'pg_class'::regclass AND d.objoid = a.attrelid AND d.objsubid = a.attnum
UNION ALL
SELECT root, nspname, relname, 'comment', '', 'column ' || attname, d.description, NULL, '', true,
  format('COMMENT ON COLUMN %s.%I IS %L', path, attname, d.description),
  format('COMMENT ON COLUMN %s.%I IS %L', path, attname, d.description), format('COMMENT ON COLUMN %s.%I IS NULL', path, attname)
FROM att JOIN pg_description d ON d.classoid = 'pg_class'::regclass AND d.objoid = att.attrelid AND d.objsubid = att.attnum
UNION ALL
SELECT root, nspname, relname, 'comment', '', CASE WHEN level > 0 THEN 'partition' ELSE 'table' END, d.description, NULL, '', true,
  format('COMMENT ON TABLE %s IS %L', path, d.description), format('COMMENT ON TABLE %s IS %L', path, d.description),
  format('COMMENT ON TABLE %s IS NULL', path)
FROM rel JOIN pg_description d ON d.classoid = 'pg_class'::regclass AND d.objoid = rel.oid AND d.objsubid = 0
