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

COMMENT ON TABLE {set}.log IS 'one change: I, U, D or T (truncate); or many of one statement: i, u or d; !: a change that could not be captured; A: the table was altered; M: a message';
COMMENT ON COLUMN {set}.log.before IS 'of many changes their images, a line each; an update''s two with a tab between';
-- Not a key: that would be checked. The reader gets its order from it; sorting would cost it a third more.
CREATE INDEX IF NOT EXISTS log_order ON {set}.log (xid, seq);

DROP VIEW IF EXISTS {set}.changes;

CREATE TABLE IF NOT EXISTS {set}.tick (
  scn bigint PRIMARY KEY,
  snapshot pg_snapshot NOT NULL,
  at timestamptz NOT NULL
);
COMMENT ON TABLE {set}.tick IS 'snapshots that cut the log into intervals; scn: no transaction before the cut has a higher one';

CREATE SEQUENCE IF NOT EXISTS {set}.version_seq AS int;

-- Nothing here is ever changed, and nothing is unique: whoever writes to a table that was altered adds its new version,
-- and must not wait for another who does the same. A version that came twice means the same both times.
CREATE TABLE IF NOT EXISTS {set}.captured (
  relid oid NOT NULL,
  version int NOT NULL DEFAULT pg_catalog.nextval({version_seq}),
  definition jsonb NOT NULL,
  mode text NOT NULL,
  root oid NOT NULL,
  fingerprint text NOT NULL,
  is_built bool NOT NULL
);
-- Sets that were installed before versions came from a sequence.
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{set}.captured'::regclass AND attname = 'is_built') THEN
    ALTER TABLE {set}.captured DROP CONSTRAINT captured_pkey, ALTER version SET DEFAULT nextval({version_seq}),
      ADD fingerprint text NOT NULL DEFAULT '', ADD is_built bool NOT NULL DEFAULT false;
    PERFORM setval({version_seq}, (SELECT max(version) + 1 FROM {set}.captured));
  END IF;
END $$;
CREATE INDEX IF NOT EXISTS captured_relid ON {set}.captured (relid);
CREATE INDEX IF NOT EXISTS captured_partition ON {set}.captured (root) WHERE root <> relid;
COMMENT ON TABLE {set}.captured IS 'every version of every captured table; log rows name one by relid and version';
COMMENT ON COLUMN {set}.captured.root IS 'the captured table that this one is a partition of, or itself';
COMMENT ON COLUMN {set}.captured.is_built IS 'whether triggers were made for it; a writer may have found it before';

-- The last version of each table.
CREATE OR REPLACE VIEW {set}.captured_now AS
  SELECT DISTINCT ON (relid) * FROM {set}.captured ORDER BY relid, version DESC;

-- The last version of each table that triggers were made for.
CREATE OR REPLACE VIEW {set}.built_now AS
  SELECT DISTINCT ON (relid) * FROM {set}.captured WHERE is_built ORDER BY relid, version DESC;

-- The last version of each partition that goes with a captured root: of all versions, or of those that triggers were made
-- for. A view of all tables would be worked out whole to find the few of one root.
CREATE OR REPLACE FUNCTION {set}.partitions_of(root oid, only_built bool) RETURNS SETOF {set}.captured
LANGUAGE plpgsql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY SELECT n.* FROM (
    SELECT DISTINCT c.relid FROM {set}.captured c WHERE c.root = partitions_of.root AND c.root <> c.relid
  ) p CROSS JOIN LATERAL (
    SELECT * FROM {set}.captured c WHERE c.relid = p.relid AND (c.is_built OR NOT only_built) ORDER BY c.version DESC LIMIT 1
  ) n WHERE n.root = partitions_of.root AND n.relid <> n.root;
END $$;

CREATE TABLE IF NOT EXISTS {set}.installed (
  relid oid NOT NULL,
  at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
  stamp text NOT NULL
);
CREATE INDEX IF NOT EXISTS installed_relid ON {set}.installed (relid, at);
COMMENT ON TABLE {set}.installed IS 'what the triggers of a table looked like when they were made; the last row of each counts';

CREATE TABLE IF NOT EXISTS {set}.by_row (relid oid PRIMARY KEY);
COMMENT ON TABLE {set}.by_row IS 'captured tables that row triggers were asked for';
CREATE TABLE IF NOT EXISTS {set}.applied (relid oid PRIMARY KEY);
COMMENT ON TABLE {set}.applied IS 'captured tables of which the changes that apply processes write are captured, too';
-- The functions are their first owner's, whoever brings them up to date.
DO $$
DECLARE
  owner oid := (SELECT relowner FROM pg_class WHERE oid = '{set}.captured'::regclass);
  made regclass;
BEGIN
  FOR made IN SELECT oid FROM pg_class WHERE oid IN ('{set}.by_row'::regclass, '{set}.applied'::regclass) AND relowner <> owner
  LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO %s', made, owner::regrole);
  END LOOP;
END $$;

CREATE TABLE IF NOT EXISTS {set}.marker (
  xid xid8 PRIMARY KEY,
  commit_seq bigint,
  tag text
);
-- Sets that were installed before there were origin marks.
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{set}.marker'::regclass AND attname = 'tag') THEN
    ALTER TABLE {set}.marker ADD COLUMN tag text;
  END IF;
END $$;
COMMENT ON TABLE {set}.marker IS 'a last sequence number for transactions of apply processes, and those on tables with deferrable constraints';
COMMENT ON COLUMN {set}.marker.tag IS 'the origin mark of an apply process; empty: it sets none; null: no apply process wrote this';

DROP FUNCTION IF EXISTS {set}.describe(oid[]);
-- In PL/pgSQL, which keeps the plan for the session: to make it takes twice as long as to run it for one table.
CREATE OR REPLACE FUNCTION {set}.describe(relids oid[], with_checks bool) RETURNS TABLE (relid oid, definition jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $describe$
#variable_conflict use_column
BEGIN
  RETURN QUERY
{describe};
END $describe$;

-- Deferred triggers fire in the order they were queued, so the first firing only queues the marker again, behind
-- every check the transaction has queued so far; the second one draws the number.
CREATE OR REPLACE FUNCTION {set}.draw_commit_seq() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE {set}.marker SET commit_seq = CASE WHEN NEW.commit_seq IS NULL THEN 0 ELSE nextval({seq}) END
  WHERE xid = NEW.xid;
  IF NEW.commit_seq IS NOT NULL THEN
    -- What comes after that has to draw another one.
    PERFORM set_config('penstock.marked', '', true), set_config('{noted}', '', true);
  END IF;
  RETURN NULL;
END $$;
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{set}.marker'::regclass AND tgname = 'draw_commit_seq') THEN
    CREATE CONSTRAINT TRIGGER draw_commit_seq AFTER INSERT OR UPDATE ON {set}.marker
      DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.commit_seq IS NULL OR NEW.commit_seq = 0)
      EXECUTE FUNCTION {set}.draw_commit_seq();
  END IF;
  -- Sessions of apply processes run with session_replication_role = replica, and draw a number, too.
  IF EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{set}.marker'::regclass AND tgname = 'draw_commit_seq' AND tgenabled <> 'A') THEN
    ALTER TABLE {set}.marker ENABLE ALWAYS TRIGGER draw_commit_seq;
  END IF;
END $$;

