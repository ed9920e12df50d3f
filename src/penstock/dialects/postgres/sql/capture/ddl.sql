-- DDL on a captured table rebuilds its capture in the same transaction. It is done for its own sake, so that capture is
-- quick again and partitions are watched at once: whatever fails is left to those who write, and to the next run. And it
-- waits for nobody.
-- Event triggers of users hear nothing of it.
CREATE OR REPLACE FUNCTION {set}.rebuild(relids oid[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '100ms'
SET session_replication_role = replica SET penstock.rebuilding = 'at once' AS $$
DECLARE
  touched oid;
BEGIN
  FOR touched IN
    WITH RECURSIVE reached AS (
      -- Only the table that was named is reported, not those that inherit from it.
      SELECT relid, 0 AS level FROM unnest(relids) relid
      UNION SELECT i.inhrelid, p.level + 1 FROM pg_inherits i JOIN reached p ON i.inhparent = p.relid
    ), beside AS (
      SELECT relid, level FROM reached
      -- A table that they refer to is captured otherwise once that may be checked at commit.
      UNION SELECT c.confrelid, 0 FROM pg_constraint c WHERE c.contype = 'f' AND c.conrelid IN (SELECT relid FROM reached)
        AND {set}.fingerprint(c.confrelid) <> (SELECT n.fingerprint FROM {set}.captured n WHERE n.relid = c.confrelid
          ORDER BY n.version DESC LIMIT 1)
      UNION SELECT i.inhparent, 0 FROM pg_inherits i WHERE i.inhrelid = ANY (relids)
      UNION SELECT c.root, 0 FROM {set}.captured_now c WHERE c.relid = ANY (relids)
    )
    SELECT r.root FROM (SELECT {set}.captured_root(b.relid) AS root, max(b.level) AS level
      FROM beside b JOIN pg_class k ON k.oid = b.relid GROUP BY 1) r
    WHERE (SELECT c.mode <> 'detached' FROM {set}.captured c WHERE c.relid = r.root ORDER BY c.version DESC LIMIT 1)
    -- What a table has of a parent cannot be dropped before it is dropped there.
    ORDER BY r.level, r.root
  LOOP
    BEGIN
      IF pg_try_advisory_xact_lock({changing}, touched::int) THEN
        PERFORM {set}.capture_all(touched);
      END IF;
    EXCEPTION WHEN OTHERS THEN
      NULL;
    END;
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION {set}.on_ddl() RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp {pinned} AS $$
DECLARE
  relids oid[];
BEGIN
  IF current_setting('penstock.rebuilding', true) <> '' THEN
    RETURN;
  END IF;
  IF TG_EVENT = 'sql_drop' THEN
    SELECT array_agg(DISTINCT d.objid) INTO relids FROM pg_event_trigger_dropped_objects() d
    WHERE d.classid = 'pg_class'::regclass;
    PERFORM {set}.note_drops(relids);
  ELSE
    SELECT array_agg(DISTINCT coalesce(t.tgrelid, i.indrelid, k.oid)) INTO relids FROM pg_event_trigger_ddl_commands() d
    LEFT JOIN pg_index i ON d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
    LEFT JOIN pg_trigger t ON d.classid = 'pg_trigger'::regclass AND t.oid = d.objid AND NOT starts_with(t.tgname, 'R_penstock_')
    LEFT JOIN pg_class k ON d.classid = 'pg_class'::regclass AND k.oid = d.objid
      OR d.classid = 'pg_type'::regclass AND k.reloftype = d.objid;
  END IF;
  IF EXISTS (SELECT FROM {set}.captured c WHERE c.relid = ANY (relids))
    OR EXISTS (SELECT FROM pg_inherits i WHERE i.inhrelid = ANY (relids))
    OR EXISTS (SELECT FROM pg_constraint k WHERE k.contype = 'f' AND k.conrelid = ANY (relids)) THEN
    PERFORM {set}.rebuild(relids);
  END IF;
EXCEPTION WHEN OTHERS THEN
  NULL;
END $$;

DROP EVENT TRIGGER IF EXISTS {set};
CREATE EVENT TRIGGER {set} ON ddl_command_end EXECUTE FUNCTION {set}.on_ddl();
ALTER EVENT TRIGGER {set} ENABLE ALWAYS;
DROP EVENT TRIGGER IF EXISTS {drop};
CREATE EVENT TRIGGER {drop} ON sql_drop EXECUTE FUNCTION {set}.on_ddl();
ALTER EVENT TRIGGER {drop} ENABLE ALWAYS;
