-- Capture a table from now on, or again after its definition changed. Does nothing when all is in place.
-- Its plans are kept whatever they are estimated to cost: they are for one table, and planning takes longest.
CREATE OR REPLACE FUNCTION {set}.capture(rel regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $capture$
DECLARE
  last {set}.captured := (SELECT c FROM {set}.captured c WHERE c.relid = rel ORDER BY c.version DESC LIMIT 1);
  def jsonb := (SELECT d.definition FROM {set}.describe(ARRAY[rel::oid], true) d);
  new_mode text := {set}.capture_mode(rel, def);
  has_triggers bool := {set}.has_triggers(rel, new_mode);
  now {set}.captured;
  settings text;
  kind text;
  clone record;
  wanted text[] := {set}.kinds(new_mode);
BEGIN
  IF last.is_built AND last.definition = def AND last.mode = new_mode AND last.root = {set}.captured_root(rel)
    AND last.fingerprint = {set}.fingerprint(rel) AND has_triggers
    -- Those who found partitions by themselves go the slow way until the function is made anew.
    AND NOT EXISTS (SELECT FROM {set}.partitions_of(rel, false) n WHERE NOT n.is_built) THEN
    RETURN;
  END IF;
  -- Whoever may not keep others waiting leaves it to those who write, and to the next run, to find out.
  IF NOT has_triggers AND current_setting('penstock.rebuilding', true) = 'at once' AND NOT EXISTS (SELECT FROM pg_locks l
      WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.relation = rel
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.mode IN ('ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')) THEN
    RETURN;
  END IF;
  -- A set that was installed before triggers were stamped has none of these; and who becomes a partition, or is one no
  -- more, gains triggers or loses them.
  IF EXISTS (SELECT FROM {set}.installed i WHERE i.relid = rel) AND EXISTS (SELECT FROM {set}.built_now b WHERE b.relid = rel
      AND b.mode <> 'detached' AND b.root = {set}.captured_root(rel) AND NOT {set}.has_triggers(rel, b.mode)) THEN
    EXECUTE {set}.gap(rel, 'capture triggers were altered or switched off');
  END IF;
  FOREACH kind IN ARRAY wanted LOOP
    IF kind NOT IN ('t', 'a') AND NOT EXISTS (SELECT FROM pg_proc WHERE pronamespace = '{set}'::regnamespace
        AND proname = format('capture_%s_%s', rel::oid, kind)) THEN
      EXECUTE format('CREATE FUNCTION {set}.%I() RETURNS trigger LANGUAGE plpgsql AS %L',
        format('capture_%s_%s', rel::oid, kind), 'BEGIN RETURN NULL; END');
    END IF;
  END LOOP;
  IF NOT has_triggers THEN
    PERFORM {set}.drop_trigger(rel, r) FROM {set}.renamed_triggers(rel) r;
    PERFORM {set}.make_trigger(rel, k, {set}.firing(new_mode, k)) FROM unnest(wanted) k;
    -- Somebody switched off what a partition has from its root. Its owner may switch it on; others make the root's anew.
    FOR clone IN SELECT t.tgname, t.tgrelid FROM {set}.partitions(rel) p JOIN pg_trigger t ON t.tgrelid = p.relid
      WHERE t.tgparentid <> 0 AND t.tgenabled <> {set}.firing(new_mode, '') AND t.tgname ~ format('^R_%s_[0-9]+_[a-z]+$', {name})
    LOOP
      IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = clone.tgrelid), 'USAGE') THEN
        PERFORM {set}.enable_trigger(clone.tgrelid, clone.tgname, {set}.firing(new_mode, ''));
      ELSE
        PERFORM {set}.make_trigger({set}.captured_root(rel), k, {set}.firing(new_mode, k)) FROM unnest('{{ri,ru,rd}}'::text[]) k;
      END IF;
    END LOOP;
    INSERT INTO {set}.installed (relid, stamp) SELECT p.relid, {set}.stamp(p.relid)
    FROM {set}.partitions({set}.captured_root(rel)) p WHERE p.relid <> rel AND p.relid IN (SELECT relid FROM {set}.installed);
  END IF;
  PERFORM {set}.drop_trigger(rel, t.tgname) FROM pg_trigger t
  WHERE t.tgrelid = rel AND t.tgparentid = 0 AND starts_with(t.tgname, {set}.trigger_name(rel, ''))
    AND t.tgname NOT IN (SELECT {set}.trigger_name(rel, k) FROM unnest(wanted) k);
  IF {set}.stamp(rel) IS DISTINCT FROM (
      SELECT i.stamp FROM {set}.installed i WHERE i.relid = rel ORDER BY i.at DESC LIMIT 1) THEN
    INSERT INTO {set}.installed (relid, stamp) VALUES (rel, {set}.stamp(rel));
  END IF;
  -- Only now is the table locked, if its triggers were made. Whoever has altered it before is seen here, and whoever
  -- alters it later has its writers find out by themselves.
  now := {set}.version_now(rel, false);
  SELECT string_agg(format(' SET %s = %s', c.name, CASE c.name WHEN 'search_path' THEN c.value ELSE quote_literal(c.value) END), '')
    INTO settings
  FROM {set}.canonical() c WHERE c.name IN (
    SELECT s FROM jsonb_array_elements(now.definition -> 'columns') d (col), jsonb_array_elements_text(d.col -> 'settings') s);
  FOREACH kind IN ARRAY array_remove(array_remove({set}.kinds(now.mode), 't'), 'a') LOOP
    EXECUTE format('CREATE OR REPLACE FUNCTION {set}.%I() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER%s AS %L',
      format('capture_%s_%s', rel::oid, kind), settings, {set}.capture_body(kind, now));
  END LOOP;
  IF now.mode <> new_mode THEN
    PERFORM {set}.capture(rel);
  END IF;
END $capture$;

DROP FUNCTION IF EXISTS {set}.make_trigger(regclass, text);
CREATE OR REPLACE FUNCTION {set}.make_trigger(rel regclass, kind text, firing "char") RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('CREATE OR REPLACE TRIGGER %I %s EXECUTE FUNCTION {set}.%I()', {set}.trigger_name(rel, kind),
    format(CASE kind
      WHEN 'ri' THEN 'AFTER INSERT ON %s FOR EACH ROW'
      WHEN 'ru' THEN 'AFTER UPDATE ON %s FOR EACH ROW'
      WHEN 'rd' THEN 'AFTER DELETE ON %s FOR EACH ROW'
      WHEN 'si' THEN 'AFTER INSERT ON %s REFERENCING NEW TABLE AS n FOR EACH STATEMENT'
      WHEN 'sd' THEN 'AFTER DELETE ON %s REFERENCING OLD TABLE AS o FOR EACH STATEMENT'
      WHEN 'su' THEN 'AFTER UPDATE ON %s REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT'
      WHEN 't' THEN 'AFTER TRUNCATE ON %s FOR EACH STATEMENT'
      WHEN 'a' THEN 'BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT' END, rel),
    CASE kind WHEN 't' THEN 'on_truncate' WHEN 'a' THEN 'on_apply' ELSE format('capture_%s_%s', rel::oid, kind) END);
  -- As it is made it fires for all but apply processes, and only the table's owner may say otherwise.
  IF firing <> 'O' THEN
    PERFORM {set}.enable_trigger(rel, {set}.trigger_name(rel, kind), firing);
  END IF;
END $$;

CREATE OR REPLACE FUNCTION {set}.enable_trigger(rel regclass, trigger_name name, firing "char") RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('ALTER TABLE %s ENABLE %s TRIGGER %I', rel,
    CASE firing WHEN 'A' THEN 'ALWAYS' WHEN 'R' THEN 'REPLICA' ELSE '' END, trigger_name);
END $$;

-- Only a table's owner may drop a trigger. What another one leaves there does nothing.
CREATE OR REPLACE FUNCTION {set}.drop_trigger(rel regclass, trigger_name name) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  function regproc := (SELECT tgfoid FROM pg_trigger WHERE tgrelid = rel AND tgname = trigger_name);
BEGIN
  IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = rel), 'USAGE') THEN
    EXECUTE format('DROP TRIGGER %I ON %s', trigger_name, rel);
  ELSIF function NOT IN ('{set}.on_truncate'::regproc, '{set}.on_apply'::regproc) THEN
    EXECUTE format('CREATE OR REPLACE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql AS %L', function, 'BEGIN RETURN NULL; END');
  END IF;
END $$;

-- An apply process writes to a captured table, which fires this before the capture; nobody else pays for it. Its mark is
-- noted once for the transaction. It counts, since only who may set session_replication_role has this fire. Such a session
-- makes its own checks, after the change is logged, and so its transaction gets its place when it commits.
CREATE OR REPLACE FUNCTION {set}.on_apply() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  own text := concat('{wake} ', pg_current_xact_id());
BEGIN
  -- In a setting of this set's own: others may have triggers on the table.
  IF coalesce(current_setting('{noted}', true), '') <> own THEN
    INSERT INTO {set}.marker (xid, tag) VALUES (pg_current_xact_id(), coalesce(current_setting('penstock.tag', true), ''))
    ON CONFLICT (xid) DO UPDATE SET commit_seq = NULL, tag = coalesce({set}.marker.tag, EXCLUDED.tag);
    PERFORM set_config('{noted}', own, true), set_config('penstock.marked', own, true);
  END IF;
  RETURN NULL;
END $$;

-- TRUNCATE of any captured table. A partition that goes with its root needs no row of its own.
CREATE OR REPLACE FUNCTION {set}.on_truncate() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  last {set}.captured := (SELECT c FROM {set}.captured c WHERE c.relid = TG_RELID ORDER BY c.version DESC LIMIT 1);
  root oid := {set}.captured_root(TG_RELID);
BEGIN
  -- A partition that was detached since.
  IF last.mode = 'detached' OR last.mode LIKE 'partition%' AND root = TG_RELID THEN
    RETURN NULL;
  END IF;
  IF NOT {set}.sees_old_snapshot() THEN
    last := {set}.version_now(TG_RELID, true);
  END IF;
  INSERT INTO {set}.log (relid, version, op) SELECT TG_RELID, last.version, 'T' WHERE TG_RELID = root OR NOT EXISTS (
    SELECT FROM {set}.log l JOIN pg_partition_ancestors(TG_RELID) a ON a.relid = l.relid
    WHERE l.xid = pg_current_xact_id() AND l.op = 'T' AND l.relid <> TG_RELID AND NOT EXISTS (
      SELECT FROM {set}.log later WHERE later.xid = l.xid AND later.seq > l.seq AND later.op <> 'T'));
  RETURN NULL;
EXCEPTION WHEN OTHERS THEN
  INSERT INTO {set}.log (relid, version, op, before) VALUES (TG_RELID, 0, '!', json_build_object(
    'reason', concat('a truncate could not be put into words (SQLSTATE ', SQLSTATE, ')')));
  RETURN NULL;
END $$;

-- Partitions of a captured root that come and go with rows in them: their rows come and go without a change.
CREATE OR REPLACE FUNCTION {set}.partition_gaps(rel regclass) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  WITH known AS (
    SELECT c.relid, c.definition FROM {set}.partitions_of(rel, true) c WHERE c.mode LIKE 'partition%'
  ), noted AS (
    SELECT c.relid, c.definition FROM {set}.partitions_of(rel, false) c WHERE c.mode LIKE 'partition%'
  ), tree AS (
    SELECT t.relid FROM {set}.partitions(rel) t JOIN pg_class k ON k.oid = t.relid WHERE t.level > 0 AND k.relkind = 'r'
  ), unknown AS (
    -- A partition that was made as one got its columns by the transaction that put it below the root, and before that.
    -- One that is attached gets all of them anew with its place: each is noted to be inherited.
    SELECT k.oid AS relid, k.relfilenode, EXISTS (
      SELECT FROM pg_attribute a WHERE a.attrelid = k.oid AND a.attnum > 0 AND y.xmin = i.xmin AND a.xmin = i.xmin
      AND a.cmin::text::bigint < i.cmin::text::bigint
    ) AS is_made_so
    FROM tree t JOIN pg_class k ON k.oid = t.relid JOIN pg_type y ON y.oid = k.reltype JOIN pg_inherits i ON i.inhrelid = t.relid
    WHERE t.relid NOT IN (SELECT relid FROM known)
  )
  SELECT format('partition %s was attached', u.relid::regclass)
  FROM unknown u WHERE NOT u.is_made_so AND pg_relation_size(u.relid) > 0
  UNION ALL
  -- Where a TRUNCATE was not watched, its file has another number than itself.
  SELECT format('partition %s was emptied or rewritten before it was watched', u.relid::regclass)
  FROM unknown u WHERE u.is_made_so AND u.relfilenode <> u.relid
  UNION ALL
  SELECT format('partition %I.%I was %s', n.definition ->> 'schema', n.definition ->> 'name',
    CASE WHEN k.oid IS NULL THEN 'dropped' ELSE 'detached' END)
  FROM noted n LEFT JOIN pg_class k ON k.oid = n.relid
  WHERE n.relid NOT IN (SELECT relid FROM tree) AND NOT (n.definition ->> 'is_partitioned')::bool
    AND (k.oid IS NULL OR pg_relation_size(n.relid) > 0)
$$;

-- Capture a table together with its partitions, at any depth, and let go of those it does not have any more.
CREATE OR REPLACE FUNCTION {set}.capture_all(rel regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  part record;
  reason text;
BEGIN
  IF EXISTS (SELECT FROM {set}.captured c WHERE c.relid = rel AND c.relid = c.root) THEN
    FOR reason IN SELECT {set}.partition_gaps(rel) LOOP
      EXECUTE {set}.gap(rel, reason);
    END LOOP;
  END IF;
  PERFORM {set}.capture(rel);
  PERFORM {set}.capture(t.relid) FROM {set}.partitions(rel) t JOIN pg_class k ON k.oid = t.relid
  LEFT JOIN {set}.partitions_of(rel, false) c ON c.relid = t.relid
  WHERE t.level > 0 AND k.relkind <> 'f' AND (c.is_built AND c.mode LIKE 'partition%' AND c.root = rel
    AND c.fingerprint = {set}.fingerprint(t.relid) AND {set}.has_triggers(t.relid, c.mode)
    AND (c.mode LIKE '%+applied') = EXISTS (SELECT FROM {set}.applied a WHERE a.relid = rel)) IS NOT TRUE
  ORDER BY t.level, t.relid;
  FOR part IN
    SELECT c.*, k.oid FROM {set}.partitions_of(rel, false) c LEFT JOIN pg_class k ON k.oid = c.relid
    WHERE c.mode LIKE 'partition%' AND c.relid NOT IN (SELECT t.relid FROM {set}.partitions(rel) t)
  LOOP
    PERFORM {set}.drop_trigger(part.oid, t.tgname) FROM pg_trigger t
    WHERE t.tgrelid = part.oid AND t.tgparentid = 0 AND t.tgname = {set}.trigger_name(part.oid, 't');
    INSERT INTO {set}.captured (relid, definition, mode, root, fingerprint, is_built)
    VALUES (part.relid, part.definition, 'detached', part.root, part.fingerprint, true);
  END LOOP;
END $$;

-- Captured tables, roots and ordinary ones, whose capture has to be built anew: their definition or triggers changed,
-- or their partitions are others.
CREATE OR REPLACE FUNCTION {set}.behind() RETURNS SETOF oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  WITH captured AS MATERIALIZED (
    SELECT * FROM {set}.built_now c WHERE c.mode <> 'detached'
  ), noted AS (
    SELECT * FROM {set}.captured_now c WHERE c.mode LIKE 'partition%' AND NOT c.is_built
  ), existing AS (
    SELECT c.*, k.relkind = 'p' AS has_partitions FROM captured c JOIN pg_class k ON k.oid = c.relid
  ), tree AS (
    SELECT c.relid AS root, t.relid FROM existing c, {set}.partitions(c.relid) t JOIN pg_class k ON k.oid = t.relid
    WHERE c.has_partitions AND c.root = c.relid AND t.level > 0 AND k.relkind <> 'f'
  )
  SELECT CASE WHEN c.mode LIKE 'partition%' THEN c.root ELSE {set}.captured_root(c.relid) END FROM existing c
  JOIN {set}.describe(ARRAY(SELECT relid FROM existing), false) d ON d.relid = c.relid
  WHERE c.fingerprint <> {set}.fingerprint(c.relid) OR c.root <> {set}.captured_root(c.relid)
    OR EXISTS (SELECT FROM {set}.captured n WHERE n.relid = c.relid AND n.version > c.version)
    OR {set}.essence(c.definition) <> {set}.essence(d.definition)
    OR c.mode <> {set}.capture_mode(c.relid, d.definition) OR NOT {set}.has_triggers(c.relid, c.mode)
  UNION SELECT n.root FROM noted n JOIN pg_class r ON r.oid = n.root
  UNION SELECT t.root FROM tree t WHERE NOT EXISTS (SELECT FROM captured c WHERE c.relid = t.relid AND c.root = t.root)
  UNION SELECT c.root FROM captured c JOIN pg_class r ON r.oid = c.root
    WHERE c.root <> c.relid AND NOT EXISTS (SELECT FROM pg_partition_ancestors(c.relid) a WHERE a.relid = c.root)
$$;
