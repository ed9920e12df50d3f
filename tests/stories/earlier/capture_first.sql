-- the log of capture set penstock_lab, and the functions that fill it
-- The capture set "penstock_lab": the change log of one pipeline, and what fills it.
-- Everything here lives in one schema; `"penstock_lab"` stands for its quoted name, 'penstock_lab' for the same as a literal.

CREATE SCHEMA IF NOT EXISTS "penstock_lab";

CREATE SEQUENCE IF NOT EXISTS "penstock_lab".change_seq AS bigint CACHE 1;

CREATE TABLE IF NOT EXISTS "penstock_lab".log (
  xid xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  seq bigint NOT NULL DEFAULT pg_catalog.nextval('penstock_lab.change_seq'),
  at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  relid oid NOT NULL,
  version int NOT NULL,
  op "char" NOT NULL,
  before text,
  after text,
  PRIMARY KEY (xid, seq)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000, autovacuum_vacuum_insert_threshold = -1);
COMMENT ON TABLE "penstock_lab".log IS 'changes, one row each: I, U, D or T (truncate); freed when applied';

CREATE TABLE IF NOT EXISTS "penstock_lab".tick (
  scn bigint PRIMARY KEY,
  snapshot pg_snapshot NOT NULL,
  at timestamptz NOT NULL
);
COMMENT ON TABLE "penstock_lab".tick IS 'snapshots that cut the log into intervals; scn: no transaction before the cut has a higher one';

CREATE TABLE IF NOT EXISTS "penstock_lab".captured (
  relid oid NOT NULL,
  version int NOT NULL,
  definition jsonb NOT NULL,
  mode text NOT NULL,
  root oid NOT NULL,
  PRIMARY KEY (relid, version)
);
COMMENT ON TABLE "penstock_lab".captured IS 'every version of every captured table; log rows name one by relid and version';
COMMENT ON COLUMN "penstock_lab".captured.root IS 'the captured table that this one is a partition of, or itself';

CREATE TABLE IF NOT EXISTS "penstock_lab".marker (
  xid xid8 PRIMARY KEY,
  commit_seq bigint
);
COMMENT ON TABLE "penstock_lab".marker IS 'a last sequence number for transactions on tables with deferrable constraints';

CREATE OR REPLACE FUNCTION "penstock_lab".describe(relids oid[]) RETURNS TABLE (relid oid, definition jsonb)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $describe$
-- Definitions of the tables whose oids are in $1, one row each: (relid oid, definition jsonb).
-- The keys of `definition` are the fields of penstock.schema.TableSchema; columns come in attnum order.
WITH RECURSIVE rel AS (
  SELECT c.oid, n.nspname, c.relname, c.relkind, c.relrowsecurity
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  WHERE c.oid = ANY ($1)
), att AS (
  SELECT a.* FROM pg_catalog.pg_attribute a JOIN rel ON rel.oid = a.attrelid
  WHERE a.attnum > 0 AND NOT a.attisdropped
), base (root, typ) AS (
  -- The type below any chain of domains.
  SELECT DISTINCT atttypid, atttypid FROM att
  UNION
  SELECT b.root, t.typbasetype FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typ WHERE t.typtype = 'd'
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
    t.typtype = 'e' OR t.typnamespace = 'pg_catalog'::regnamespace
      AND t.typname NOT IN ('numeric', 'float4', 'float8', 'interval', 'jsonb') AS is_exact
  FROM part p JOIN pg_catalog.pg_type t ON t.oid = p.typ
  WHERE t.typtype IN ('b', 'e') AND (t.typcategory <> 'A' OR t.typelem = 0)
), kind AS (
  -- What a column's type needs, from all the types it is made of.
  SELECT b.root, b.typ, t.typname, t.typtype, t.typcategory,
    t.typtype IN ('c', 'r', 'm') OR t.typcategory = 'A' AND t.typelem <> 0 AS is_container,
    t.typnamespace = 'pg_catalog'::regnamespace AS is_builtin,
    l.is_comparable, l.is_exact, l.names
  FROM base b JOIN pg_catalog.pg_type t ON t.oid = b.typ AND t.typtype <> 'd'
  JOIN LATERAL (
    SELECT coalesce(bool_and(leaf.is_comparable), false) AS is_comparable,
           coalesce(bool_and(leaf.is_exact), false) AS is_exact,
           array_agg(leaf.typname::text) AS names
    FROM leaf WHERE leaf.root = b.root
  ) l ON true
), col AS (
  SELECT att.attrelid, att.attnum, jsonb_build_object(
    'name', att.attname,
    'type', pg_catalog.format_type(att.atttypid, att.atttypmod),
    'base_type', pg_catalog.format_type(kind.typ, NULL),
    'is_nullable', NOT att.attnotnull,
    'is_generated', att.attgenerated <> '',
    'is_stored', att.attgenerated <> 'v',
    'is_identity_always', att.attidentity = 'a',
    'is_comparable', kind.is_comparable,
    'is_exact', kind.is_exact AND coalesce(coll.collisdeterministic, true),
    'is_key_usable', kind.is_comparable AND NOT kind.is_container AND kind.typname <> 'jsonb',
    'is_integer', kind.typname IN ('int2', 'int4', 'int8', 'oid') AND kind.is_builtin,
    'is_plain', kind.is_builtin AND kind.typname IN ('bool', 'int2', 'int4', 'int8', 'oid', 'numeric', 'float4', 'float8',
      'money', 'bytea', 'date', 'time', 'timetz', 'timestamp', 'timestamptz', 'interval', 'uuid', 'inet', 'cidr', 'macaddr',
      'macaddr8', 'bit', 'varbit', 'pg_lsn'),
    'is_decimal', kind.typname IN ('numeric', 'float4', 'float8') AND kind.is_builtin,
    'to_text', CASE WHEN kind.is_builtin THEN
      CASE kind.typname
        WHEN 'bytea' THEN $q$replace(encode({}, 'base64'), chr(10), '')$q$
        WHEN 'date' THEN $q$btrim(to_json({})::text, '"')$q$
        WHEN 'time' THEN $q$to_char({}, 'HH24:MI:SS.US')$q$
        WHEN 'timetz' THEN $q$to_char({}::time, 'HH24:MI:SS.US') || regexp_replace(substring({}::text from '[+-].*$'), '^([+-]\d\d)$', '\1:00')$q$
        WHEN 'timestamp' THEN $q$CASE WHEN {} >= timestamp '0001-01-01' AND {} < timestamp 'infinity' THEN to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.US') WHEN isfinite({}) THEN to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.US" BC"') ELSE {}::text END$q$
        WHEN 'timestamptz' THEN $q$CASE WHEN {} >= timestamptz '0001-01-01 00:00:00+00' AND {} < timestamptz 'infinity' THEN to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"') WHEN isfinite({}) THEN to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00 BC"') ELSE {}::text END$q$
        WHEN 'money' THEN '{}::numeric::text'
        ELSE '{}::text'
      END ELSE '{}::text' END,
    'from_text', CASE WHEN kind.is_builtin AND kind.typname = 'bytea' THEN $q$decode({}, 'base64')$q$
                      WHEN kind.is_builtin AND kind.typname = 'money' THEN '{}::money' ELSE '{}' END,
    'staging_type', CASE WHEN kind.is_builtin AND kind.typname = 'bytea' THEN 'text'
                         WHEN kind.is_builtin AND kind.typname = 'money' THEN 'numeric'
                         ELSE pg_catalog.format_type(att.atttypid, att.atttypmod) END,
    'settings', to_jsonb(ARRAY(
      SELECT setting FROM (VALUES
        ('extra_float_digits', kind.names && ARRAY['float4', 'float8']),
        ('intervalstyle', kind.names && ARRAY['interval']),
        ('datestyle', kind.is_container AND kind.names && ARRAY['date', 'timestamp', 'timestamptz']),
        ('timezone', kind.is_container AND kind.names && ARRAY['timestamptz']),
        ('bytea_output', kind.is_container AND kind.names && ARRAY['bytea'])
      ) s (setting, is_needed) WHERE is_needed ORDER BY setting))
  ) AS definition, att.attname
  FROM att JOIN kind ON kind.root = att.atttypid
  LEFT JOIN pg_catalog.pg_collation coll ON coll.oid = att.attcollation
), uniq AS (
  SELECT i.indrelid, i.indisprimary, ic.relname AS name, jsonb_build_object(
    'name', ic.relname,
    'columns', CASE WHEN i.indpred IS NULL AND i.indexprs IS NULL THEN
      (SELECT jsonb_agg(a.attname ORDER BY k.ord) FROM unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, ord)
       JOIN att a ON a.attrelid = i.indrelid AND a.attnum = k.attnum WHERE k.ord <= i.indnkeyatts)
      ELSE '[]' END,
    'mentions', (SELECT coalesce(jsonb_agg(DISTINCT a.attname), '[]') FROM att a WHERE a.attrelid = i.indrelid
       AND (a.attnum = ANY (i.indkey::int2[]) OR EXISTS (
         SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
           AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))),
    'is_deferrable', NOT i.indimmediate,
    'nulls_are_equal', coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::bool, false)
  ) AS definition
  FROM pg_catalog.pg_index i JOIN rel ON rel.oid = i.indrelid JOIN pg_catalog.pg_class ic ON ic.oid = i.indexrelid
  WHERE i.indisunique AND i.indisvalid AND NOT i.indisexclusion
), con AS (
  SELECT c.*, coalesce((to_jsonb(c) ->> 'conenforced')::bool, true) AS is_enforced,
    coalesce((to_jsonb(c) ->> 'conperiod')::bool, false) AS is_temporal
  FROM pg_catalog.pg_constraint c
  WHERE c.contype IN ('f', 'x') AND (c.conrelid IN (SELECT oid FROM rel) OR c.confrelid IN (SELECT oid FROM rel))
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
    'is_match_full', con.confmatchtype = 'f',
    'is_deferrable', con.condeferrable
  ) AS definition
  FROM con
  JOIN pg_catalog.pg_class cc ON cc.oid = con.conrelid JOIN pg_catalog.pg_namespace cn ON cn.oid = cc.relnamespace
  JOIN pg_catalog.pg_class pc ON pc.oid = con.confrelid JOIN pg_catalog.pg_namespace pn ON pn.oid = pc.relnamespace
  WHERE con.contype = 'f' AND con.conparentid = 0 AND con.is_enforced AND NOT con.is_temporal
)
SELECT rel.oid AS relid, jsonb_build_object(
  'schema', rel.nspname,
  'name', rel.relname,
  'is_partitioned', rel.relkind = 'p',
  'has_row_security', rel.relrowsecurity,
  'columns', coalesce((SELECT jsonb_agg(col.definition - 'is_stored' ORDER BY col.attnum) FROM col
    WHERE col.attrelid = rel.oid AND (col.definition ->> 'is_stored')::bool), '[]'),
  'primary_key', (SELECT uniq.definition FROM uniq WHERE uniq.indrelid = rel.oid AND uniq.indisprimary),
  'uniques', coalesce((SELECT jsonb_agg(uniq.definition ORDER BY uniq.name) FROM uniq
    WHERE uniq.indrelid = rel.oid AND NOT uniq.indisprimary), '[]'),
  'exclusions', coalesce((SELECT jsonb_agg(jsonb_build_object(
      'name', x.conname,
      'columns', CASE WHEN xi.indexprs IS NULL AND xi.indpred IS NULL THEN (
        SELECT jsonb_agg(a.attname ORDER BY k.ord) FROM unnest(x.conkey) WITH ORDINALITY k (attnum, ord)
        JOIN att a ON a.attrelid = x.conrelid AND a.attnum = k.attnum) ELSE '[]' END,
      'operators', (SELECT jsonb_agg(format('OPERATOR(%I.%s)', opn.nspname, op.oprname) ORDER BY k.ord)
        FROM unnest(x.conexclop) WITH ORDINALITY k (opoid, ord)
        JOIN pg_catalog.pg_operator op ON op.oid = k.opoid
        JOIN pg_catalog.pg_namespace opn ON opn.oid = op.oprnamespace),
      'is_deferrable', x.condeferrable) ORDER BY x.conname)
    FROM con x JOIN pg_catalog.pg_index xi ON xi.indexrelid = x.conindid
    WHERE x.contype = 'x' AND x.conrelid = rel.oid), '[]'),
  'checks', coalesce((SELECT jsonb_agg(pg_catalog.pg_get_expr(k.conbin, k.conrelid) ORDER BY k.conname)
    FROM pg_catalog.pg_constraint k
    WHERE k.contype = 'c' AND k.conrelid = rel.oid AND coalesce((to_jsonb(k) ->> 'conenforced')::bool, true)), '[]'),
  'foreign_keys', coalesce((SELECT jsonb_agg(fk.definition ORDER BY fk.conname) FROM fk WHERE fk.conrelid = rel.oid), '[]'),
  'referenced_by', coalesce((SELECT jsonb_agg(fk.definition ORDER BY fk.conrelid, fk.conname)
    FROM fk WHERE fk.confrelid = rel.oid), '[]'),
  'fires_triggers', EXISTS (SELECT FROM pg_catalog.pg_trigger t
    WHERE t.tgrelid = rel.oid AND t.tgenabled IN ('A', 'R') AND NOT t.tgisinternal)
) AS definition
FROM rel
$describe$;

-- Deferred triggers fire in the order they were queued, so the first firing only queues the marker again, behind
-- every check the transaction has queued so far; the second one draws the number.
CREATE OR REPLACE FUNCTION "penstock_lab".draw_commit_seq() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE "penstock_lab".marker SET commit_seq = CASE WHEN NEW.commit_seq IS NULL THEN 0 ELSE nextval('penstock_lab.change_seq') END
  WHERE xid = NEW.xid;
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION "penstock_lab".install_marker() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '"penstock_lab".marker'::regclass AND tgname = 'draw_commit_seq') THEN
    CREATE CONSTRAINT TRIGGER draw_commit_seq AFTER INSERT OR UPDATE ON "penstock_lab".marker
      DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.commit_seq IS NULL OR NEW.commit_seq = 0)
      EXECUTE FUNCTION "penstock_lab".draw_commit_seq();
  END IF;
END $$;

-- Always quoted: PL/pgSQL has keywords of its own that quote_ident leaves bare.
CREATE OR REPLACE FUNCTION "penstock_lab".quoted(name text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT '"' || replace(name, '"', '""') || '"' $$;

-- SQL for the text of one column's value inside an image: a JSON string, or null.
CREATE OR REPLACE FUNCTION "penstock_lab".json_value(col jsonb, row_alias text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format(
    CASE WHEN (col ->> 'is_plain')::bool THEN $f$coalesce('"' || (%s) || '"', 'null')$f$
         ELSE $f$coalesce(to_json(%s)::text, 'null')$f$ END,
    replace(col ->> 'to_text', '{}', row_alias || '.' || "penstock_lab".quoted(col ->> 'name')))
$$;

-- SQL for an image. With a second alias, only for the columns that differ between the two rows.
CREATE OR REPLACE FUNCTION "penstock_lab".image(columns jsonb, row_alias text, old_alias text DEFAULT NULL) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($f$'{' || %s || '}'$f$, CASE WHEN count(*) = 1 THEN min(piece)
    ELSE format($f$concat_ws(',', %s)$f$, string_agg(piece, ', ' ORDER BY chunk)) END)
  FROM (
    -- A function takes at most 100 arguments.
    SELECT (ord - 1) / 90 AS chunk, format($f$concat_ws(',', %s)$f$, string_agg(CASE
        WHEN old_alias IS NULL THEN value
        WHEN (col ->> 'is_comparable')::bool AND (col ->> 'is_exact')::bool
          THEN format('CASE WHEN %1$s.%3$s IS DISTINCT FROM %2$s.%3$s THEN %4$s END',
                 old_alias, row_alias, "penstock_lab".quoted(col ->> 'name'), value)
        -- Byte by byte: 1.0 and 1.00 are equal, yet the target must learn the difference.
        ELSE format('CASE WHEN record_image_ne(ROW(%1$s.%3$s), ROW(%2$s.%3$s)) THEN %4$s END',
                    old_alias, row_alias, "penstock_lab".quoted(col ->> 'name'), value)
      END, ', ' ORDER BY ord)) AS piece
    FROM (
      SELECT ord, col, format('%L || %s', to_json(col ->> 'name')::text || ':', "penstock_lab".json_value(col, row_alias)) AS value
      FROM jsonb_array_elements(columns) WITH ORDINALITY c (col, ord)
    ) v
    GROUP BY (ord - 1) / 90
  ) chunks
$$;

-- The topmost ancestor of a partition that is captured, or the table itself.
CREATE OR REPLACE FUNCTION "penstock_lab".captured_root(rel oid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT a.relid FROM pg_partition_ancestors(rel) WITH ORDINALITY a (relid, ord)
    WHERE EXISTS (SELECT FROM "penstock_lab".captured c WHERE c.relid = a.relid) ORDER BY a.ord DESC LIMIT 1), rel)
$$;

-- How a table must be captured: by 'row', by 'statement', or by statement except for updates ('keyless').
-- A statement trigger fires after all row triggers, so another trigger's writes would be logged before the change
-- that caused them; and it can pair old with new rows only by a key that is unique at every moment.
CREATE OR REPLACE FUNCTION "penstock_lab".capture_mode(rel oid, definition jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    -- Row triggers on the root are cloned to its partitions; only TRUNCATE has to be watched on each of them.
    WHEN "penstock_lab".captured_root(rel) <> rel THEN 'partition'
    WHEN (definition ->> 'is_partitioned')::bool OR EXISTS (
      SELECT FROM pg_trigger t
      WHERE t.tgrelid = rel AND NOT t.tgisinternal AND t.tgenabled <> 'D'
        AND t.tgtype & 1 = 1 AND t.tgtype & 66 = 0 AND t.tgname NOT LIKE 'R\_penstock\_%') THEN 'row'
    WHEN jsonb_typeof(definition -> 'primary_key') = 'null'
      OR (definition #>> '{primary_key,is_deferrable}')::bool THEN 'keyless'
    ELSE 'statement'
  END
  || CASE WHEN EXISTS (
      SELECT FROM pg_constraint c WHERE c.condeferrable AND rel IN (c.conrelid, c.confrelid)) THEN '+marker' ELSE '' END
$$;

-- Capture a table from now on, or again after its definition changed. Does nothing when all is in place.
CREATE OR REPLACE FUNCTION "penstock_lab".capture(rel regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $capture$
DECLARE
  def jsonb := (SELECT d.definition FROM "penstock_lab".describe(ARRAY[rel::oid]) d);
  new_mode text := "penstock_lab".capture_mode(rel, def);
  is_row bool := new_mode LIKE 'row%';
  is_keyed bool := new_mode LIKE 'statement%';
  last "penstock_lab".captured := (SELECT c FROM "penstock_lab".captured c WHERE c.relid = rel ORDER BY c.version DESC LIMIT 1);
  this_version int := coalesce(last.version, 0);
  base_name text := 'R_' || 'penstock_lab';
  wanted text[] := CASE WHEN new_mode LIKE 'partition%' THEN ARRAY['_t'] WHEN is_row THEN ARRAY['', '_t'] WHEN is_keyed THEN ARRAY['_i', '_d', '_u', '_k', '_t']
                        ELSE ARRAY['_i', '_d', '_u', '_t'] END;
  key_columns text[] := ARRAY(SELECT jsonb_array_elements_text(def #> '{primary_key,columns}'));
  cols jsonb;
  settings text;
  marker text := CASE WHEN new_mode LIKE '%+marker' THEN format(
    'INSERT INTO "penstock_lab".marker (xid) VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;') ELSE '' END;
  suffix text;
BEGIN
  IF last.definition = def AND last.mode = new_mode AND (
    SELECT count(*) FROM pg_trigger t WHERE t.tgrelid = rel AND t.tgenabled = 'O'
      AND t.tgname IN (SELECT base_name || s FROM unnest(wanted) s)) = cardinality(wanted)
  THEN
    RETURN;
  END IF;
  IF last.definition IS DISTINCT FROM def THEN
    -- A table that was dropped and made again has another oid, but changes name it by its name.
    SELECT coalesce(max(c.version), 0) + 1 INTO this_version FROM "penstock_lab".captured c
    WHERE c.relid = rel OR (c.definition ->> 'schema', c.definition ->> 'name') = (def ->> 'schema', def ->> 'name');
    INSERT INTO "penstock_lab".captured (relid, version, definition, mode, root)
    VALUES (rel, this_version, def, new_mode, "penstock_lab".captured_root(rel));
  ELSE
    UPDATE "penstock_lab".captured SET mode = new_mode WHERE relid = rel AND version = this_version;
  END IF;
  IF marker <> '' THEN
    PERFORM "penstock_lab".install_marker();
  END IF;

  -- Key columns first, so that a reader finds the key at the head of an image.
  SELECT jsonb_agg(col ORDER BY array_position(key_columns, col ->> 'name'), ord) INTO cols
  FROM jsonb_array_elements(def -> 'columns') WITH ORDINALITY c (col, ord);
  SELECT coalesce(string_agg(DISTINCT format(' SET %s = %L', s, CASE s
      WHEN 'datestyle' THEN 'ISO' WHEN 'intervalstyle' THEN 'iso_8601' WHEN 'timezone' THEN 'UTC'
      WHEN 'bytea_output' THEN 'hex' WHEN 'extra_float_digits' THEN '1' END), ''), '') INTO settings
  FROM jsonb_array_elements(cols) c (col), jsonb_array_elements_text(col -> 'settings') s;

  FOR suffix IN SELECT unnest(ARRAY['', '_i', '_d', '_u', '_k', '_t']) LOOP
    IF NOT suffix = ANY (wanted) THEN
      IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = rel AND tgname = base_name || suffix AND tgparentid = 0) THEN
        EXECUTE format('DROP TRIGGER %I ON %s', base_name || suffix, rel);
      END IF;
      CONTINUE;
    END IF;
    EXECUTE format('CREATE OR REPLACE FUNCTION "penstock_lab".%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER'
      ' SET search_path = pg_catalog, pg_temp%s AS %L', format('capture_%s%s', rel::oid, suffix), settings,
      "penstock_lab".capture_body(suffix, rel, this_version, cols, key_columns, is_keyed, marker));
    EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s EXECUTE FUNCTION "penstock_lab".%I()', base_name || suffix,
      format(CASE
        WHEN suffix = '' THEN 'INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW'
        WHEN suffix = '_i' THEN 'INSERT ON %s REFERENCING NEW TABLE AS n FOR EACH STATEMENT'
        WHEN suffix = '_d' THEN 'DELETE ON %s REFERENCING OLD TABLE AS o FOR EACH STATEMENT'
        WHEN suffix = '_u' AND is_keyed
          THEN 'UPDATE ON %s REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT'
        WHEN suffix = '_u' THEN 'UPDATE ON %s FOR EACH ROW'
        WHEN suffix = '_k' THEN 'UPDATE ON %s FOR EACH ROW WHEN (' || (
          SELECT string_agg(format('OLD.%1$s IS DISTINCT FROM NEW.%1$s', "penstock_lab".quoted(k)), ' OR ') FROM unnest(key_columns) k) || ')'
        WHEN suffix = '_t' THEN 'TRUNCATE ON %s FOR EACH STATEMENT' END, rel),
      format('capture_%s%s', rel::oid, suffix));
  END LOOP;
END $capture$;

-- Capture a table together with its partitions, at any depth.
CREATE OR REPLACE FUNCTION "penstock_lab".capture_all(rel regclass) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  SELECT "penstock_lab".capture(rel);
  SELECT "penstock_lab".capture(t.relid) FROM pg_partition_tree(rel) t WHERE t.level > 0 ORDER BY t.level, t.relid;
$$;

-- The body of one capture function. The suffix tells which trigger it serves, see capture().
CREATE OR REPLACE FUNCTION "penstock_lab".capture_body(suffix text, rel oid, table_version int, cols jsonb,
  key_columns text[], is_keyed bool, marker text) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  head text := format('INSERT INTO "penstock_lab".log (relid, version, op, before, after)');
  row_insert text := format('%s VALUES (%s, %s, ''I'', NULL, %s);', head, rel, table_version, "penstock_lab".image(cols, 'NEW'));
  row_update text := format('%s VALUES (%s, %s, ''U'', %s, %s)', head, rel, table_version,
    "penstock_lab".image(cols, 'OLD'), "penstock_lab".image(cols, 'NEW', 'OLD'));
  row_delete text := format('%s VALUES (%s, %s, ''D'', %s, NULL);', head, rel, table_version, "penstock_lab".image(cols, 'OLD'));
  using_key text := (SELECT string_agg(format('o.%1$s = n.%1$s', "penstock_lab".quoted(k)), ' AND ') FROM unnest(key_columns) k);
  set_update text := format('%s SELECT %s, %s, ''U'', %s, %s FROM o JOIN n ON %s', head, rel, table_version,
    "penstock_lab".image(cols, 'o'), "penstock_lab".image(cols, 'n', 'o'), using_key);
  statement text;
BEGIN
  statement := CASE
    WHEN suffix = '' THEN format('IF TG_OP = ''INSERT'' THEN %s ELSIF TG_OP = ''UPDATE'' THEN %s; ELSE %s END IF;',
      row_insert, row_update, row_delete)
    WHEN suffix = '_i' THEN format('%s SELECT %s, %s, ''I'', NULL, %s FROM n;', head, rel, table_version,
      "penstock_lab".image(cols, 'n'))
    WHEN suffix = '_d' THEN format('%s SELECT %s, %s, ''D'', %s, NULL FROM o;', head, rel, table_version,
      "penstock_lab".image(cols, 'o'))
    WHEN suffix = '_u' AND NOT is_keyed THEN row_update || ';'
    -- Rows whose key changed were logged by the row trigger _k of this statement, which left the number of the
    -- first of them behind; they are told by their old image, which the key makes unique.
    WHEN suffix = '_k' THEN format($f$
  DECLARE k_seq bigint; BEGIN
    %s RETURNING seq INTO k_seq;
    IF coalesce(current_setting('penstock_lab.rekeyed_%s', true), '') = '' THEN
      PERFORM set_config('penstock_lab.rekeyed_%2$s', k_seq::text, true);
    END IF;
  END;$f$, row_update, rel)
    WHEN suffix = '_u' THEN format($f$
  IF coalesce(current_setting('penstock_lab.rekeyed_%1$s', true), '') = '' THEN
    %2$s;
  ELSE
    %2$s WHERE NOT EXISTS (SELECT FROM "penstock_lab".log l WHERE l.xid = pg_current_xact_id() AND l.relid = %1$s
      AND l.seq >= current_setting('penstock_lab.rekeyed_%1$s')::bigint AND l.before = %3$s);
    PERFORM set_config('penstock_lab.rekeyed_%1$s', '', true);
  END IF;$f$, rel, set_update, "penstock_lab".image(cols, 'o'))
    -- A partition that goes with its root needs no row of its own.
    WHEN suffix = '_t' THEN format($f$
  %1$s SELECT %2$s, %3$s, 'T', NULL, NULL WHERE %2$s = "penstock_lab".captured_root(%2$s) OR NOT EXISTS (
    SELECT FROM "penstock_lab".log l JOIN pg_partition_ancestors(%2$s) a ON a.relid = l.relid
    WHERE l.xid = pg_current_xact_id() AND l.op = 'T' AND l.relid <> %2$s AND NOT EXISTS (
      SELECT FROM "penstock_lab".log later WHERE later.xid = l.xid AND later.seq > l.seq AND later.op <> 'T'));$f$,
      head, rel, table_version)
  END;
  RETURN format('BEGIN %s %s RETURN NULL; END', marker, statement);
END $body$;

-- DDL on a captured table rebuilds its capture in the same transaction, so that no change is logged with the wrong
-- columns and no user's statement fails on a column that is gone.
CREATE OR REPLACE FUNCTION "penstock_lab".on_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root oid;
BEGIN
  FOR root IN
    WITH touched AS (
      SELECT d.objid AS relid FROM pg_event_trigger_ddl_commands() d WHERE d.classid = 'pg_class'::regclass
      UNION
      SELECT t.tgrelid FROM pg_event_trigger_ddl_commands() d JOIN pg_trigger t ON t.oid = d.objid
      WHERE d.classid = 'pg_trigger'::regclass AND t.tgname NOT LIKE 'R\_penstock\_%'
    )
    SELECT DISTINCT "penstock_lab".captured_root(r.relid)
    FROM (SELECT relid FROM touched
          UNION SELECT c.confrelid FROM pg_constraint c WHERE c.contype = 'f' AND c.conrelid IN (SELECT relid FROM touched)) r
    WHERE EXISTS (SELECT FROM "penstock_lab".captured c WHERE c.relid = "penstock_lab".captured_root(r.relid))
      AND EXISTS (SELECT FROM pg_class k WHERE k.oid = r.relid)
  LOOP
    PERFORM "penstock_lab".capture_all(root);
  END LOOP;
END $$;

-- Captured tables whose definition or triggers are no longer what the capture was built for.
CREATE OR REPLACE FUNCTION "penstock_lab".stale() RETURNS SETOF regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.relid::regclass
  FROM (SELECT DISTINCT ON (relid) * FROM "penstock_lab".captured ORDER BY relid, version DESC) c
  JOIN "penstock_lab".describe(ARRAY(SELECT relid FROM "penstock_lab".captured)) d ON d.relid = c.relid
  WHERE c.definition <> d.definition OR c.mode <> "penstock_lab".capture_mode(c.relid, d.definition)
$$;
-- which version of them is installed
COMMENT ON SCHEMA "penstock_lab" IS 'penstock: 71f608edfd4168d0';
-- the first tick
INSERT INTO "penstock_lab".tick (scn, snapshot, at) SELECT 0, pg_current_snapshot(), clock_timestamp() WHERE NOT EXISTS (SELECT FROM "penstock_lab".tick);
-- capture table public.t
SELECT "penstock_lab".capture_all('"public"."t"'::regclass);
-- no older event trigger
DROP EVENT TRIGGER IF EXISTS "penstock_lab";
-- rebuild the capture of a table when its definition changes
CREATE EVENT TRIGGER "penstock_lab" ON ddl_command_end WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE', 'CREATE TRIGGER', 'ALTER TRIGGER') EXECUTE FUNCTION "penstock_lab".on_ddl();
