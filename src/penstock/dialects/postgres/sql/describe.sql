-- Definitions of the tables whose oids are in $1, one row each: (relid oid, definition jsonb); with their check
-- constraints only if $2, for the server locks a table to put its expressions into words.
-- The keys of `definition` are the fields of penstock.schema.TableSchema; columns come in attnum order.
WITH RECURSIVE rel AS (
  SELECT c.oid, n.nspname, c.relname, c.relkind, c.relrowsecurity
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = ANY ($1)
), att AS (
  SELECT a.* FROM pg_catalog.pg_attribute a JOIN rel ON rel.oid = a.attrelid
  WHERE a.attnum > 0 AND NOT a.attisdropped
), base (root, typ, typmod) AS (
  -- The type below any chain of domains, and the length that the lowest domain gives it.
  SELECT DISTINCT atttypid, atttypid, -1 FROM att
  UNION
  SELECT b.root, t.typbasetype, t.typtypmod FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typ WHERE t.typtype = 'd'
), part (root, typ) AS (
  -- Every type a column's type is made of: array elements, attributes, range bounds, domain bases.
  SELECT DISTINCT atttypid, atttypid FROM att
  UNION
  SELECT p.root, inner_type.oid
  FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.typ
  CROSS JOIN LATERAL (
    SELECT t.typelem WHERE t.typcategory = 'A' AND t.typelem <> 0
    UNION ALL SELECT t.typbasetype WHERE t.typtype = 'd'
    UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
      WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)
  ) inner_type (oid)
), leaf AS (
  SELECT p.root, p.typ, t.typname,
    t.typnamespace = 'pg_catalog'::regnamespace AS is_builtin,
    t.typtype = 'e' OR EXISTS (
      SELECT FROM pg_catalog.pg_opclass o JOIN pg_catalog.pg_am am ON am.oid = o.opcmethod
      WHERE o.opcdefault AND am.amname IN ('btree', 'hash')
        AND (o.opcintype = p.typ OR EXISTS (
          SELECT FROM pg_catalog.pg_cast k
          WHERE k.castsource = p.typ AND k.casttarget = o.opcintype AND k.castmethod = 'b' AND k.castcontext = 'i'))
    ) AS is_comparable,
    -- Their = is true only of values that are written the same.
    t.typtype = 'e' OR t.typnamespace = 'pg_catalog'::regnamespace AND t.typname IN ('bool', 'int2', 'int4', 'int8', 'oid',
      'bytea', 'text', 'varchar', 'char', 'name', 'money', 'date', 'time', 'timetz', 'timestamp', 'timestamptz', 'uuid',
      'inet', 'cidr', 'macaddr', 'macaddr8', 'bit', 'varbit', 'pg_lsn', 'xid', 'xid8') AS is_exact,
    -- The text of these depends on no setting of their own; citext, for one, is written as text is.
    t.typtype = 'e' OR t.typnamespace = 'pg_catalog'::regnamespace AND t.typname NOT LIKE 'reg%' OR EXISTS (
      SELECT FROM pg_catalog.pg_proc f JOIN pg_catalog.pg_language l ON l.oid = f.prolang
      WHERE f.oid = t.typoutput AND l.lanname = 'internal' AND f.prosrc IN ('textout', 'varcharout', 'bpcharout')
    ) AS has_safe_text,
    -- Their text, put into another type, is what a cast to that type makes of the value.
    t.typtype = 'e' OR t.typnamespace = 'pg_catalog'::regnamespace AND t.typname IN ('bool', 'int2', 'int4', 'int8', 'oid',
      'numeric', 'text', 'varchar', 'name', 'uuid', 'json', 'jsonb') OR EXISTS (
      SELECT FROM pg_catalog.pg_proc f JOIN pg_catalog.pg_language l ON l.oid = f.prolang
      WHERE f.oid = t.typoutput AND l.lanname = 'internal' AND f.prosrc = 'textout' AND t.typnamespace <> 'pg_catalog'::regnamespace
    ) AS is_common_text
  FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.typ
  WHERE t.typtype IN ('b', 'e') AND (t.typcategory <> 'A' OR t.typelem = 0)
), leaves AS (
  SELECT leaf.root, bool_and(leaf.is_comparable) AS is_comparable, bool_and(leaf.is_exact) AS is_exact,
    bool_and(leaf.has_safe_text) AS has_safe_text, bool_or(NOT leaf.is_builtin AND NOT leaf.has_safe_text) AS has_foreign_text,
    bool_and(leaf.is_common_text) AS is_common_text, array_agg(leaf.typname::text) AS names
  FROM leaf GROUP BY leaf.root
), parts AS (
  -- Attributes come and go, and nobody tells the tables. A row's attributes and a user's range may have collations and
  -- operator classes of their own.
  SELECT p.root, bool_or(t.typtype = 'c') AS has_row, bool_or(t.typtype IN ('c', 'r', 'm')) AS has_row_or_range,
    bool_or(t.typtype = 'c' OR t.typtype IN ('r', 'm') AND t.typnamespace <> 'pg_catalog'::regnamespace) AS has_own_equality
  FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.typ GROUP BY p.root
), need AS (
  -- What a column's type needs, from all the types it is made of.
  SELECT b.root, b.typ, b.typmod, t.typname, t.typtype, t.typcategory,
    t.typtype IN ('c', 'r', 'm') OR t.typcategory = 'A' AND t.typelem <> 0 AS is_container,
    t.typnamespace = 'pg_catalog'::regnamespace AS is_builtin,
    coalesce(l.is_comparable, false) AS is_comparable, coalesce(l.names, '{}') AS names,
    coalesce(l.has_safe_text, false) AND NOT parts.has_row AS has_safe_text,
    coalesce(l.has_foreign_text, false) OR parts.has_row AS has_foreign_text,
    -- The type itself, where no other reads its text for what it says.
    CASE WHEN NOT coalesce(l.is_common_text, false) OR parts.has_row_or_range THEN pg_catalog.format_type(b.typ, NULL)
      WHEN t.typcategory = 'A' AND t.typelem <> 0 THEN '[]' ELSE '' END AS notation,
    coalesce(l.is_exact, false) AND NOT parts.has_own_equality AS is_exact
  FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typ AND t.typtype <> 'd'
  JOIN parts ON parts.root = b.root LEFT JOIN leaves l ON l.root = b.root
), kind AS MATERIALIZED (
  SELECT need.*, to_jsonb(ARRAY(
    SELECT setting FROM (VALUES
        ('extra_float_digits', need.has_foreign_text OR need.names && ARRAY['float4', 'float8', 'point', 'lseg', 'path',
          'box', 'polygon', 'line', 'circle']),
        ('intervalstyle', need.has_foreign_text OR need.names && ARRAY['interval']),
        ('datestyle', need.has_foreign_text OR need.is_container AND need.names && ARRAY['date', 'timestamp', 'timestamptz']),
        ('timezone', need.has_foreign_text OR need.is_container AND need.names && ARRAY['timestamptz']),
        ('bytea_output', need.has_foreign_text OR need.is_container AND need.names && ARRAY['bytea']),
        -- How many decimals there are.
        ('lc_monetary', need.has_foreign_text OR need.is_container AND need.names && ARRAY['money']),
        -- Their text names objects; and what an extension's type runs to make its text is not known.
        ('search_path', NOT need.has_safe_text),
        ('quote_all_identifiers', NOT need.has_safe_text)
      ) s (setting, is_needed) WHERE is_needed ORDER BY setting)) AS settings
  FROM need
), col AS (
  SELECT att.attrelid, att.attnum, jsonb_build_object(
    'name', att.attname,
    'type', pg_catalog.format_type(att.atttypid, att.atttypmod),
    'base_type', pg_catalog.format_type(kind.typ, NULL),
    -- A constraint that is not valid yet lets old rows be.
    'is_nullable', NOT att.attnotnull OR EXISTS (SELECT FROM pg_catalog.pg_constraint k WHERE k.conrelid = att.attrelid
      AND k.contype = 'n' AND NOT k.convalidated AND att.attnum = ANY (k.conkey)),
    'is_generated', att.attgenerated <> '',
    'is_identity_always', att.attidentity = 'a',
    'is_comparable', kind.is_comparable,
    -- A length or a scale makes equal values of these look the same.
    'is_exact', (kind.is_exact OR kind.is_builtin AND kind.typname IN ('numeric', 'bpchar') AND size.typmod > 0)
      AND coalesce(coll.collisdeterministic, true),
    'is_key_usable', kind.is_comparable AND NOT kind.is_container AND kind.typname <> 'jsonb',
    'is_integer', kind.typname IN ('int2', 'int4', 'int8', 'oid') AND kind.is_builtin,
    'is_builtin', kind.is_builtin,
    'is_plain', kind.is_builtin AND kind.typname IN ('bool', 'int2', 'int4', 'int8', 'oid', 'numeric', 'float4', 'float8',
      'money', 'bytea', 'date', 'time', 'timetz', 'timestamp', 'timestamptz', 'interval', 'uuid', 'inet', 'cidr', 'macaddr',
      'macaddr8', 'bit', 'varbit', 'pg_lsn'),
    'is_decimal', kind.typname IN ('numeric', 'float4', 'float8') AND kind.is_builtin,
    -- Every name is qualified: capture functions run with their owner's rights under the writer's search_path. And only
    -- types that are built in are cast: another type's owner may make a cast of their own. concat() asks the type's
    -- output function. A bare NULL behind IS DISTINCT FROM is a test for null, also of rows, and looks no operator up.
    'to_text', CASE WHEN kind.is_builtin THEN
      CASE kind.typname
        WHEN 'bytea' THEN $q$pg_catalog.replace(pg_catalog.encode({}, 'base64'), pg_catalog.chr(10), '')$q$
        WHEN 'date' THEN $q$pg_catalog.btrim(pg_catalog.to_json({})::pg_catalog.text, '"')$q$
        WHEN 'time' THEN $q$pg_catalog.to_char({}, 'HH24:MI:SS.US')$q$
        -- concat() of nulls is an empty text.
        WHEN 'timetz' THEN $q$CASE WHEN {} IS NOT NULL THEN pg_catalog.concat(pg_catalog.to_char({}::time, 'HH24:MI:SS.US'), pg_catalog.regexp_replace(substring({}::pg_catalog.text from '[+-].*$'), '^([+-][0-9][0-9])$', E'\\1:00')) END$q$
        WHEN 'timestamp' THEN $q$CASE WHEN {} OPERATOR(pg_catalog.>=) timestamp '0001-01-01' AND {} OPERATOR(pg_catalog.<) timestamp 'infinity' THEN pg_catalog.to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.US') WHEN pg_catalog.isfinite({}) THEN pg_catalog.to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.US" BC"') ELSE {}::pg_catalog.text END$q$
        WHEN 'timestamptz' THEN $q$CASE WHEN {} OPERATOR(pg_catalog.>=) timestamptz '0001-01-01 00:00:00+00' AND {} OPERATOR(pg_catalog.<) timestamptz 'infinity' THEN pg_catalog.to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') WHEN pg_catalog.isfinite({}) THEN pg_catalog.to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00 BC"') ELSE {}::pg_catalog.text END$q$
        -- The number that is stored, in hundredths: other ways take the decimals of the session's lc_monetary.
        WHEN 'money' THEN $q$(('x' OPERATOR(pg_catalog.||) pg_catalog.encode(pg_catalog.cash_send({}), 'hex'))::bit(64)::pg_catalog.int8 OPERATOR(pg_catalog.*) 0.01)::pg_catalog.text$q$
        -- A cast takes trailing blanks away, which are padding only where there is a length.
        WHEN 'bpchar' THEN CASE WHEN size.typmod > 0 THEN '{}::pg_catalog.text'
          ELSE 'CASE WHEN {} IS NOT NULL THEN pg_catalog.concat({}) END' END
        ELSE '{}::pg_catalog.text'
      END ELSE 'CASE WHEN {} IS DISTINCT FROM NULL THEN pg_catalog.concat({}) END' END,
    'notation', kind.notation,
    'from_text', CASE WHEN kind.is_builtin AND kind.typname = 'bytea' THEN $q$pg_catalog.decode({}, 'base64')$q$
                      WHEN kind.is_builtin AND kind.typname = 'money' THEN '{}::pg_catalog.money' ELSE '{}' END,
    'staging_type', CASE WHEN kind.is_builtin AND kind.typname = 'bytea' THEN 'text'
                         WHEN kind.is_builtin AND kind.typname = 'money' THEN 'numeric'
                         -- Not the domain: it might refuse the nulls of columns that are not staged.
                         WHEN kind.typ <> att.atttypid THEN pg_catalog.format_type(kind.typ, kind.typmod)
                         ELSE pg_catalog.format_type(att.atttypid, att.atttypmod) END,
    -- An explicit cast to a type with a length cuts the value; one without leaves that to the assignment, which refuses.
    'cast_type', CASE WHEN kind.is_builtin AND kind.typname = 'bytea' THEN 'text'
                      WHEN kind.is_builtin AND kind.typname = 'money' THEN 'numeric'
                      -- -1 rather than NULL: that bit without a length is not bit(1), nor bpchar char(1).
                      ELSE pg_catalog.format_type(kind.typ, -1) END,
    'settings', kind.settings
  ) AS definition
  FROM att JOIN kind ON kind.root = att.atttypid
  LEFT JOIN pg_catalog.pg_collation coll ON coll.oid = att.attcollation
  CROSS JOIN LATERAL (SELECT CASE WHEN kind.typ = att.atttypid THEN att.atttypmod ELSE kind.typmod END) size (typmod)
  -- Virtual columns are worked out when they are read.
  WHERE att.attgenerated <> 'v'
), cols AS (
  SELECT col.attrelid, jsonb_agg(col.definition ORDER BY col.attnum) AS definitions FROM col GROUP BY col.attrelid
), loose (root, type) AS (
  -- Types that a cast lets stand for another: of an operator for any enum and the other type's it is open which is meant.
  SELECT b.root, format_type(b.typ, NULL) FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typ AND t.typtype <> 'd'
  WHERE EXISTS (SELECT FROM pg_catalog.pg_cast k WHERE k.castsource = b.typ AND k.castcontext = 'i')
), oper AS NOT MATERIALIZED (
  -- Looked up one by one, behind OFFSET 0: a join would read all operators for each key.
  SELECT op.oid, format('OPERATOR(%I.%s)', n.nspname, op.oprname) AS name,
    -- The operators of a type's own may be in any schema, and = may be anybody's. Of those of one name, the one for the
    -- types as they stand wins, also if somebody else made it: so both operands are made of the operator's types.
    CASE n.nspname WHEN 'pg_catalog' THEN '' ELSE '::' || format_type(op.oprleft, NULL) || ' ' END AS left_cast,
    CASE n.nspname WHEN 'pg_catalog' THEN '' ELSE '::' || format_type(op.oprright, NULL) END AS right_cast,
    CASE WHEN n.nspname = 'pg_catalog' AND l.typtype = 'p' THEN format('pg_catalog.%I ::', f.proname) END AS function
  FROM pg_catalog.pg_operator op JOIN pg_catalog.pg_namespace n ON n.oid = op.oprnamespace
  JOIN pg_catalog.pg_type l ON l.oid = op.oprleft JOIN pg_catalog.pg_proc f ON f.oid = op.oprcode
), uniq AS (
  SELECT i.indrelid, i.indisprimary, ic.relname AS name, jsonb_build_object(
    'name', ic.relname,
    'columns', CASE WHEN i.indpred IS NULL AND i.indexprs IS NULL THEN
      (SELECT jsonb_agg(a.attname ORDER BY k.ord) FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, ord)
       JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.ord <= i.indnkeyatts)
      ELSE '[]' END,
    -- What its index calls equal.
    'operators', CASE WHEN i.indpred IS NULL AND i.indexprs IS NULL THEN
      (SELECT jsonb_agg(coalesce((SELECT equal.function || type FROM loose WHERE root = a.atttypid),
         equal.left_cast || equal.name, 'OPERATOR(pg_catalog.=)') ORDER BY k.ord)
       FROM unnest(i.indclass::oid[], i.indkey::int2[]) WITH ORDINALITY k (opclass, attnum, ord)
       JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
       JOIN pg_catalog.pg_opclass o ON o.oid = k.opclass
       LEFT JOIN LATERAL (SELECT oper.* FROM pg_catalog.pg_amop m JOIN LATERAL (SELECT * FROM oper WHERE oper.oid = m.amopopr OFFSET 0) oper ON true
         WHERE m.amopfamily = o.opcfamily AND m.amoplefttype = o.opcintype AND m.amoprighttype = o.opcintype
           AND m.amopstrategy = 3 AND ic.relam = (SELECT oid FROM pg_catalog.pg_am WHERE amname = 'btree')) equal ON true)
      ELSE '[]' END,
    'mentions', (SELECT coalesce(jsonb_agg(DISTINCT a.attname), '[]') FROM pg_catalog.pg_attribute a
       WHERE a.attrelid = i.indrelid AND a.attnum > 0 AND NOT a.attisdropped AND (a.attnum = ANY (i.indkey::int2[]) OR EXISTS (
         SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
           AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))),
    'is_deferrable', NOT i.indimmediate,
    'nulls_are_equal', coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::bool, false)
  ) AS definition
  FROM pg_catalog.pg_index i JOIN rel ON rel.oid = i.indrelid JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
  WHERE i.indisunique AND i.indisvalid AND NOT i.indisexclusion
), keys AS (
  SELECT uniq.indrelid, jsonb_agg(uniq.definition) FILTER (WHERE uniq.indisprimary) -> 0 AS primary_key,
    jsonb_agg(uniq.definition ORDER BY uniq.name) FILTER (WHERE NOT uniq.indisprimary) AS uniques
  FROM uniq GROUP BY uniq.indrelid
), con AS (
  SELECT c.*, coalesce((to_jsonb(c) ->> 'conenforced')::bool, true) AS is_enforced,
    coalesce((to_jsonb(c) ->> 'conperiod')::bool, false) AS is_temporal
  FROM (
    SELECT k.oid FROM rel JOIN pg_catalog.pg_constraint k ON k.conrelid = rel.oid
    -- No index finds constraints by the table they refer to, but they depend on its columns.
    UNION SELECT d.objid FROM rel JOIN pg_catalog.pg_depend d ON d.refclassid = 'pg_class'::regclass AND d.refobjid = rel.oid
    WHERE d.classid = 'pg_constraint'::regclass
  ) found CROSS JOIN LATERAL (SELECT * FROM pg_catalog.pg_constraint WHERE oid = found.oid OFFSET 0) c
  -- In this order: a row is long to turn into JSON.
  WHERE CASE WHEN c.contype IN ('f', 'x') THEN true WHEN c.contype IN ('p', 'u')
      THEN coalesce((to_jsonb(c) ->> 'conperiod')::bool, false) ELSE false END
), fk AS (
  SELECT con.conrelid, con.confrelid, con.conname, jsonb_build_object(
    'name', con.conname,
    'child', jsonb_build_object('schema', cn.nspname, 'name', cc.relname),
    'columns', (SELECT jsonb_agg(a.attname ORDER BY k.ord) FROM unnest(con.conkey) WITH ORDINALITY k (attnum, ord)
      JOIN pg_catalog.pg_attribute a ON a.attrelid = con.conrelid AND a.attnum = k.attnum),
    'parent', jsonb_build_object('schema', pn.nspname, 'name', pc.relname),
    'parent_columns', (SELECT jsonb_agg(a.attname ORDER BY k.ord)
      FROM unnest(con.confkey) WITH ORDINALITY k (attnum, ord)
      JOIN pg_catalog.pg_attribute a ON a.attrelid = con.confrelid AND a.attnum = k.attnum),
    -- The parent's column stands left.
    'operators', (SELECT jsonb_agg(coalesce((SELECT oper.function || type FROM pg_catalog.pg_attribute a
          JOIN loose ON loose.root = a.atttypid
          WHERE a.attrelid = con.conrelid AND a.attnum = k.child OR a.attrelid = con.confrelid AND a.attnum = k.parent LIMIT 1),
        oper.left_cast || oper.name) ORDER BY k.ord)
      FROM unnest(con.conpfeqop, con.conkey, con.confkey) WITH ORDINALITY k (op, child, parent, ord)
      JOIN LATERAL (SELECT * FROM oper WHERE oper.oid = k.op OFFSET 0) oper ON true),
    'child_casts', (SELECT jsonb_agg(oper.right_cast ORDER BY k.ord)
      FROM unnest(con.conpfeqop) WITH ORDINALITY k (op, ord)
      JOIN LATERAL (SELECT * FROM oper WHERE oper.oid = k.op OFFSET 0) oper ON true),
    'is_match_full', con.confmatchtype = 'f',
    'is_deferrable', con.condeferrable
  ) AS definition
  FROM con
  JOIN pg_catalog.pg_class cc ON cc.oid = con.conrelid JOIN pg_catalog.pg_namespace cn ON cn.oid = cc.relnamespace
  JOIN pg_catalog.pg_class pc ON pc.oid = con.confrelid JOIN pg_catalog.pg_namespace pn ON pn.oid = pc.relnamespace
  WHERE con.contype = 'f' AND con.conparentid = 0 AND con.is_enforced AND NOT con.is_temporal
), outgoing AS (
  SELECT fk.conrelid, jsonb_agg(fk.definition ORDER BY fk.conname) AS definitions FROM fk GROUP BY fk.conrelid
), incoming AS (
  SELECT fk.confrelid, jsonb_agg(fk.definition ORDER BY fk.conrelid, fk.conname) AS definitions FROM fk GROUP BY fk.confrelid
), excl AS (
  SELECT x.conrelid, jsonb_agg(jsonb_build_object(
    'name', x.conname,
    'columns', CASE WHEN xi.indexprs IS NULL AND xi.indpred IS NULL THEN (
      SELECT jsonb_agg(a.attname ORDER BY k.ord) FROM unnest(x.conkey) WITH ORDINALITY k (attnum, ord)
      JOIN pg_catalog.pg_attribute a ON a.attrelid = x.conrelid AND a.attnum = k.attnum) ELSE '[]' END,
    'operators', (SELECT jsonb_agg(coalesce((SELECT oper.function || type FROM loose WHERE root = a.atttypid),
        oper.name) ORDER BY k.ord)
      FROM unnest(x.conexclop, x.conkey) WITH ORDINALITY k (op, attnum, ord)
      JOIN LATERAL (SELECT * FROM oper WHERE oper.oid = k.op OFFSET 0) oper ON true
      LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = x.conrelid AND a.attnum = k.attnum),
    'is_deferrable', x.condeferrable) ORDER BY x.conname) AS definitions
  FROM con x JOIN pg_catalog.pg_index xi ON xi.indexrelid = x.conindid
  WHERE x.contype <> 'f' GROUP BY x.conrelid
)
SELECT rel.oid AS relid, jsonb_build_object(
  'schema', rel.nspname,
  'name', rel.relname,
  'is_partitioned', rel.relkind = 'p',
  'has_row_security', rel.relrowsecurity,
  'columns', coalesce(cols.definitions, '[]'),
  'primary_key', keys.primary_key,
  'uniques', coalesce(keys.uniques, '[]'),
  'exclusions', coalesce(excl.definitions, '[]'),
  'checks', coalesce((SELECT jsonb_agg(pg_catalog.pg_get_expr(k.conbin, k.conrelid) ORDER BY k.conname)
    FROM pg_catalog.pg_constraint k
    WHERE $2 AND k.contype = 'c' AND k.conrelid = rel.oid AND coalesce((to_jsonb(k) ->> 'conenforced')::bool, true)), '[]'),
  'foreign_keys', coalesce(outgoing.definitions, '[]'),
  'referenced_by', coalesce(incoming.definitions, '[]'),
  'fires_triggers', EXISTS (SELECT FROM pg_catalog.pg_trigger t
    -- A partition may have some of its own. Unlike pg_partition_tree() this takes no lock, which somebody may hold for long.
    WHERE (t.tgrelid = rel.oid OR rel.relkind = 'p' AND t.tgrelid IN (
        WITH RECURSIVE parts AS (
          SELECT i.inhrelid FROM pg_catalog.pg_inherits i WHERE i.inhparent = rel.oid
          UNION ALL SELECT i.inhrelid FROM parts p JOIN pg_catalog.pg_inherits i ON i.inhparent = p.inhrelid
        ) SELECT inhrelid FROM parts))
      AND t.tgenabled IN ('A', 'R') AND NOT t.tgisinternal
    -- Capture changes nothing, and sees what a statement does whatever else the statement does.
    AND NOT pg_catalog.starts_with(t.tgname::text, 'R_penstock_'))
) AS definition
FROM rel
LEFT JOIN cols ON cols.attrelid = rel.oid
LEFT JOIN keys ON keys.indrelid = rel.oid
LEFT JOIN excl ON excl.conrelid = rel.oid
LEFT JOIN outgoing ON outgoing.conrelid = rel.oid
LEFT JOIN incoming ON incoming.confrelid = rel.oid
