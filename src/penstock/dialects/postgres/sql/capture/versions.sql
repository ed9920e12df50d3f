-- DDL in the stream: what a new version of a table changes of the one before it is logged as an operation of its own,
-- 'A', in the transaction that notes the version. With an event trigger that is the DDL's own; otherwise it is that of
-- the first writer, or of a run that has found it: before any row of the new version in any case. It counts as no
-- change, since most readers leave it out. A table that is renamed or dropped has it under its last version before that,
-- and so under the name that the target knows.

-- What of a table is followed by apply: its columns by their numbers, which they keep when they are renamed; its checks,
-- and its indexes that are not unique, in the words of ../fittings.sql.
CREATE OR REPLACE FUNCTION {set}.shape(rel oid) RETURNS jsonb
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET quote_all_identifiers = off AS $$
  SELECT jsonb_build_object('schema', n.nspname, 'name', c.relname, 'is_partitioned', c.relkind = 'p',
    'key', (SELECT to_jsonb(i.indkey::int2[]) FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
    -- The tables that are altered with it.
    'children', (WITH RECURSIVE below AS (
        SELECT h.inhrelid FROM pg_inherits h WHERE h.inhparent = c.oid AND c.relkind = 'r'
        UNION SELECT h.inhrelid FROM below b JOIN pg_inherits h ON h.inhparent = b.inhrelid
      ) SELECT coalesce(jsonb_agg(jsonb_build_array(m.nspname, k.relname) ORDER BY m.nspname, k.relname), '[]')
      FROM below b JOIN pg_class k ON k.oid = b.inhrelid JOIN pg_namespace m ON m.oid = k.relnamespace),
    'columns', (SELECT coalesce(jsonb_object_agg(a.attnum, jsonb_build_object('name', a.attname,
      'type', format_type(a.atttypid, a.atttypmod),
      'collation', CASE WHEN a.attcollation <> t.typcollation THEN a.attcollation::regcollation::text END,
      'is_nullable', NOT a.attnotnull, 'is_identity', a.attidentity <> '', 'is_generated', a.attgenerated <> '',
      'default', pg_get_expr(d.adbin, d.adrelid),
      -- What rows have that were there before the column was, where the database has worked it out once.
      'filled', CASE WHEN a.atthasmissing THEN (a.attmissingval::text::text[])[1] END)), '{{}}')
      FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
      LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
      WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    'defaults', (SELECT coalesce(jsonb_object_agg(f.name, f.looks), '{{}}') FROM {set}.fittings(c.oid) f WHERE f.kind = 'default'),
    'fittings', (SELECT coalesce(jsonb_agg(jsonb_build_object('kind', f.kind, 'name', f.name, 'is_valid', f.is_valid,
      'columns', f.columns, 'has_row', f.has_row, 'looks', f.looks, 'definition', CASE f.kind
        WHEN 'check' THEN regexp_replace(pg_get_constraintdef(f.objid), ' NOT VALID$', '')
        ELSE substr(pg_get_indexdef(f.objid), length(format('CREATE INDEX %I ON %s%I.%I ', f.name,
          CASE c.relkind WHEN 'p' THEN 'ONLY ' ELSE '' END, n.nspname, c.relname)) + 1) END) ORDER BY f.kind, f.name), '[]')
      FROM {set}.fittings(c.oid) f WHERE f.kind <> 'default'))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = rel
$$;

DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = '{set}.captured'::regclass AND attname = 'shape') THEN
    ALTER TABLE {set}.captured ADD COLUMN shape jsonb;
    -- Of earlier versions it is not known any more what they looked like.
    UPDATE {set}.captured c SET shape = {set}.shape(c.relid) FROM {set}.captured_now n
    WHERE c.relid = n.relid AND c.version = n.version AND c.fingerprint = {set}.fingerprint(c.relid);
  END IF;
END $$;
COMMENT ON COLUMN {set}.captured.shape IS 'its columns by their numbers, to tell what the next version has changed';

CREATE OR REPLACE FUNCTION {set}.note_version() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  last record;
  known jsonb;
  is_at_once bool := coalesce(current_setting('penstock.rebuilding', true), '') = 'at once';
BEGIN
  NEW.shape := {set}.shape(NEW.relid);
  IF NEW.root <> NEW.relid OR NEW.mode = 'detached' THEN
    RETURN NEW;
  END IF;
  SELECT c.version, c.shape INTO last FROM {set}.captured c WHERE c.relid = NEW.relid ORDER BY c.version DESC LIMIT 1;
  -- Of versions that an earlier set has noted it is not known what more there was.
  known := CASE WHEN last.shape ? 'fittings' THEN NEW.shape ELSE NEW.shape - 'fittings' - 'defaults' END;
  -- Who inherits from it changes nothing of a table itself.
  IF last.shape - 'children' <> known - 'children' THEN
    INSERT INTO {set}.log (relid, version, op, before, changes) VALUES (NEW.relid,
      CASE WHEN last.shape -> 'name' = NEW.shape -> 'name' AND last.shape -> 'schema' = NEW.shape -> 'schema'
        THEN NEW.version ELSE last.version END,
      'A', json_build_object(
      -- Only an event trigger is asked during the statement itself; of others it is some statement that came later.
      'statement', CASE WHEN is_at_once THEN current_query() END,
      -- What hindered the event trigger, such as a lock, has left the statement untold.
      'is_missed', CASE WHEN NOT is_at_once AND EXISTS (SELECT FROM pg_event_trigger e
        WHERE e.evtfoid = to_regproc('{set}.on_ddl') AND e.evtevent = 'ddl_command_end' AND e.evtenabled <> 'D') THEN 'true' END,
      'was_version', last.version::text, 'is_version', NEW.version::text,
      'was', last.shape::text, 'is', known::text), 0);
  END IF;
  RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER note_version BEFORE INSERT ON {set}.captured
  FOR EACH ROW EXECUTE FUNCTION {set}.note_version();
-- Event triggers work with triggers switched off, and so may those who write.
ALTER TABLE {set}.captured ENABLE ALWAYS TRIGGER note_version;

-- Tables that are gone, of these or of all: nobody can write to them any more, so whenever it is noticed, it stands behind
-- their last row. Whoever finds a table gone that is noted already does nothing.
CREATE OR REPLACE FUNCTION {set}.note_drops(relids oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  gone record;
BEGIN
  FOR gone IN
    SELECT c.* FROM (SELECT DISTINCT ON (relid) * FROM {set}.captured ORDER BY relid, version DESC) c
    WHERE c.root = c.relid AND c.mode <> 'detached' AND (relids IS NULL OR c.relid = ANY (relids))
      AND NOT EXISTS (SELECT FROM pg_class k WHERE k.oid = c.relid)
    ORDER BY c.relid
  LOOP
    IF pg_try_advisory_xact_lock({changing}, gone.relid::int) THEN
      INSERT INTO {set}.log (relid, version, op, before, changes) VALUES (gone.relid, gone.version, 'A', json_build_object(
        'statement', CASE WHEN relids IS NOT NULL THEN current_query() END,
        'was_version', gone.version::text, 'was', gone.shape::text, 'is', NULL), 0);
      INSERT INTO {set}.captured (relid, definition, mode, root, fingerprint, is_built)
      VALUES (gone.relid, gone.definition, 'detached', gone.root, gone.fingerprint, true);
    END IF;
  END LOOP;
END $$;
