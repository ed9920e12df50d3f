-- ITEMS: the log as the documented queue, one row a change; and deleting from it, which acknowledges.

-- A value as the output function of its type writes it, of the text that the log has.
CREATE OR REPLACE FUNCTION {set}.output_text(value text, base_type text, type text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE base_type
    WHEN 'timestamp without time zone' THEN regexp_replace(replace(value, 'T', ' '), '\.?0+(?= BC|$)', '')
    WHEN 'timestamp with time zone' THEN regexp_replace(replace(value, 'T', ' '), '\.?0*\+00:00', '+00')
    WHEN 'time without time zone' THEN regexp_replace(value, '\.?0+$', '')
    WHEN 'time with time zone' THEN regexp_replace(regexp_replace(value, '\.?0+(?=[+-])', ''), '([+-]\d\d):00$', '\1')
    WHEN 'character' THEN rpad(value, greatest(length(value), substring(type FROM '\((\d+)\)')::int))
    WHEN 'inet' THEN CASE WHEN strpos(value, ':') > 0 THEN regexp_replace(value, '/128$', '')
      ELSE regexp_replace(value, '/32$', '') END
    ELSE value END;

-- The image of a row as XML, columns in the order of the table. Of an insert, NULLs are left out; where that would leave
-- nothing, they are not: a NULL image would say that the reader has to fetch the row.
CREATE OR REPLACE FUNCTION {set}.xml_image(columns jsonb, image text, changed text, leaves_out_nulls bool) RETURNS text
LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
  SELECT coalesce(
    string_agg(CASE
      WHEN value IS NULL THEN CASE WHEN NOT leaves_out_nulls THEN {col2xml_null}(name) END
      WHEN base_type = 'bytea' THEN '<col name="' || {set}.attribute(name) || '" encoding="base64">' || value || '</col>'
      ELSE {col2xml}(name, {set}.output_text(value, base_type, type)) END, '' ORDER BY ord),
    string_agg({col2xml_null}(name), '' ORDER BY ord), '')
  FROM (
    SELECT ord, name, base_type, type, CASE WHEN n.key IS NOT NULL THEN n.value ELSE o.value END AS value
    FROM jsonb_array_elements(columns) WITH ORDINALITY c (col, ord),
      LATERAL (SELECT col ->> 'name' AS name, col ->> 'base_type' AS base_type, col ->> 'type' AS type) named
    LEFT JOIN json_each_text(image::json) o ON o.key = name
    LEFT JOIN json_each_text(changed::json) n ON n.key = name
  ) v;
END;

-- Whether DDL changed more than the indexes of a table.
CREATE OR REPLACE FUNCTION {set}.is_alteration(told text) RETURNS bool
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT was - 'fittings' <> now - 'fittings' OR (
    SELECT coalesce(jsonb_agg(f ORDER BY f), '[]') FROM jsonb_array_elements(was -> 'fittings') f WHERE f ->> 'kind' <> 'index') <> (
    SELECT coalesce(jsonb_agg(f ORDER BY f), '[]') FROM jsonb_array_elements(now -> 'fittings') f WHERE f ->> 'kind' <> 'index')
  FROM (SELECT (told::json ->> 'was')::jsonb - 'children' AS was, coalesce(told::json ->> 'is', '{{}}')::jsonb - 'children' AS now) t
$$;

-- The rows of the log that readers have not acknowledged, one for each change.
CREATE OR REPLACE VIEW {set}.unread AS
  SELECT l.seq * 64 + g.n - 1 AS repl_key, l.xid, upper(l.op::text) AS op, g.n, l.op IN ('i', 'u', 'd') AS is_packed,
    l.before, l.after, l.relid, c.definition
  FROM {set}.log l
  LEFT JOIN {set}.captured c ON c.relid = l.relid AND c.version = l.version
  JOIN {set}.watch w ON w.relid = coalesce(c.root, l.relid) AND l.seq > w.from_seq
    AND (w.until_seq IS NULL OR l.seq <= w.until_seq)
  CROSS JOIN LATERAL generate_series(1, greatest(l.changes, 1)) g (n)
  WHERE CASE l.op WHEN 'A' THEN {set}.is_alteration(l.before) WHEN 'T' THEN true WHEN '!' THEN true WHEN 'M' THEN false
      ELSE strpos(w.actions, upper(l.op::text)) > 0 END
    AND NOT EXISTS (SELECT FROM {set}.acknowledged a WHERE a.repl_key = l.seq * 64 + g.n - 1);

-- Each is worked out for the columns that a reader asks for: the XML alone reads what the log has of a row.
CREATE OR REPLACE VIEW {items} WITH (security_barrier) AS
  SELECT u.repl_key, u.xid::text AS trans_key, current_database()::text AS dbid,
    coalesce(u.definition, last.definition) ->> 'name' AS tablename, NULL::text AS guid,
    CASE u.op WHEN 'I' THEN 'INSERT' WHEN 'U' THEN 'UPDATE' WHEN 'D' THEN 'DELETE' WHEN 'T' THEN 'TRUNCATE'
      WHEN '!' THEN 'EXCEPTION' ELSE CASE WHEN u.before::json ->> 'is' IS NULL THEN 'DROP' ELSE 'ALTER' END END AS db_action,
    NULL::text AS db_catalog, coalesce(u.definition, last.definition) ->> 'schema' AS db_schema,
    CASE u.op
      WHEN 'I' THEN {set}.xml_image(u.definition -> 'columns',
        CASE WHEN u.is_packed THEN split_part(u.before, E'\n', u.n) ELSE u.after END, NULL, true)
      WHEN 'U' THEN {set}.xml_image(u.definition -> 'columns',
        CASE WHEN u.is_packed THEN split_part(split_part(u.before, E'\n', u.n), E'\t', 1) ELSE u.before END,
        CASE WHEN u.is_packed THEN split_part(split_part(u.before, E'\n', u.n), E'\t', 2) ELSE u.after END, false)
      WHEN '!' THEN u.before::json ->> 'reason' END AS content,
    CASE WHEN u.op IN ('U', 'D') THEN {set}.xml_image(u.definition -> 'columns', CASE
      WHEN NOT u.is_packed THEN u.before
      WHEN u.op = 'D' THEN split_part(u.before, E'\n', u.n)
      ELSE split_part(split_part(u.before, E'\n', u.n), E'\t', 1) END, NULL, false) END AS oldcontent,
    '0.0'::text AS version
  FROM {set}.unread u LEFT JOIN LATERAL (
    SELECT c.definition FROM {set}.captured c WHERE u.definition IS NULL AND c.relid = u.relid ORDER BY c.version DESC LIMIT 1
  ) last ON true
  UNION ALL
  SELECT a.seq * 64, a.xid::text, current_database()::text, a.table_name, NULL, a.action, NULL, a.schema_name, a.content, NULL,
    '0.0'
  FROM {set}.announced a WHERE NOT EXISTS (SELECT FROM {set}.acknowledged k WHERE k.repl_key = a.seq * 64);
COMMENT ON VIEW {items} IS {comment};

GRANT EXECUTE ON FUNCTION {set}.output_text(text, text, text), {set}.xml_image(jsonb, text, text, bool),
  {set}.is_alteration(text) TO PUBLIC;

CREATE OR REPLACE FUNCTION {set}.acknowledge() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF TG_LEVEL = 'STATEMENT' THEN
    INSERT INTO {set}.acknowledging VALUES (pg_current_xact_id()) ON CONFLICT DO NOTHING;
    RETURN NULL;
  END IF;
  -- Waits for another reader that is deleting the same row, as DELETE from a table does.
  INSERT INTO {set}.acknowledged VALUES (OLD.repl_key, OLD.trans_key::xid8) ON CONFLICT DO NOTHING;
  RETURN CASE WHEN FOUND THEN OLD END;
END $$;
CREATE OR REPLACE TRIGGER acknowledge INSTEAD OF DELETE ON {items} FOR EACH ROW EXECUTE FUNCTION {set}.acknowledge();
CREATE OR REPLACE TRIGGER acknowledging BEFORE DELETE ON {items} FOR EACH STATEMENT EXECUTE FUNCTION {set}.acknowledge();

-- The transaction of the oldest row that is not acknowledged. The index on the log finds it, however long the queue is:
-- other plans read all of it.
CREATE OR REPLACE FUNCTION {set}.oldest_unread() RETURNS xid8
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET enable_sort = off SET enable_seqscan = off
SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE
  changed xid8 := (SELECT u.xid FROM {set}.unread u ORDER BY u.xid LIMIT 1);
  announced xid8 := (SELECT a.xid FROM {set}.announced a
    WHERE NOT EXISTS (SELECT FROM {set}.acknowledged k WHERE k.repl_key = a.seq * 64) ORDER BY a.xid LIMIT 1);
BEGIN
  RETURN CASE WHEN announced < changed OR changed IS NULL THEN announced ELSE changed END;
END $$;

-- Cut the log behind everything that is committed. A run does it when it reads; where no run does, readers do, once a
-- second as long as they are behind.
-- This transaction is not over, so it lies behind the cut: the snapshot leaves itself out of those that are running.
CREATE OR REPLACE FUNCTION {set}.cut(is_all_read bool) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own xid8 := pg_current_xact_id();
  last {set}.tick;
BEGIN
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
    AND (is_all_read OR clock_timestamp() - last.at > interval '1 second')
    AND EXISTS (SELECT FROM {set}.log l WHERE l.xid >= pg_snapshot_xmin(last.snapshot)
      AND NOT pg_visible_in_snapshot(l.xid, last.snapshot)
      UNION ALL SELECT FROM {set}.announced a WHERE NOT pg_visible_in_snapshot(a.xid, last.snapshot));
END $$;

-- At the end of a transaction that has acknowledged: move the readers of ITEMS to where everything is acknowledged, and
-- free what no consumer needs any more, as `free` in source/change_log.py does. Whoever is in the way does it next time.
CREATE OR REPLACE FUNCTION {set}.free_acknowledged() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  oldest xid8;
  upto {set}.tick;
BEGIN
  -- An old snapshot does not show the cuts that there are.
  IF {set}.sees_old_snapshot() THEN
    RETURN;
  END IF;
  LOCK TABLE {set}.consumer IN SHARE ROW EXCLUSIVE MODE NOWAIT;
  oldest := {set}.oldest_unread();
  IF NOT EXISTS (SELECT FROM {set}.consumer WHERE id <> 'documented') THEN
    PERFORM {set}.cut(oldest IS NULL);
    -- What was committed since then lies at or before the new cut, and may not be read yet.
    oldest := {set}.oldest_unread();
  END IF;
  SELECT * INTO upto FROM {set}.tick t WHERE oldest IS NULL OR pg_snapshot_xmax(t.snapshot) <= oldest ORDER BY t.scn DESC LIMIT 1;
  UPDATE {set}.consumer SET scn = greatest(scn, upto.scn), seen_at = clock_timestamp() WHERE id = 'documented';
  SELECT * INTO upto FROM {set}.tick t WHERE t.scn <= (SELECT min(scn) FROM {set}.consumer) ORDER BY t.scn DESC LIMIT 1;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  DELETE FROM {set}.log l WHERE l.xid < pg_snapshot_xmax(upto.snapshot) AND pg_visible_in_snapshot(l.xid, upto.snapshot);
  DELETE FROM {set}.marker m WHERE m.xid < pg_snapshot_xmax(upto.snapshot) AND pg_visible_in_snapshot(m.xid, upto.snapshot);
  DELETE FROM {set}.announced a WHERE pg_visible_in_snapshot(a.xid, upto.snapshot);
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
