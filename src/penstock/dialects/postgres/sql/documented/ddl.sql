-- A table that TABLES names is watched from the statement that makes it; what else DDL does, ../capture/ddl.sql tells.
CREATE OR REPLACE FUNCTION {set}.on_table_made() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '100ms' AS $$
BEGIN
  IF coalesce(current_setting('penstock.rebuilding', true), '') <> '' THEN
    RETURN;
  END IF;
  PERFORM {set}.take_up();
-- The user's statement does not fail because of it: the row of TABLES keeps its status, and CHECK_STRUCTURE tries again.
EXCEPTION WHEN OTHERS THEN
  NULL;
END $$;

DROP EVENT TRIGGER IF EXISTS {made};
CREATE EVENT TRIGGER {made} ON ddl_command_end WHEN TAG IN ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO', 'ALTER TABLE')
  EXECUTE FUNCTION {set}.on_table_made();
ALTER EVENT TRIGGER {made} ENABLE ALWAYS;
