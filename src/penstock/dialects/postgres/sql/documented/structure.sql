-- The structure of the watched tables, its stored copy, and the comparison of both; and the functions that write.

CREATE OR REPLACE VIEW {cols_view} AS
  SELECT a.attname, c.relname AS owner, a.atttypid, a.attlen, a.attnotnull, a.attnum
  FROM {set}.watched w JOIN pg_catalog.pg_class c ON c.oid = w.relid
  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
  WHERE w.is_watched;
COMMENT ON VIEW {cols_view} IS {comment};

CREATE OR REPLACE VIEW {cols_table} AS SELECT * FROM {set}.cols_table;
COMMENT ON VIEW {cols_table} IS {comment};

CREATE OR REPLACE VIEW {current_tables} AS SELECT * FROM {set}.current_tables;
COMMENT ON VIEW {current_tables} IS {comment};

CREATE OR REPLACE VIEW {debug_table} AS SELECT * FROM {set}.debug_table;
COMMENT ON VIEW {debug_table} IS {comment};

CREATE OR REPLACE VIEW {longs_table} AS SELECT * FROM {set}.longs_table;
COMMENT ON VIEW {longs_table} IS {comment};

-- Store what COLS_VIEW shows now, and which watched tables there are.
CREATE OR REPLACE FUNCTION {set}.copy_structure() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  IF EXISTS ((TABLE {cols_view} EXCEPT ALL TABLE {set}.cols_table) UNION ALL (TABLE {set}.cols_table EXCEPT ALL TABLE {cols_view})) THEN
    DELETE FROM {set}.cols_table;
    INSERT INTO {set}.cols_table TABLE {cols_view};
  END IF;
  DELETE FROM {set}.current_tables t WHERE NOT EXISTS (
    SELECT FROM {set}.watched w JOIN pg_class c ON c.oid = w.relid WHERE w.is_watched AND c.relname = t.relname);
  INSERT INTO {set}.current_tables SELECT DISTINCT c.relname FROM {set}.watched w JOIN pg_class c ON c.oid = w.relid
  WHERE w.is_watched AND c.relname NOT IN (SELECT relname FROM {set}.current_tables);
END $$;

-- For databases where no event trigger tells of DDL; elsewhere it finds nothing. Tables are compared by their oids, so
-- that one that was dropped and made again is noticed.
CREATE OR REPLACE FUNCTION {check_structure}() RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '100ms' AS $$
DECLARE
  altered oid;
  setting text := {set}.hush();
BEGIN
  -- One reader at a time; another one does it now.
  IF NOT pg_try_advisory_xact_lock({changing}, 0) THEN
    PERFORM {set}.hush(setting);
    RETURN 'OK';
  END IF;
  PERFORM {set}.note_drops(NULL);
  FOR altered IN SELECT b FROM {set}.behind() b LOOP
    BEGIN
      PERFORM {set}.capture_all(altered) WHERE pg_try_advisory_xact_lock({changing}, altered::int);
    EXCEPTION WHEN lock_not_available OR deadlock_detected OR insufficient_privilege THEN
      -- Whoever writes to the table finds it out, and so does the next call.
      NULL;
    END;
  END LOOP;
  BEGIN
    PERFORM {set}.take_up();
  EXCEPTION WHEN lock_not_available OR deadlock_detected OR insufficient_privilege THEN
    NULL;
  END;
  PERFORM {set}.copy_structure(), {set}.hush(setting);
  RETURN 'OK';
END $$;

CREATE OR REPLACE FUNCTION {increment}() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT nextval({sequence_name}) $$;

CREATE OR REPLACE FUNCTION {prepare_broadcast}(statement text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO {set}.announced (action, content) VALUES ('statement', statement)
$$;

-- Have an action stand in ITEMS for a table that there is, as when it is to be sent again.
CREATE OR REPLACE FUNCTION {check_tables}(catalog_name text, schema_name text, table_name text, action text, content text)
RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  rel oid := {set}.table_named(schema_name, table_name);
BEGIN
  IF rel IS NULL THEN
    RETURN 'FALSE';
  END IF;
  PERFORM {set}.announce(action, rel, content);
  RETURN 'TRUE';
END $$;

-- One line for each statement that writes to a table whose DEBUG is 1; no value of a row. A statement does not fail
-- because of it.
CREATE OR REPLACE FUNCTION {write_debug}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  INSERT INTO {set}.debug_table VALUES (nextval({sequence_name}),
    left(format('%s %s.%s transaction %s', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME, pg_current_xact_id()), 255));
  RETURN NULL;
EXCEPTION WHEN OTHERS THEN
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION {set}.set_debugging(rel oid, level int) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  is_there bool := EXISTS (SELECT FROM pg_trigger WHERE tgrelid = rel AND tgname = {write_debug_name});
  setting text := {set}.hush();
BEGIN
  IF level > 0 AND NOT is_there AND EXISTS (SELECT FROM pg_class WHERE oid = rel) THEN
    EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION {write_debug}()',
      {write_debug_name}, rel::regclass);
  ELSIF coalesce(level, 0) = 0 AND is_there THEN
    EXECUTE format('DROP TRIGGER %I ON %s', {write_debug_name}, rel::regclass);
  END IF;
  PERFORM {set}.hush(setting);
END $$;

-- These write with the rights of the set's owner, who says to whom they are given.
REVOKE EXECUTE ON FUNCTION {check_structure}(), {increment}(), {prepare_broadcast}(text),
  {check_tables}(text, text, text, text, text), {write_debug}() FROM PUBLIC;
