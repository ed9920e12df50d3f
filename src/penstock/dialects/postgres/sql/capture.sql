-- The capture set {set}: the change log of one pipeline, and what fills it.
-- Everything here lives in one schema; `{set}` stands for its quoted name, {name} for the same as a literal.

-- IF NOT EXISTS would want the right to create one all the same.
DO $$ BEGIN IF NOT EXISTS (SELECT FROM pg_namespace WHERE nspname = {name}) THEN CREATE SCHEMA {set}; END IF; END $$;

CREATE SEQUENCE IF NOT EXISTS {set}.change_seq AS bigint CACHE 1;

CREATE TABLE IF NOT EXISTS {set}.log (
  xid xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  seq bigint NOT NULL DEFAULT pg_catalog.nextval({seq}),
  at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  relid oid NOT NULL,
  version int NOT NULL,
  op "char" NOT NULL,
  before text,
  after text,
  changes int NOT NULL DEFAULT 1
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 100000, autovacuum_vacuum_insert_threshold = -1);

-- In a block, since ALTER TABLE would lock writers out only to find that there is nothing to do. Many changes in one row
-- are kept in the table itself, and not compressed, as long as they fit in a page: compressing them costs their writer
-- a tenth of what capturing them does.
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{set}.log'::regclass AND attname = 'changes') THEN
    ALTER TABLE {set}.log ADD COLUMN changes int NOT NULL DEFAULT 1;
  END IF;
  IF EXISTS (
    SELECT FROM pg_attribute WHERE attrelid = '{set}.log'::regclass AND attname = 'before' AND attstorage <> 'm') THEN
    ALTER TABLE {set}.log ALTER COLUMN before SET STORAGE MAIN, SET (toast_tuple_target = 8160);
  END IF;
  -- A reader that sleeps holds the lock alone, and is notified. A default is one place for all triggers, and without a
  -- function there is none that somebody may not call. Who has notified cannot be prepared any more: where there can be
  -- prepared transactions, no reader sleeps. Who notifies fails when the queue is full, as a reader that hangs may leave
  -- it.
  IF NOT EXISTS (
    SELECT FROM pg_attrdef WHERE adrelid = '{set}.log'::regclass AND strpos(pg_get_expr(adbin, adrelid), '{wake}') > 0) THEN
    ALTER TABLE {set}.log ALTER COLUMN at SET DEFAULT
      CASE WHEN pg_catalog.pg_try_advisory_xact_lock_shared({wake}) THEN pg_catalog.clock_timestamp()
        WHEN pg_catalog.current_setting('max_prepared_transactions') = '0' AND pg_catalog.pg_notification_queue_usage() < 0.1
          AND pg_catalog.pg_notify({name}, '') IS NOT NULL THEN pg_catalog.clock_timestamp()
        ELSE pg_catalog.clock_timestamp() END;
  END IF;
END $$;

COMMENT ON TABLE {set}.log IS 'one change: I, U, D or T (truncate); or many of one statement: i, u or d; freed when applied';
COMMENT ON COLUMN {set}.log.before IS 'of many changes their images, a line each; an update''s two with a tab between';
-- Not a key: that would be checked. The reader gets its order from it; sorting would cost it a third more.
CREATE INDEX IF NOT EXISTS log_order ON {set}.log (xid, seq);

-- The log change by change.
CREATE OR REPLACE VIEW {set}.changes AS
  SELECT xid, seq, 0::bigint AS line, relid, op, before, after FROM {set}.log WHERE op IN ('I', 'U', 'D', 'T')
  UNION ALL
  SELECT xid, seq, t.line, relid, upper(op::text)::"char",
    CASE op WHEN 'u' THEN split_part(t.images, E'\t', 1) WHEN 'd' THEN t.images END,
    CASE op WHEN 'u' THEN split_part(t.images, E'\t', 2) WHEN 'i' THEN t.images END
  FROM {set}.log, string_to_table(before, E'\n') WITH ORDINALITY t (images, line) WHERE op IN ('i', 'u', 'd');

CREATE TABLE IF NOT EXISTS {set}.tick (
  scn bigint PRIMARY KEY,
  snapshot pg_snapshot NOT NULL,
  at timestamptz NOT NULL
);
COMMENT ON TABLE {set}.tick IS 'snapshots that cut the log into intervals; scn: no transaction before the cut has a higher one';

CREATE TABLE IF NOT EXISTS {set}.captured (
  relid oid NOT NULL,
  version int NOT NULL,
  definition jsonb NOT NULL,
  mode text NOT NULL,
  root oid NOT NULL,
  PRIMARY KEY (relid, version)
);
COMMENT ON TABLE {set}.captured IS 'every version of every captured table; log rows name one by relid and version';
COMMENT ON COLUMN {set}.captured.root IS 'the captured table that this one is a partition of, or itself';

CREATE TABLE IF NOT EXISTS {set}.by_row (relid oid PRIMARY KEY);
COMMENT ON TABLE {set}.by_row IS 'captured tables that row triggers were asked for';
-- The functions are their first owner's, whoever brings them up to date.
DO $$
DECLARE
  owner oid := (SELECT relowner FROM pg_class WHERE oid = '{set}.captured'::regclass);
BEGIN
  IF owner <> (SELECT relowner FROM pg_class WHERE oid = '{set}.by_row'::regclass) THEN
    EXECUTE format('ALTER TABLE {set}.by_row OWNER TO %s', owner::regrole);
  END IF;
END $$;

CREATE TABLE IF NOT EXISTS {set}.marker (
  xid xid8 PRIMARY KEY,
  commit_seq bigint
);
COMMENT ON TABLE {set}.marker IS 'a last sequence number for transactions on tables with deferrable constraints';

CREATE OR REPLACE FUNCTION {set}.describe(relids oid[]) RETURNS TABLE (relid oid, definition jsonb)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $describe$
{describe}
$describe$;

-- Deferred triggers fire in the order they were queued, so the first firing only queues the marker again, behind
-- every check the transaction has queued so far; the second one draws the number.
CREATE OR REPLACE FUNCTION {set}.draw_commit_seq() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE {set}.marker SET commit_seq = CASE WHEN NEW.commit_seq IS NULL THEN 0 ELSE nextval({seq}) END
  WHERE xid = NEW.xid;
  RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION {set}.install_marker() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{set}.marker'::regclass AND tgname = 'draw_commit_seq') THEN
    CREATE CONSTRAINT TRIGGER draw_commit_seq AFTER INSERT OR UPDATE ON {set}.marker
      DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.commit_seq IS NULL OR NEW.commit_seq = 0)
      EXECUTE FUNCTION {set}.draw_commit_seq();
  END IF;
END $$;

-- Always quoted: PL/pgSQL has keywords of its own that quote_ident leaves bare.
CREATE OR REPLACE FUNCTION {set}.quoted(name text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT '"' || replace(name, '"', '""') || '"' $$;

-- The images below are generated SQL that runs with its owner's rights under whatever search_path the writer has, since
-- setting one costs more than the rest of a call. So every name and operator in it is qualified, and what looks an
-- operator up by itself is not used: IS DISTINCT FROM, IN, BETWEEN, NULLIF, CASE with an operand, JOIN ... USING.

-- And a session compiles them anew for each statement, so that it is their length that a single row pays for.

-- SQL for one member of an image: arguments of concat(), which skips nulls.
CREATE OR REPLACE FUNCTION {set}.json_member(col jsonb, row_alias text, separator text, is_null_known bool) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format(CASE
      WHEN NOT (col ->> 'is_plain')::bool THEN $f$%5$L, coalesce(pg_catalog.to_json(%4$s), 'null'::pg_catalog.json)$f$
      WHEN is_null_known THEN $f$%3$L, %4$s, '"'$f$
      ELSE $f$CASE WHEN %1$s IS NULL THEN %2$L ELSE %3$L END, %4$s, CASE WHEN %1$s IS NOT NULL THEN '"' END$f$ END,
    field, head || 'null', head || '"',
    replace(CASE
      -- concat() makes the same text of it.
      WHEN col ->> 'to_text' = '{{}}::pg_catalog.text' AND (col ->> 'is_decimal' = 'true' OR col ->> 'is_integer' = 'true')
        THEN '{{}}' ELSE col ->> 'to_text' END, '{{}}', field), head)
  FROM (SELECT row_alias || '.' || {set}.quoted(col ->> 'name') AS field,
               separator || to_json(col ->> 'name')::text || ':' AS head) m
$$;

-- Whether a column can be relied on to hold a value. Should it have lost its NOT NULL unnoticed, its text is empty, which
-- no type takes but those left out here.
CREATE OR REPLACE FUNCTION {set}.has_value(col jsonb) RETURNS bool
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT NOT (col ->> 'is_nullable')::bool AND col ->> 'base_type' NOT IN ('bytea', 'bit', 'bit varying')
$$;

-- SQL for a member of an update's image: null when the column is in both rows the same to the byte.
CREATE OR REPLACE FUNCTION {set}.changed_member(col jsonb, row_alias text, old_alias text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format(CASE
      -- 1.0 and 1.00 are equal, yet the target must learn the difference. A row value of nulls passes for null.
      WHEN NOT (is_exact OR col ->> 'base_type' = 'numeric') OR NOT (col ->> 'is_key_usable')::bool
        THEN 'CASE WHEN pg_catalog.record_image_ne(ROW(%1$s), ROW(%2$s)) THEN pg_catalog.concat(%5$s) END'
      ELSE 'CASE ' || CASE WHEN {set}.has_value(col) THEN ''
             ELSE 'WHEN %2$s IS NULL THEN CASE WHEN %1$s IS NOT NULL THEN %3$L END ' END
        || 'WHEN %1$s OPERATOR(pg_catalog.=) %2$s'
        || CASE WHEN is_exact THEN ''
             ELSE ' AND coalesce(pg_catalog.scale(%1$s) OPERATOR(pg_catalog.=) pg_catalog.scale(%2$s), true)' END
        || ' THEN NULL ELSE pg_catalog.concat(%4$s) END'
    END, old_alias || '.' || name, row_alias || '.' || name, ',' || to_json(col ->> 'name')::text || ':null',
    {set}.json_member(col, row_alias, ',', true), {set}.json_member(col, row_alias, ',', false))
  FROM (SELECT {set}.quoted(col ->> 'name') AS name,
               (col ->> 'is_exact')::bool OR col ->> 'type' LIKE 'numeric(%)' AS is_exact) c
$$;

-- SQL for an image. With a second alias, only for the columns that differ between the two rows.
CREATE OR REPLACE FUNCTION {set}.image(columns jsonb, row_alias text, old_alias text DEFAULT NULL) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  -- A function takes at most 100 arguments, and a member of a whole image is up to three.
  WITH member AS (
    SELECT ord, (ord - 1) / 30 AS chunk, CASE
      WHEN old_alias IS NOT NULL THEN {set}.changed_member(col, row_alias, old_alias)
      ELSE {set}.json_member(col, row_alias, CASE WHEN ord = 1 THEN '' ELSE ',' END, {set}.has_value(col)) END AS piece
    FROM jsonb_array_elements(columns) WITH ORDINALITY c (col, ord)
  ), chunk AS (
    SELECT chunk, string_agg(piece, ', ' ORDER BY ord) AS piece FROM member GROUP BY chunk
  ), whole AS (
    SELECT coalesce(CASE WHEN count(*) = 1 THEN min(piece)
      ELSE string_agg(format('pg_catalog.concat(%s)', piece), ', ' ORDER BY chunk) END, $f$''$f$) AS members FROM chunk
  )
  -- What changed is not known beforehand, so each member brings a comma, of which the first one goes.
  SELECT format(CASE WHEN old_alias IS NULL THEN $f$pg_catalog.concat('{{', %s, '}}')$f$
    ELSE $f$pg_catalog.concat('{{', pg_catalog.substr(pg_catalog.concat(%s), 2), '}}')$f$ END, members) FROM whole
$$;

-- The topmost ancestor of a partition that is captured, or the table itself.
CREATE OR REPLACE FUNCTION {set}.captured_root(rel oid) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce((SELECT a.relid FROM pg_partition_ancestors(rel) WITH ORDINALITY a (relid, ord)
    WHERE EXISTS (SELECT FROM {set}.captured c WHERE c.relid = a.relid) ORDER BY a.ord DESC LIMIT 1), rel)
$$;

-- How a table must be captured: by 'row', by 'statement', or as a 'partition' that goes with its root; '+marker' where
-- a constraint may be checked at commit. A row trigger costs a statement of one row less, and one of many rows more, so
-- it can be asked for; and sometimes it must be. A statement trigger fires after all row triggers, so another trigger's
-- writes would be logged before the change that caused them; it also sees the rows of tables that inherit; and that of
-- a partition does not fire for what is written through the root.
CREATE OR REPLACE FUNCTION {set}.capture_mode(rel oid, definition jsonb) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    -- Row triggers on the root are cloned to its partitions; only TRUNCATE has to be watched on each of them.
    WHEN {set}.captured_root(rel) <> rel THEN 'partition'
    WHEN (definition ->> 'is_partitioned')::bool
      OR (SELECT k.relispartition FROM pg_class k WHERE k.oid = rel)
      OR rel IN (SELECT relid FROM {set}.by_row)
      OR EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE rel IN (i.inhparent, i.inhrelid) AND NOT c.relispartition)
      OR EXISTS (SELECT FROM pg_trigger t
        WHERE t.tgrelid = rel AND NOT t.tgisinternal AND t.tgenabled <> 'D'
          AND t.tgtype & 1 = 1 AND t.tgtype & 66 = 0 AND t.tgname NOT LIKE 'R\_penstock\_%') THEN 'row'
    ELSE 'statement'
  END
  || CASE WHEN EXISTS (
      SELECT FROM pg_constraint c WHERE c.condeferrable AND rel IN (c.conrelid, c.confrelid)) THEN '+marker' ELSE '' END
$$;

-- The triggers that a mode needs. Their names hold the table's oid: a partition may have some of its own beside those
-- it has from its root, and no other set's names begin alike.
CREATE OR REPLACE FUNCTION {set}.trigger_names(rel oid, mode text) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT array_agg(format('R_%s_%s%s', {name}, rel, suffix)) FROM unnest(CASE
    WHEN mode LIKE 'partition%' THEN ARRAY['_t']
    WHEN mode LIKE 'row%' THEN ARRAY['_r', '_t']
    WHEN mode LIKE 'statement%' THEN ARRAY['_i', '_d', '_u', '_t'] END) suffix
$$;

-- Whether a table's triggers are there and switched on.
CREATE OR REPLACE FUNCTION {set}.has_triggers(rel oid, mode text) RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT count(*) = cardinality({set}.trigger_names(rel, mode)) FROM pg_trigger t
  WHERE t.tgrelid = rel AND t.tgenabled = 'O' AND t.tgname = ANY ({set}.trigger_names(rel, mode))
$$;

-- What of a definition capture depends on; the rest may change without it.
CREATE OR REPLACE FUNCTION {set}.essence(definition jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT definition - '{{uniques,exclusions,checks,foreign_keys,referenced_by,fires_triggers,has_row_security}}'::text[]
$$;

-- Capture a table from now on, or again after its definition changed. Does nothing when all is in place.
CREATE OR REPLACE FUNCTION {set}.capture(rel regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $capture$
DECLARE
  def jsonb := (SELECT d.definition FROM {set}.describe(ARRAY[rel::oid]) d);
  new_mode text := {set}.capture_mode(rel, def);
  last {set}.captured := (SELECT c FROM {set}.captured c WHERE c.relid = rel ORDER BY c.version DESC LIMIT 1);
  this_version int := coalesce(last.version, 0);
  wanted text[] := {set}.trigger_names(rel, new_mode);
  key_columns text[] := ARRAY(SELECT jsonb_array_elements_text(def #> '{{primary_key,columns}}'));
  cols jsonb;
  settings text;
  marker text := CASE WHEN new_mode LIKE '%+marker' THEN format(
    'INSERT INTO {set}.marker (xid) VALUES (pg_catalog.pg_current_xact_id()) ON CONFLICT DO NOTHING;') ELSE '' END;
  suffix text;
  trigger_name text;
BEGIN
  IF last.definition = def AND last.mode = new_mode AND {set}.has_triggers(rel, new_mode) THEN
    RETURN;
  END IF;
  IF last.definition IS DISTINCT FROM def THEN
    -- A table that was dropped and made again has another oid, but changes name it by its name.
    SELECT coalesce(max(c.version), 0) + 1 INTO this_version FROM {set}.captured c
    WHERE c.relid = rel OR (c.definition ->> 'schema', c.definition ->> 'name') = (def ->> 'schema', def ->> 'name');
    INSERT INTO {set}.captured (relid, version, definition, mode, root)
    VALUES (rel, this_version, def, new_mode, {set}.captured_root(rel));
  ELSE
    UPDATE {set}.captured SET mode = new_mode WHERE relid = rel AND version = this_version;
  END IF;
  IF marker <> '' THEN
    PERFORM {set}.install_marker();
  END IF;

  -- Key columns first, so that a reader finds the key at the head of an image.
  SELECT jsonb_agg(col ORDER BY array_position(key_columns, col ->> 'name'), ord) INTO cols
  FROM jsonb_array_elements(def -> 'columns') WITH ORDINALITY c (col, ord);
  SELECT coalesce(string_agg(DISTINCT CASE s WHEN 'search_path' THEN ' SET search_path = pg_catalog, pg_temp'
      ELSE format(' SET %s = %L', s, CASE s WHEN 'datestyle' THEN 'ISO' WHEN 'intervalstyle' THEN 'iso_8601' WHEN 'timezone' THEN 'UTC'
      WHEN 'bytea_output' THEN 'hex' WHEN 'extra_float_digits' THEN '1' END) END, ''), '') INTO settings
  FROM jsonb_array_elements(cols) c (col), jsonb_array_elements_text(col -> 'settings') s;

  FOREACH suffix IN ARRAY ARRAY['_r', '_i', '_d', '_u', '_t'] LOOP
    trigger_name := format('R_%s_%s%s', {name}, rel::oid, suffix);
    IF NOT trigger_name = ANY (wanted) THEN
      IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = rel AND tgname = trigger_name AND tgparentid = 0) THEN
        IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = rel), 'USAGE') THEN
          EXECUTE format('DROP TRIGGER %I ON %s', trigger_name, rel);
        ELSE
          -- Only an owner may drop it. It stays, and does nothing.
          EXECUTE format('CREATE OR REPLACE FUNCTION {set}.%I() RETURNS trigger LANGUAGE plpgsql AS %L',
            format('capture_%s%s', rel::oid, suffix), 'BEGIN RETURN NULL; END');
        END IF;
      END IF;
      CONTINUE;
    END IF;
    EXECUTE format('CREATE OR REPLACE FUNCTION {set}.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER%s AS %L',
      format('capture_%s%s', rel::oid, suffix),
      CASE suffix WHEN '_t' THEN ' SET search_path = pg_catalog, pg_temp' ELSE settings END,
      {set}.capture_body(suffix, rel, this_version, cols, marker));
    EXECUTE format('CREATE OR REPLACE TRIGGER %I AFTER %s EXECUTE FUNCTION {set}.%I()', trigger_name,
      format(CASE suffix
        WHEN '_r' THEN 'INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW'
        WHEN '_i' THEN 'INSERT ON %s REFERENCING NEW TABLE AS n FOR EACH STATEMENT'
        WHEN '_d' THEN 'DELETE ON %s REFERENCING OLD TABLE AS o FOR EACH STATEMENT'
        WHEN '_u' THEN 'UPDATE ON %s REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT'
        WHEN '_t' THEN 'TRUNCATE ON %s FOR EACH STATEMENT' END, rel),
      format('capture_%s%s', rel::oid, suffix));
  END LOOP;
  -- Only now is the table locked; somebody may have altered it before.
  IF def IS DISTINCT FROM (SELECT d.definition FROM {set}.describe(ARRAY[rel::oid]) d) THEN
    PERFORM {set}.capture(rel);
  END IF;
END $capture$;

-- Capture a table together with its partitions, at any depth, and let go of those it does not have any more.
CREATE OR REPLACE FUNCTION {set}.capture_all(rel regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  part regclass;
  trigger_name text;
BEGIN
  PERFORM {set}.capture(rel);
  PERFORM {set}.capture(t.relid) FROM pg_partition_tree(rel) t WHERE t.level > 0 ORDER BY t.level, t.relid;
  FOR part IN
    SELECT c.relid FROM {set}.captured c JOIN pg_class k ON k.oid = c.relid
    WHERE c.root = rel AND c.relid <> rel AND c.mode LIKE 'partition%'
      AND c.relid NOT IN (SELECT t.relid FROM pg_partition_tree(rel) t)
  LOOP
    FOR trigger_name IN SELECT t.tgname FROM pg_trigger t WHERE t.tgrelid = part AND t.tgparentid = 0
      AND t.tgname = ANY ({set}.trigger_names(part, 'partition'))
    LOOP
      EXECUTE format('DROP TRIGGER %I ON %s', trigger_name, part);
    END LOOP;
    UPDATE {set}.captured SET mode = 'detached' WHERE relid = part;
  END LOOP;
END $$;

-- The body of one capture function. The suffix tells which trigger it serves, see capture().
CREATE OR REPLACE FUNCTION {set}.capture_body(suffix text, rel oid, table_version int, cols jsonb, marker text)
RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  head text := 'INSERT INTO {set}.log (relid, version, op, before, after)';
  old_alias text := CASE suffix WHEN '_r' THEN 'OLD' ELSE 'o' END;
  new_alias text := CASE suffix WHEN '_r' THEN 'NEW' ELSE 'n' END;
  old_row text := {set}.image(cols, old_alias);
  new_row text := {set}.image(cols, new_alias);
  changed text := {set}.image(cols, new_alias, old_alias);
  statement text;
BEGIN
  statement := CASE suffix
    WHEN '_r' THEN format($f$
  IF TG_OP OPERATOR(pg_catalog.=) 'INSERT' THEN
    %1$s VALUES (%2$s, %3$s, 'I', NULL, %5$s);
  ELSIF TG_OP OPERATOR(pg_catalog.=) 'UPDATE' THEN
    %1$s VALUES (%2$s, %3$s, 'U', %4$s, %6$s);
  ELSE
    %1$s VALUES (%2$s, %3$s, 'D', %4$s, NULL);
  END IF;$f$, head, rel, table_version, old_row, new_row, changed)
    -- To ask for the number of rows beforehand would cost a single row a fifth more.
    WHEN '_i' THEN format($f$
  %1$s SELECT %2$s, %3$s, 'I', NULL, %4$s FROM n LIMIT 8;
  GET DIAGNOSTICS logged = ROW_COUNT;
  IF logged OPERATOR(pg_catalog.=) 8 THEN %5$s END IF;$f$,
      head, rel, table_version, new_row, {set}.in_lines(rel, table_version, 'i', new_row, 'n OFFSET 8'))
    WHEN '_d' THEN format($f$
  %1$s SELECT %2$s, %3$s, 'D', %4$s, NULL FROM o LIMIT 8;
  GET DIAGNOSTICS logged = ROW_COUNT;
  IF logged OPERATOR(pg_catalog.=) 8 THEN %5$s END IF;$f$,
      head, rel, table_version, old_row, {set}.in_lines(rel, table_version, 'd', old_row, 'o OFFSET 8'))
    -- The old and the new row of an update stand at the same place of the two transition tables, which are filled row
    -- by row in the order of the work; that also tells which row became which when a key changes. One row needs no
    -- pairing. A plan is kept for the session, and a full join cannot become a nested loop, which would be quadratic.
    WHEN '_u' THEN format($f$
  IF NOT EXISTS (SELECT FROM n OFFSET 1) THEN
    %1$s SELECT %2$s, %3$s, 'U', %4$s, %5$s FROM o, n;
  ELSE %6$s END IF;$f$,
      head, rel, table_version, old_row, changed, {set}.in_lines(rel, table_version, 'u',
        format($f$pg_catalog.concat(%s, E'\t', %s)$f$, old_row, changed), $f$
      (SELECT *, pg_catalog.row_number() OVER () AS "penstock row" FROM o) o
      FULL JOIN (SELECT *, pg_catalog.row_number() OVER () AS "penstock row" FROM n) n
        ON o."penstock row" OPERATOR(pg_catalog.=) n."penstock row" ORDER BY o."penstock row"$f$))
    -- A partition that goes with its root needs no row of its own.
    WHEN '_t' THEN format($f$
  %1$s SELECT %2$s, %3$s, 'T', NULL, NULL WHERE %2$s = {set}.captured_root(%2$s) OR NOT EXISTS (
    SELECT FROM {set}.log l JOIN pg_partition_ancestors(%2$s) a ON a.relid = l.relid
    WHERE l.xid = pg_current_xact_id() AND l.op = 'T' AND l.relid <> %2$s AND NOT EXISTS (
      SELECT FROM {set}.log later WHERE later.xid = l.xid AND later.seq > l.seq AND later.op <> 'T'));$f$,
      head, rel, table_version)
  END;
  RETURN format('%sBEGIN %s %s RETURN NULL; END',
    CASE WHEN suffix IN ('_i', '_d') THEN 'DECLARE logged pg_catalog.int8; ' END, marker, statement);
END $body$;

-- PL/pgSQL that logs many changes of one statement, up to 64 in a row of the log, which halves what each one costs.
-- Images hold neither line feeds nor tabs. A long line ends its row, which so stays far below the largest value that
-- there can be.
CREATE OR REPLACE FUNCTION {set}.in_lines(rel oid, table_version int, op text, line text, from_rows text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($f$
    DECLARE
      line pg_catalog.text;
      lines pg_catalog.text[] := '{{}}';
    BEGIN
      FOR line IN SELECT %1$s FROM %2$s LOOP
        lines := pg_catalog.array_append(lines, line);
        IF pg_catalog.cardinality(lines) OPERATOR(pg_catalog.=) 64
          OR pg_catalog.octet_length(line) OPERATOR(pg_catalog.>) 4000 THEN
          %3$s
          lines := '{{}}';
        END IF;
      END LOOP;
      IF pg_catalog.cardinality(lines) OPERATOR(pg_catalog.>) 0 THEN
        %3$s
      END IF;
    END;
  $f$, line, from_rows, format(
    $f$INSERT INTO {set}.log (relid, version, op, before, changes)
            VALUES (%s, %s, '%s', pg_catalog.array_to_string(lines, E'\n'), pg_catalog.cardinality(lines));$f$,
    rel, table_version, op))
$$;

-- DDL on a captured table rebuilds its capture in the same transaction, so that no change is logged with the wrong
-- columns and no user's statement fails on a column that is gone.
CREATE OR REPLACE FUNCTION {set}.on_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  root oid;
BEGIN
  FOR root IN
    WITH RECURSIVE touched AS (
      SELECT d.objid AS relid FROM pg_event_trigger_ddl_commands() d WHERE d.classid = 'pg_class'::regclass
      UNION
      SELECT t.tgrelid FROM pg_event_trigger_ddl_commands() d JOIN pg_trigger t ON t.oid = d.objid
      WHERE d.classid = 'pg_trigger'::regclass AND t.tgname NOT LIKE 'R\_penstock\_%'
    ), reached AS (
      -- Only the table that was named is reported, not those that inherit from it.
      SELECT relid FROM touched UNION SELECT i.inhrelid FROM pg_inherits i JOIN reached p ON i.inhparent = p.relid
    )
    SELECT DISTINCT {set}.captured_root(r.relid)
    FROM (SELECT relid FROM reached
          UNION SELECT c.confrelid FROM pg_constraint c WHERE c.contype = 'f' AND c.conrelid IN (SELECT relid FROM reached)) r
    WHERE EXISTS (SELECT FROM {set}.captured c WHERE c.relid = {set}.captured_root(r.relid))
      AND EXISTS (SELECT FROM pg_class k WHERE k.oid = r.relid)
  LOOP
    PERFORM {set}.capture_all(root);
  END LOOP;
END $$;

-- Tables that were made anew, under a captured name, and are not captured yet.
CREATE OR REPLACE FUNCTION {set}.replaced() RETURNS SETOF regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT k.oid::regclass FROM pg_class k JOIN pg_namespace n ON n.oid = k.relnamespace
  WHERE (n.nspname, k.relname) IN (SELECT definition ->> 'schema', definition ->> 'name' FROM {set}.captured
      WHERE mode NOT LIKE 'partition%' AND mode <> 'detached')
    AND k.oid NOT IN (SELECT relid FROM {set}.captured) AND k.relkind IN ('r', 'p')
$$;

-- Tables that are captured no more as they should be: their definition or triggers changed, or another table has
-- taken the name.
CREATE OR REPLACE FUNCTION {set}.stale() RETURNS SETOF regclass
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT c.relid::regclass
  FROM (SELECT DISTINCT ON (relid) * FROM {set}.captured ORDER BY relid, version DESC) c
  JOIN {set}.describe(ARRAY(SELECT relid FROM {set}.captured)) d ON d.relid = c.relid
  WHERE c.mode <> 'detached' AND ({set}.essence(c.definition) <> {set}.essence(d.definition)
    OR c.mode <> {set}.capture_mode(c.relid, d.definition) OR NOT {set}.has_triggers(c.relid, c.mode))
  UNION SELECT r FROM {set}.replaced() r
$$;
