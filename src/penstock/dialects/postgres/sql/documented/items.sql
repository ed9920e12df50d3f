-- ITEMS: the log as the documented queue, one row a change; and deleting from it, which acknowledges.

-- A value as the output function of its type writes it, of the text that the log has: s, z, t and y are timestamps and times
-- without and with a zone, i is inet, c and a number char(n). See `add_shape`.
CREATE OR REPLACE FUNCTION {set}.output_text(value text, kind text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE kind
    WHEN 's' THEN regexp_replace(replace(value, 'T', ' '), '\.?0+(?= BC|$)', '')
    WHEN 'z' THEN regexp_replace(replace(value, 'T', ' '), '\.?0*\+00:00', '+00')
    WHEN 't' THEN regexp_replace(value, '\.?0+$', '')
    WHEN 'y' THEN regexp_replace(regexp_replace(value, '\.?0+(?=[+-])', ''), '([+-]\d\d):00$', '\1')
    WHEN 'i' THEN CASE WHEN strpos(value, ':') > 0 THEN regexp_replace(value, '/128$', '')
      ELSE regexp_replace(value, '/32$', '') END
    ELSE rpad(value, greatest(length(value), substr(kind, 2)::int)) END
$$;

-- What ITEMS needs of a version of a table: the columns in their order, what their XML begins with, and how their values
-- are written: p as the log has them, and with nothing in them that XML would take for markup; b as base64, which the log
-- has already; x is any text; for others see `output_text`.
CREATE OR REPLACE FUNCTION {set}.add_shape(captured {set}.captured) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  INSERT INTO {set}.xml_shape (relid, version, root, schema_name, table_name, names, heads, kinds)
  SELECT captured.relid, captured.version, captured.root, captured.definition ->> 'schema', captured.definition ->> 'name',
    coalesce(array_agg(c.name ORDER BY c.ord), '{{}}'),
    coalesce(array_agg('<col name="' || {set}.attribute(c.name) || '"' ORDER BY c.ord), '{{}}'),
    coalesce(array_agg(CASE
      WHEN NOT c.is_builtin THEN 'x'
      WHEN c.base_type IN ('smallint', 'integer', 'bigint', 'oid', 'numeric', 'real', 'double precision', 'boolean', 'date', 'uuid',
        'money', 'interval', 'bit', 'bit varying', 'cidr', 'macaddr', 'macaddr8', 'pg_lsn') THEN 'p'
      WHEN c.base_type = 'bytea' THEN 'b'
      WHEN c.base_type = 'timestamp without time zone' THEN 's'
      WHEN c.base_type = 'timestamp with time zone' THEN 'z'
      WHEN c.base_type = 'time without time zone' THEN 't'
      WHEN c.base_type = 'time with time zone' THEN 'y'
      WHEN c.base_type = 'inet' THEN 'i'
      WHEN c.base_type = 'character' AND c.type ~ '\(\d+\)$' THEN 'c' || substring(c.type FROM '\((\d+)\)$')
      ELSE 'x' END ORDER BY c.ord), '{{}}')
  FROM (SELECT ord, col ->> 'name' AS name, col ->> 'base_type' AS base_type, col ->> 'staging_type' AS type,
          (col ->> 'is_builtin')::bool AS is_builtin
        FROM jsonb_array_elements(captured.definition -> 'columns') WITH ORDINALITY e (col, ord)) c
  ON CONFLICT DO NOTHING
$$;

CREATE OR REPLACE FUNCTION {set}.note_shape() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM {set}.add_shape(NEW);
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER note_shape AFTER INSERT ON {set}.captured FOR EACH ROW EXECUTE FUNCTION {set}.note_shape();
-- Event triggers work with triggers switched off, and so may those who write.
ALTER TABLE {set}.captured ENABLE ALWAYS TRIGGER note_shape;
DO $$ BEGIN PERFORM {set}.add_shape(c) FROM {set}.captured c; END $$;

-- The image of a row as XML. What an update did not change is in the old image. Of an insert, NULLs are left out; where that
-- would leave nothing, they are not: a NULL image would say that the reader has to fetch the row.
-- It reads no table. Readers of ITEMS call it, who have no right to the schema of the set; so it has its owner's.
CREATE OR REPLACE FUNCTION {set}.xml_image(shape {set}.xml_shape, image text, changed text, leaves_out_nulls bool) RETURNS text
LANGUAGE plpgsql IMMUTABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  -- A text of more than 256 MB is none of jsonb.
  is_large bool := octet_length(image) > 200000000 OR octet_length(changed) > 200000000;
  members jsonb := CASE WHEN is_large IS NOT TRUE THEN image::jsonb || coalesce(changed, '{{}}')::jsonb END;
  result text := '';
  value text;
  kind text;
BEGIN
  -- The planner asks what becomes of nulls.
  IF shape.names IS NULL THEN
    RETURN NULL;
  END IF;
  FOR i IN 1 .. cardinality(shape.names) LOOP
    value := CASE
      WHEN is_large IS NOT TRUE THEN members ->> shape.names[i]
      WHEN changed::json -> shape.names[i] IS NOT NULL THEN changed::json ->> shape.names[i]
      ELSE image::json ->> shape.names[i] END;
    kind := shape.kinds[i];
    IF value IS NULL THEN
      CONTINUE WHEN leaves_out_nulls;
      result := result || shape.heads[i] || ' type="null"/>';
    ELSIF kind = 'p' THEN
      result := result || shape.heads[i] || '>' || value || '</col>';
    ELSIF kind = 'b' THEN
      result := result || shape.heads[i] || ' encoding="base64">' || value || '</col>';
    ELSIF kind <> 'x' AND kind !~ '^c' THEN
      result := result || shape.heads[i] || '>' || {set}.output_text(value, kind) || '</col>';
    ELSE
      IF kind <> 'x' THEN
        value := {set}.output_text(value, kind);
      END IF;
      result := result || CASE {needs_prot}(value)
        WHEN 0 THEN shape.heads[i] || '>' || value || '</col>'
        ELSE {col2xml}(shape.names[i], value) END;
    END IF;
  END LOOP;
  RETURN CASE WHEN result = '' AND leaves_out_nulls THEN {set}.xml_image(shape, image, changed, false) ELSE result END;
END $$;

-- Whether DDL changed more than the indexes of a table.
CREATE OR REPLACE FUNCTION {set}.is_alteration(told text) RETURNS bool
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT was - 'fittings' <> now - 'fittings' OR (
    SELECT coalesce(jsonb_agg(f ORDER BY f), '[]') FROM jsonb_array_elements(was -> 'fittings') f WHERE f ->> 'kind' <> 'index') <> (
    SELECT coalesce(jsonb_agg(f ORDER BY f), '[]') FROM jsonb_array_elements(now -> 'fittings') f WHERE f ->> 'kind' <> 'index')
  FROM (SELECT (told::json ->> 'was')::jsonb - 'children' AS was, coalesce(told::json ->> 'is', '{{}}')::jsonb - 'children' AS now) t
$$;

-- What of the log readers have not acknowledged, one row for each change. Behind their position there is nothing of it,
-- however much of the log is kept for others that are away.
CREATE OR REPLACE VIEW {set}.unread_changes AS
  SELECT l.seq * 64 + g.n - 1 AS repl_key, l.xid, l.xid::text AS trans_key, upper(l.op::text) AS op, c AS shape,
    coalesce(c.schema_name, last.schema_name) AS schema_name, coalesce(c.table_name, last.table_name) AS table_name,
    CASE WHEN l.op NOT IN ('i', 'u', 'd') THEN l.before ELSE split_part(l.before, E'\n', g.n) END AS before, l.after,
    l.op IN ('i', 'u', 'd') AS is_line, w.version
  FROM {set}.log l
  LEFT JOIN {set}.xml_shape c ON c.relid = l.relid AND c.version = l.version
  LEFT JOIN LATERAL (
    SELECT s.schema_name, s.table_name, s.root FROM {set}.xml_shape s WHERE c.relid IS NULL AND s.relid = l.relid
    ORDER BY s.version DESC LIMIT 1
  ) last ON true
  JOIN {set}.watch w ON w.relid = coalesce(c.root, last.root, l.relid) AND (w.until_seq IS NULL OR l.seq <= w.until_seq)
    AND (l.seq > w.from_seq OR l.seq > w.since_seq AND l.xid >= pg_snapshot_xmin(w.since) AND NOT pg_visible_in_snapshot(l.xid, w.since))
  CROSS JOIN LATERAL generate_series(1, greatest(l.changes, 1)) g (n)
  WHERE l.xid >= (SELECT below FROM {set}.read_to)
    AND CASE l.op WHEN 'A' THEN {set}.is_alteration(l.before) WHEN 'T' THEN true WHEN '!' THEN true WHEN 'M' THEN false
      ELSE strpos(w.actions, upper(l.op::text)) > 0 END
    AND NOT EXISTS (SELECT FROM {set}.acknowledged a WHERE a.repl_key = l.seq * 64 + g.n - 1);

-- All that they have not acknowledged. A condition of a reader's is asked of these rows alone: the server must not ask it
-- of others before.
CREATE OR REPLACE VIEW {set}.unread WITH (security_barrier) AS
  SELECT * FROM {set}.unread_changes
  UNION ALL
  SELECT a.seq * 64, a.xid, a.xid::text, '=' || a.action, NULL::{set}.xml_shape, a.schema_name, a.table_name, a.content, NULL, false,
    a.version
  FROM {set}.announced a WHERE NOT EXISTS (SELECT FROM {set}.acknowledged k WHERE k.repl_key = a.seq * 64);

-- Each column is worked out only for the rows that a reader gets. `is_kept` is asked once, before any row, and refuses.
CREATE OR REPLACE VIEW {items} AS
  SELECT u.repl_key, u.trans_key, current_database()::text AS dbid, u.table_name AS tablename, NULL::text AS guid,
    CASE u.op WHEN 'I' THEN 'INSERT' WHEN 'U' THEN 'UPDATE' WHEN 'D' THEN 'DELETE' WHEN 'T' THEN 'TRUNCATE'
      WHEN '!' THEN 'EXCEPTION' WHEN 'A' THEN CASE WHEN u.before::json ->> 'is' IS NULL THEN 'DROP' ELSE 'ALTER' END
      ELSE substr(u.op, 2) END AS db_action,
    NULL::text AS db_catalog, u.schema_name AS db_schema,
    CASE u.op
      WHEN 'I' THEN {set}.xml_image(u.shape, CASE WHEN u.is_line THEN u.before ELSE u.after END, NULL, true)
      WHEN 'U' THEN CASE WHEN u.is_line
        THEN {set}.xml_image(u.shape, split_part(u.before, E'\t', 1), split_part(u.before, E'\t', 2), false)
        ELSE {set}.xml_image(u.shape, u.before, u.after, false) END
      WHEN 'D' THEN NULL WHEN 'T' THEN NULL WHEN 'A' THEN NULL
      WHEN '!' THEN u.before::json ->> 'reason'
      ELSE u.before END AS content,
    CASE u.op
      WHEN 'U' THEN {set}.xml_image(u.shape, CASE WHEN u.is_line THEN split_part(u.before, E'\t', 1) ELSE u.before END, NULL, false)
      WHEN 'D' THEN {set}.xml_image(u.shape, u.before, NULL, false) END AS oldcontent,
    u.version
  FROM {set}.unread u WHERE {set}.is_kept();
COMMENT ON VIEW {items} IS {comment};

GRANT EXECUTE ON FUNCTION {set}.xml_image({set}.xml_shape, text, text, bool), {set}.is_alteration(text), {set}.is_kept() TO PUBLIC;

CREATE OR REPLACE FUNCTION {set}.acknowledge() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_LEVEL = 'STATEMENT' THEN
    INSERT INTO {set}.acknowledging VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    RETURN NULL;
  END IF;
  -- Waits for another reader that is deleting the same row, as DELETE from a table does.
  INSERT INTO {set}.acknowledged VALUES (OLD.repl_key, OLD.trans_key::xid8) ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  -- One that has deleted it since this statement began may have freed it, too, with the note that it has.
  RETURN CASE WHEN OLD.trans_key::xid8 >= (SELECT below FROM {set}.read_to)
    AND (EXISTS (SELECT FROM {set}.log l WHERE l.xid = OLD.trans_key::xid8 AND l.seq = OLD.repl_key / 64)
      OR EXISTS (SELECT FROM {set}.announced a WHERE a.seq = OLD.repl_key / 64)) THEN OLD END;
END $$;

-- What is written here would be no change of a table.
CREATE OR REPLACE FUNCTION {set}.refuse_written() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RAISE EXCEPTION 'rows of % come from the capture: only DELETE is possible, which acknowledges them', {items_name}
    USING ERRCODE = 'object_not_in_prerequisite_state',
      HINT = 'CHECK_TABLES and PREPARE_BROADCAST, under the prefix of this table, put actions and statements into it.';
END $$;

-- A transaction with an old snapshot does not see what others have freed since. As where it deletes from a table, it fails,
-- and may be repeated. Whoever frees moves the readers' place, which to lock says; and the lock is not kept.
CREATE OR REPLACE FUNCTION {set}.acknowledge_at_once() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF {set}.sees_old_snapshot() THEN
    PERFORM FROM {set}.consumer WHERE id = 'documented' FOR SHARE;
    RAISE SQLSTATE 'P4300';
  END IF;
  RETURN NULL;
EXCEPTION WHEN SQLSTATE 'P4300' THEN
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER acknowledge INSTEAD OF DELETE ON {items} FOR EACH ROW EXECUTE FUNCTION {set}.acknowledge();
CREATE OR REPLACE TRIGGER refuse_written INSTEAD OF INSERT OR UPDATE ON {items} FOR EACH ROW EXECUTE FUNCTION {set}.refuse_written();
CREATE OR REPLACE TRIGGER acknowledging BEFORE DELETE ON {items} FOR EACH STATEMENT EXECUTE FUNCTION {set}.acknowledge();
CREATE OR REPLACE TRIGGER at_once AFTER DELETE ON {items} FOR EACH STATEMENT EXECUTE FUNCTION {set}.acknowledge_at_once();

-- The transaction of the oldest row that is not acknowledged. The index on the log finds it, however long the queue is:
-- other plans read all of it.
CREATE OR REPLACE FUNCTION {set}.oldest_unread() RETURNS xid8
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET enable_sort = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  changed xid8 := (SELECT u.xid FROM {set}.unread_changes u ORDER BY u.xid LIMIT 1);
  announced xid8 := (SELECT a.xid FROM {set}.announced a
    WHERE NOT EXISTS (SELECT FROM {set}.acknowledged k WHERE k.repl_key = a.seq * 64) ORDER BY a.xid LIMIT 1);
BEGIN
  RETURN CASE WHEN announced < changed OR changed IS NULL THEN announced ELSE changed END;
END $$;

-- Cut the log behind everything that is committed. A run does it when it reads. Where no other consumer is, readers do, once
-- a second as long as they are behind; where others are away, once in ten seconds, which leaves them large slices.
-- This transaction is not over, so it lies behind the cut: the snapshot leaves itself out of those that are running.
CREATE OR REPLACE FUNCTION {set}.cut(is_all_read bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own xid8 := pg_current_xact_id();
  last {set}.tick;
  pause interval := CASE WHEN EXISTS (SELECT FROM {set}.consumer WHERE id <> 'documented') THEN '10 seconds'
    WHEN is_all_read THEN '0' ELSE '1 second' END;
BEGIN
  IF EXISTS (SELECT FROM {set}.tick WHERE at > clock_timestamp() - pause) THEN
    RETURN;
  END IF;
  LOCK TABLE {set}.tick IN SHARE ROW EXCLUSIVE MODE NOWAIT;
  SELECT * INTO last FROM {set}.tick ORDER BY scn DESC LIMIT 1;
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  INSERT INTO {set}.tick (scn, snapshot, at)
  SELECT last.scn + (SELECT count(*) FROM pg_snapshot_xip(last.snapshot))
      + s.xmax::text::bigint - pg_snapshot_xmax(last.snapshot)::text::bigint + 1,
    format('%s:%s:%s', s.xmin, s.xmax, (SELECT string_agg(x::text, ',' ORDER BY x) FROM (
      SELECT x FROM pg_snapshot_xip(s.snapshot) x UNION SELECT own WHERE own < s.xmax) r (x)))::pg_snapshot,
    clock_timestamp()
  FROM (SELECT c AS snapshot, pg_snapshot_xmin(c) AS xmin, pg_snapshot_xmax(c) AS xmax FROM pg_current_snapshot() c) s
  -- The number of a server that was restored in part may be lower; a run says so.
  WHERE s.xmax >= pg_snapshot_xmax(last.snapshot) AND s.xmin >= pg_snapshot_xmin(last.snapshot)
    AND EXISTS (SELECT FROM {set}.log l WHERE l.xid >= pg_snapshot_xmin(last.snapshot)
      AND NOT pg_visible_in_snapshot(l.xid, last.snapshot)
      UNION ALL SELECT FROM {set}.announced a WHERE NOT pg_visible_in_snapshot(a.xid, last.snapshot));
END $$;

-- At the end of a transaction that has acknowledged: move the readers of ITEMS to where everything is acknowledged, and
-- free what no consumer needs any more, as `free` in source/change_log.py does. Whoever is in the way does it next time.
CREATE OR REPLACE FUNCTION {set}.free_acknowledged() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  last_cut bigint;
  oldest xid8;
  upto {set}.tick;
BEGIN
  -- An old snapshot does not show the cuts that there are.
  IF {set}.sees_old_snapshot() THEN
    RETURN;
  END IF;
  LOCK TABLE {set}.consumer IN SHARE ROW EXCLUSIVE MODE NOWAIT;
  PERFORM {set}.cut({set}.oldest_unread() IS NULL);
  -- What was committed in the meantime lies at or before the new cut, and may not be read yet. A run may cut once more at
  -- any time, behind what nobody has looked for here.
  last_cut := (SELECT max(scn) FROM {set}.tick);
  oldest := {set}.oldest_unread();
  SELECT * INTO upto FROM {set}.tick t
  WHERE t.scn <= last_cut AND (oldest IS NULL OR pg_snapshot_xmax(t.snapshot) <= oldest) ORDER BY t.scn DESC LIMIT 1;
  UPDATE {set}.consumer SET scn = greatest(scn, upto.scn), seen_at = clock_timestamp() WHERE id = 'documented';
  DELETE FROM {set}.announced a WHERE pg_visible_in_snapshot(a.xid, upto.snapshot);
  -- From here on nobody asks what was acknowledged.
  UPDATE {set}.read_to SET below = pg_snapshot_xmin(upto.snapshot) WHERE below < pg_snapshot_xmin(upto.snapshot);
  DELETE FROM {set}.acknowledged a WHERE a.xid < pg_snapshot_xmin(upto.snapshot);
  SELECT * INTO upto FROM {set}.tick t WHERE t.scn <= (SELECT min(scn) FROM {set}.consumer) ORDER BY t.scn DESC LIMIT 1;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  DELETE FROM {set}.log l WHERE l.xid < pg_snapshot_xmax(upto.snapshot) AND pg_visible_in_snapshot(l.xid, upto.snapshot);
  DELETE FROM {set}.marker m WHERE m.xid < pg_snapshot_xmax(upto.snapshot) AND pg_visible_in_snapshot(m.xid, upto.snapshot);
  DELETE FROM {set}.acknowledged a WHERE a.xid < pg_snapshot_xmax(upto.snapshot) AND pg_visible_in_snapshot(a.xid, upto.snapshot);
  DELETE FROM {set}.tick t WHERE t.scn < upto.scn;
EXCEPTION WHEN lock_not_available THEN
  NULL;
END $$;

CREATE OR REPLACE FUNCTION {set}.on_acknowledged() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {set}.acknowledging WHERE xid = NEW.xid;
  PERFORM {set}.free_acknowledged();
  RETURN NULL;
END $$;
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{set}.acknowledging'::regclass AND tgname = 'on_acknowledged') THEN
    CREATE CONSTRAINT TRIGGER on_acknowledged AFTER INSERT ON {set}.acknowledging
      DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {set}.on_acknowledged();
  END IF;
END $$;
