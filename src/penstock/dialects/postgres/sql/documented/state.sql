-- What the documented tables of {set} stand on, beside the log: which tables are watched, what readers have acknowledged.

CREATE TABLE IF NOT EXISTS {set}.documented (
  is_only bool PRIMARY KEY DEFAULT true CHECK (is_only),
  schema_name text NOT NULL,
  prefix text NOT NULL,
  stamp text NOT NULL
);
COMMENT ON TABLE {set}.documented IS 'where the documented tables are, and which script made them';

CREATE TABLE IF NOT EXISTS {set}.watched (
  catalog_name text NOT NULL DEFAULT ' ',
  schema_name text NOT NULL,
  table_name text NOT NULL,
  actions text CHECK (actions ~ '^[IUD]*$'),
  repl_key bigint NOT NULL,
  trigger_name text NOT NULL,
  debug int NOT NULL DEFAULT 0,
  relid oid,
  by_role oid,
  is_captured_here bool NOT NULL DEFAULT false,
  is_watched bool NOT NULL DEFAULT true,
  PRIMARY KEY (catalog_name, schema_name, table_name)
);
ALTER TABLE {set}.watched ADD COLUMN IF NOT EXISTS copy_asked bigint;
CREATE UNIQUE INDEX IF NOT EXISTS watched_relid ON {set}.watched (relid) WHERE is_watched;
COMMENT ON TABLE {set}.watched IS 'the rows of TABLES';
ALTER TABLE {set}.watched ADD COLUMN IF NOT EXISTS create_seq bigint;
COMMENT ON COLUMN {set}.watched.create_seq IS 'the CREATE that readers have to take before what they have of the table is right again';
COMMENT ON COLUMN {set}.watched.relid IS 'the table that it means; null or gone: one that does not exist yet';
COMMENT ON COLUMN {set}.watched.by_role IS 'the role that inserted it; null: setup';
COMMENT ON COLUMN {set}.watched.is_captured_here IS 'the pipeline file does not ask for its capture';
COMMENT ON COLUMN {set}.watched.copy_asked IS 'a number of each time that its rows are to be published anew; null: a run knows of it';
COMMENT ON COLUMN {set}.watched.is_watched IS 'false: a user deleted the row, so setup does not add it again';

CREATE TABLE IF NOT EXISTS {set}.watch (
  relid oid NOT NULL,
  from_seq bigint NOT NULL,
  until_seq bigint,
  actions text NOT NULL
);
ALTER TABLE {set}.watch ADD COLUMN IF NOT EXISTS version text NOT NULL DEFAULT '0.0',
  ADD COLUMN IF NOT EXISTS since pg_snapshot, ADD COLUMN IF NOT EXISTS since_seq bigint;
COMMENT ON TABLE {set}.watch IS 'the changes of a table that ITEMS shows, by their numbers in the log';
COMMENT ON COLUMN {set}.watch.since IS 'transactions that were open when the watch began are shown whole: from since_seq on';

-- Each change has a number of its own, also where up to 64 of a statement are one row of the log.
CREATE TABLE IF NOT EXISTS {set}.acknowledged (repl_key bigint PRIMARY KEY, xid xid8 NOT NULL);
CREATE INDEX IF NOT EXISTS acknowledged_xid ON {set}.acknowledged (xid);
COMMENT ON TABLE {set}.acknowledged IS 'rows that readers have deleted from ITEMS, until the log is freed of them';

CREATE TABLE IF NOT EXISTS {set}.read_to (
  is_only bool PRIMARY KEY DEFAULT true CHECK (is_only),
  below xid8 NOT NULL DEFAULT '0'
);
INSERT INTO {set}.read_to DEFAULT VALUES ON CONFLICT DO NOTHING;
ALTER TABLE {set}.read_to ADD COLUMN IF NOT EXISTS given_up_at timestamptz, ADD COLUMN IF NOT EXISTS given_up_from xid8;
COMMENT ON COLUMN {set}.read_to.given_up_from IS 'readers may miss rows of transactions from this one on: the log was kept for them no more';
COMMENT ON TABLE {set}.read_to IS 'all of the transactions below it is acknowledged, though the log may be kept for others';

CREATE TABLE IF NOT EXISTS {set}.acknowledging (xid xid8 PRIMARY KEY);
COMMENT ON TABLE {set}.acknowledging IS 'transactions that delete from ITEMS; they free the log when they commit';

-- Readers delete transaction by transaction, by a text; without it, each DELETE reads all that waits. In a block: CREATE INDEX
-- would wait for those who write, only to find that there is nothing to do.
DO $$ BEGIN
  IF to_regclass('{set}.log_trans_key') IS NULL THEN
    CREATE INDEX log_trans_key ON {set}.log ((xid::text));
  END IF;
END $$;

CREATE TABLE IF NOT EXISTS {set}.announced (
  xid xid8 NOT NULL DEFAULT pg_catalog.pg_current_xact_id(),
  seq bigint NOT NULL DEFAULT pg_catalog.nextval({seq}),
  action text NOT NULL,
  schema_name text,
  table_name text,
  content text
);
ALTER TABLE {set}.announced ADD COLUMN IF NOT EXISTS version text NOT NULL DEFAULT '0.0';
ALTER TABLE {set}.announced ALTER COLUMN version SET DEFAULT {version};
COMMENT ON TABLE {set}.announced IS 'rows of ITEMS that are no change of a row: CREATE, statement';

CREATE TABLE IF NOT EXISTS {set}.xml_shape (
  relid oid NOT NULL,
  version int NOT NULL,
  root oid NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  names text[] NOT NULL,
  heads text[] NOT NULL,
  kinds text[] NOT NULL,
  PRIMARY KEY (relid, version)
);
COMMENT ON TABLE {set}.xml_shape IS 'how rows of each version of a captured table are written as XML';

-- Tables of the set, of which the documented ones are views: no pattern of tables means them.
CREATE TABLE IF NOT EXISTS {set}.cols_table (
  attname name, owner name, atttypid oid, attlen smallint, attnotnull bool, attnum smallint
);
CREATE TABLE IF NOT EXISTS {set}.current_tables (relname name);
CREATE TABLE IF NOT EXISTS {set}.debug_table (repl_key bigint, line varchar(255));
CREATE TABLE IF NOT EXISTS {set}.longs_table (repl_key bigint PRIMARY KEY, content text);

CREATE SEQUENCE IF NOT EXISTS {sequence} AS bigint MINVALUE 1 MAXVALUE 1000000000 CYCLE;
COMMENT ON SEQUENCE {sequence} IS {comment};
