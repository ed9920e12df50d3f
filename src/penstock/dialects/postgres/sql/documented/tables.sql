-- TABLES: which tables ITEMS shows the changes of. Its rows are live: what is inserted, changed or deleted there changes
-- the capture in the same transaction.

-- The table that a row of TABLES means: spelled as in the catalogue, or else in small letters. A blank for the schema
-- stands for that of the documented tables.
CREATE OR REPLACE FUNCTION {set}.table_named(schema_name text, table_name text) RETURNS oid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace,
    (SELECT coalesce(nullif(btrim(table_named.schema_name), ''), {schema_name}) AS name) s
  WHERE c.relname IN (table_named.table_name, lower(table_named.table_name)) AND n.nspname IN (s.name, lower(s.name))
    AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
    AND n.nspname NOT IN ('pg_catalog', 'information_schema')
    AND NOT starts_with(coalesce(obj_description(n.oid, 'pg_namespace'), ''), 'penstock:')
  ORDER BY n.nspname = s.name DESC, c.relname = table_named.table_name DESC LIMIT 1
$$;

-- OK: the changes of the table are captured. REMOVE: its capture triggers are gone, or switched off, or the log is kept for
-- readers of ITEMS no more. CREATING: there is no such table yet, the capture did not begin, or it began anew, and no reader
-- has taken the CREATE that says so.
CREATE OR REPLACE FUNCTION {set}.watch_status(rel oid) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  last {set}.captured := (SELECT c FROM {set}.captured c WHERE c.relid = rel ORDER BY c.version DESC LIMIT 1);
BEGIN
  RETURN CASE
    WHEN last IS NULL OR last.mode = 'detached' OR NOT EXISTS (SELECT FROM pg_class WHERE oid = rel) THEN 'CREATING'
    WHEN NOT {set}.has_triggers(rel, last.mode) OR EXISTS (SELECT FROM {set}.partitions(rel) p JOIN {set}.built_now b ON b.relid = p.relid
      WHERE p.level > 0 AND b.mode <> 'detached' AND NOT {set}.has_triggers(b.relid, b.mode)) THEN 'REMOVE'
    WHEN NOT EXISTS (SELECT FROM {set}.consumer WHERE id = 'documented') THEN 'REMOVE'
    WHEN EXISTS (SELECT FROM {set}.watched w JOIN {set}.announced a ON a.seq = w.create_seq WHERE w.relid = rel AND w.is_watched
      AND NOT EXISTS (SELECT FROM {set}.acknowledged k WHERE k.repl_key = a.seq * 64)) THEN 'CREATING'
    ELSE 'OK' END;
END $$;
GRANT EXECUTE ON FUNCTION {set}.watch_status(oid) TO PUBLIC;

CREATE OR REPLACE VIEW {tables} AS
  SELECT w.catalog_name AS catalogname, w.schema_name AS schemaname, w.table_name AS tablename, w.actions::char(3) AS actions,
    {set}.watch_status(w.relid) AS status, w.repl_key, w.trigger_name, w.debug
  FROM {set}.watched w WHERE w.is_watched;
COMMENT ON VIEW {tables} IS {comment};

-- Whether a role may have a table captured: it reads there what the table holds, and puts triggers on it.
CREATE OR REPLACE FUNCTION {set}.may_watch(role oid, rel oid) RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT has_table_privilege(role, rel, 'SELECT') AND has_table_privilege(role, rel, 'TRIGGER')
    AND (NOT c.relrowsecurity OR r.rolsuper OR r.rolbypassrls OR pg_has_role(role, c.relowner, 'USAGE') AND NOT c.relforcerowsecurity)
  FROM pg_class c, pg_roles r WHERE c.oid = rel AND r.oid = role
$$;

CREATE OR REPLACE FUNCTION {set}.close_watch(rel oid) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  UPDATE {set}.watch SET until_seq = nextval({seq}) WHERE relid = rel AND until_seq IS NULL
$$;

-- What is open now may have written to the table already, and commits when a reader has seen what the table contains: so it
-- is shown whole, except for what an earlier watch shows.
CREATE OR REPLACE FUNCTION {set}.open_watch(rel oid, actions text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO {set}.watch (relid, from_seq, actions, version, since, since_seq)
  SELECT rel, nextval({seq}), coalesce(open_watch.actions, 'IUD'), {version}, pg_current_snapshot(),
    coalesce((SELECT max(w.until_seq) FROM {set}.watch w WHERE w.relid = rel), 0)
  WHERE NOT EXISTS (SELECT FROM {set}.watch w WHERE w.relid = rel AND w.until_seq IS NULL)
$$;

-- Watch with other actions, or as another version, from one number on: between two numbers a writer could draw one.
CREATE OR REPLACE FUNCTION {set}.change_watch(rel oid, actions text) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  WITH closed AS (
    UPDATE {set}.watch SET until_seq = nextval({seq}) WHERE relid = rel AND until_seq IS NULL RETURNING until_seq)
  INSERT INTO {set}.watch (relid, from_seq, actions, version)
  SELECT rel, until_seq, coalesce(change_watch.actions, 'IUD'), {version} FROM closed
$$;

CREATE OR REPLACE FUNCTION {set}.announce(action text, rel oid, content text DEFAULT NULL) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO {set}.announced (action, schema_name, table_name, content)
  SELECT announce.action, n.nspname, c.relname, announce.content
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = rel
$$;

-- Have a pipeline that publishes send what a watched table contains once more. Its run looks here.
CREATE OR REPLACE FUNCTION {set}.ask_for_copy(rel oid) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  UPDATE {set}.watched SET copy_asked = nextval({seq}) WHERE relid = rel AND is_watched
$$;

-- Have the event triggers of the set leave alone what it does itself; returns what the setting was. No function is made
-- with it: only a superuser may have one begin with a setting that is not the server's.
CREATE OR REPLACE FUNCTION {set}.hush(setting text DEFAULT 'on') RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  was text := coalesce(current_setting('penstock.rebuilding', true), '');
BEGIN
  PERFORM set_config('penstock.rebuilding', setting, true);
  RETURN was;
END $$;

-- Begin to watch a table that there is, and have it captured if it is not. Writers to it are waited for.
CREATE OR REPLACE FUNCTION {set}.begin_watch(rel oid, actions text) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  was_captured bool := coalesce((SELECT c.mode <> 'detached' FROM {set}.captured c WHERE c.relid = rel
    ORDER BY c.version DESC LIMIT 1), false);
  root oid;
  setting text := {set}.hush();
BEGIN
  PERFORM pg_advisory_xact_lock({changing}, rel::int);
  PERFORM {set}.capture_all(rel), {set}.hush(setting);
  root := {set}.captured_root(rel);
  IF root <> rel THEN
    RAISE EXCEPTION '% is captured with %, which it is a partition of', rel::regclass, root::regclass
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Watch that table instead.';
  END IF;
  PERFORM {set}.open_watch(rel, actions);
  RETURN NOT was_captured;
END $$;

-- Stop the capture of a table that nobody but TABLES has asked for.
CREATE OR REPLACE FUNCTION {set}.end_capture(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  part record;
  setting text := {set}.hush();
BEGIN
  PERFORM pg_advisory_xact_lock({changing}, rel::int);
  FOR part IN
    SELECT c.* FROM {set}.partitions(rel) p CROSS JOIN LATERAL (
      SELECT * FROM {set}.captured c WHERE c.relid = p.relid ORDER BY c.version DESC LIMIT 1) c
    WHERE c.mode <> 'detached' AND EXISTS (SELECT FROM pg_class k WHERE k.oid = c.relid) ORDER BY p.level
  LOOP
    PERFORM {set}.drop_trigger(part.relid, t.tgname) FROM pg_trigger t
    WHERE t.tgrelid = part.relid AND t.tgparentid = 0 AND starts_with(t.tgname, {set}.trigger_name(part.relid, ''));
    INSERT INTO {set}.captured (relid, definition, mode, root, fingerprint, is_built)
    VALUES (part.relid, part.definition, 'detached', part.root, part.fingerprint, true);
  END LOOP;
  PERFORM {set}.hush(setting);
END $$;

-- Rows of TABLES as the catalogue has it: a table that was renamed is followed, one that was made is taken up.
CREATE OR REPLACE FUNCTION {set}.take_up() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  waiting record;
  -- Also one that is called otherwise than its row says in small letters, once another table is called as the row says.
  renamed oid[] := ARRAY(
    SELECT w.relid FROM {set}.watched w JOIN pg_class c ON c.oid = w.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname NOT IN (w.table_name, lower(w.table_name))
      OR btrim(w.schema_name) <> '' AND n.nspname NOT IN (w.schema_name, lower(w.schema_name))
      OR (c.relname <> w.table_name OR n.nspname <> w.schema_name) AND EXISTS (
        SELECT FROM pg_class o JOIN pg_namespace s ON s.oid = o.relnamespace
        WHERE o.relname = w.table_name AND s.nspname = w.schema_name AND o.relkind IN ('r', 'p')));
BEGIN
  IF cardinality(renamed) > 0 THEN
    -- Two tables may have each other's name: none keeps its own meanwhile. A row that waits for a table of a name that one
    -- of these has now has nothing more to wait for.
    UPDATE {set}.watched w SET table_name = format(E'\n%s', w.relid) WHERE w.relid = ANY (renamed);
    DELETE FROM {set}.watched w USING {set}.watched o JOIN pg_class c ON c.oid = o.relid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE o.relid = ANY (renamed) AND (w.catalog_name, w.schema_name, w.table_name) = (o.catalog_name, n.nspname, c.relname)
      AND NOT EXISTS (SELECT FROM pg_class k WHERE k.oid = w.relid);
    UPDATE {set}.watched w SET schema_name = n.nspname, table_name = c.relname
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE w.relid = ANY (renamed) AND c.oid = w.relid;
  END IF;
  FOR waiting IN
    SELECT w.*, f.oid AS found FROM {set}.watched w
    CROSS JOIN LATERAL (SELECT {set}.table_named(w.schema_name, w.table_name) AS oid) f
    WHERE w.is_watched AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = w.relid)
      AND (w.by_role IS NULL OR {set}.may_watch(w.by_role, f.oid)) AND f.oid IS NOT NULL
      AND NOT EXISTS (SELECT FROM {set}.watched o WHERE o.relid = f.oid AND o.is_watched)
  LOOP
    UPDATE {set}.watched w SET relid = waiting.found, is_captured_here = {set}.begin_watch(waiting.found, waiting.actions)
    WHERE (w.catalog_name, w.schema_name, w.table_name) = (waiting.catalog_name, waiting.schema_name, waiting.table_name);
    PERFORM {set}.announce('CREATE', waiting.found), {set}.set_debugging(waiting.found, waiting.debug);
  END LOOP;
END $$;

-- With the rights of whoever writes to TABLES: nobody may read by it what they could not read before.
CREATE OR REPLACE FUNCTION {set}.check_watcher() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM set_config('penstock.watcher', (SELECT oid::text FROM pg_roles WHERE rolname = current_user), true);
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION {set}.insert_watched(INOUT given {tables}, role oid) RETURNS {tables}
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  wanted text := nullif(upper(btrim(given.actions::text)), '');
  rel oid;
  known {set}.watched;
BEGIN
  IF given.tablename IS NULL OR wanted !~ '^[IUD]+$' THEN
    RAISE EXCEPTION 'TABLES needs a TABLENAME, and as ACTIONS letters of I, U and D'
      USING ERRCODE = 'check_violation', HINT = 'NULL as ACTIONS stands for all three.';
  END IF;
  -- An empty text is none of them, unlike NULL.
  IF wanted IS NULL AND given.actions IS NOT NULL THEN
    wanted := '';
  END IF;
  given.catalogname := coalesce(nullif(given.catalogname, ''), ' ');
  given.schemaname := coalesce(nullif(given.schemaname, ''), ' ');
  given.repl_key := coalesce(given.repl_key, nextval({sequence_name}));
  given.trigger_name := coalesce(nullif(btrim(given.trigger_name), ''), {prefix} || given.repl_key);
  given.debug := coalesce(given.debug, 0);
  rel := {set}.table_named(given.schemaname, given.tablename);
  IF rel IS NOT NULL AND NOT {set}.may_watch(role, rel) THEN
    RAISE EXCEPTION 'permission denied to watch table %', rel::regclass USING ERRCODE = 'insufficient_privilege',
      HINT = 'It takes SELECT and TRIGGER on the table, and that no policy hides rows of it.';
  END IF;
  DELETE FROM {set}.watched w WHERE NOT w.is_watched AND (w.relid = rel
    OR (w.catalog_name, w.schema_name, w.table_name) = (given.catalogname, given.schemaname, given.tablename));
  SELECT w.* INTO known FROM {set}.watched w WHERE w.relid = rel
    OR (w.catalog_name, w.schema_name, w.table_name) = (given.catalogname, given.schemaname, given.tablename);
  IF FOUND THEN
    RAISE EXCEPTION 'table %.% is in % already', known.schema_name, known.table_name, {tables_name}
      USING ERRCODE = 'unique_violation', HINT = 'Change its row instead: UPDATE sets ACTIONS, STATUS or DEBUG.';
  END IF;
  INSERT INTO {set}.watched (catalog_name, schema_name, table_name, actions, repl_key, trigger_name, debug, relid, by_role)
  VALUES (given.catalogname, given.schemaname, given.tablename, wanted, given.repl_key, given.trigger_name, given.debug, rel, role);
  IF rel IS NOT NULL THEN
    UPDATE {set}.watched w SET is_captured_here = {set}.begin_watch(rel, wanted) WHERE w.relid = rel AND w.is_watched;
    PERFORM {set}.announce('CREATE', rel), {set}.ask_for_copy(rel), {set}.set_debugging(rel, given.debug);
  END IF;
  given.actions := wanted;
  given.status := {set}.watch_status(rel);
END $$;

CREATE OR REPLACE FUNCTION {set}.delete_watched(given {tables}) RETURNS bool
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  gone {set}.watched;
BEGIN
  UPDATE {set}.watched w SET is_watched = false WHERE w.is_watched
    AND (w.catalog_name, w.schema_name, w.table_name) = (given.catalogname, given.schemaname, given.tablename) RETURNING * INTO gone;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM {set}.close_watch(gone.relid), {set}.set_debugging(gone.relid, 0);
  IF gone.is_captured_here THEN
    PERFORM {set}.end_capture(gone.relid);
    DELETE FROM {set}.watched w WHERE w.relid = gone.relid AND NOT w.is_watched;
  END IF;
  RETURN true;
END $$;

CREATE OR REPLACE FUNCTION {set}.change_watched() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  role oid := current_setting('penstock.watcher')::oid;
  changed {set}.watched;
BEGIN
  IF TG_OP = 'INSERT' THEN
    NEW := {set}.insert_watched(NEW, role);
  ELSIF TG_OP = 'DELETE' THEN
    IF NOT {set}.delete_watched(OLD) THEN
      RETURN NULL;
    END IF;
    NEW := OLD;
  ELSIF (NEW.catalogname, NEW.schemaname, NEW.tablename) IS DISTINCT FROM (OLD.catalogname, OLD.schemaname, OLD.tablename) THEN
    IF NOT {set}.delete_watched(OLD) THEN
      RETURN NULL;
    END IF;
    NEW := {set}.insert_watched(NEW, role);
  ELSE
    NEW.actions := upper(btrim(NEW.actions::text));
    UPDATE {set}.watched w SET actions = NEW.actions::text, repl_key = NEW.repl_key, trigger_name = NEW.trigger_name,
      debug = coalesce(NEW.debug, 0),
      create_seq = CASE WHEN NEW.status IS DISTINCT FROM 'OK' THEN create_seq END
    WHERE w.is_watched AND (w.catalog_name, w.schema_name, w.table_name) = (OLD.catalogname, OLD.schemaname, OLD.tablename)
    RETURNING * INTO changed;
    IF NOT FOUND THEN
      RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM pg_class WHERE oid = changed.relid) THEN
      IF NEW.actions IS DISTINCT FROM OLD.actions THEN
        PERFORM {set}.change_watch(changed.relid, changed.actions), {set}.open_watch(changed.relid, changed.actions);
      END IF;
      -- Any status but OK asks for the capture to be made again.
      IF NEW.status IS DISTINCT FROM OLD.status AND NEW.status IS DISTINCT FROM 'OK' OR OLD.status = 'REMOVE' THEN
        PERFORM {set}.begin_watch(changed.relid, changed.actions);
      END IF;
      -- This one also asks for the table to be sent anew, as when its row was inserted.
      IF NEW.status IS DISTINCT FROM OLD.status AND NEW.status = 'CREATING' THEN
        PERFORM {set}.announce('CREATE', changed.relid), {set}.ask_for_copy(changed.relid);
      END IF;
      PERFORM {set}.set_debugging(changed.relid, changed.debug) WHERE NEW.debug IS DISTINCT FROM OLD.debug;
    END IF;
    NEW.status := {set}.watch_status(changed.relid);
  END IF;
  PERFORM {set}.copy_structure();
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER a_check INSTEAD OF INSERT OR UPDATE OR DELETE ON {tables}
  FOR EACH ROW EXECUTE FUNCTION {set}.check_watcher();
CREATE OR REPLACE TRIGGER b_change INSTEAD OF INSERT OR UPDATE OR DELETE ON {tables}
  FOR EACH ROW EXECUTE FUNCTION {set}.change_watched();

-- For setup: a table of the pipeline file is listed, unless a user has taken it out, and readers get a CREATE for it.
CREATE OR REPLACE FUNCTION {set}.list_table(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  key bigint := nextval({sequence_name});
BEGIN
  IF EXISTS (SELECT FROM {set}.watched WHERE relid = rel) THEN
    UPDATE {set}.watched SET is_captured_here = false WHERE relid = rel;
    RETURN;
  END IF;
  INSERT INTO {set}.watched (schema_name, table_name, actions, repl_key, trigger_name, relid)
  SELECT n.nspname, c.relname, 'IUD', key, {prefix} || key, rel
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = rel
  -- A table of that name that was dropped since.
  ON CONFLICT (catalog_name, schema_name, table_name) DO UPDATE SET relid = excluded.relid, is_captured_here = false;
  PERFORM {set}.begin_watch(rel, w.actions), {set}.set_debugging(rel, w.debug), {set}.announce('CREATE', rel) FROM {set}.watched w
  WHERE w.relid = rel AND w.is_watched;
  PERFORM {set}.copy_structure();
END $$;
