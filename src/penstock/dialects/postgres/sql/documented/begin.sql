-- Readers of ITEMS are a consumer of the log. Where they were not, or are no more, they begin at the present position.

-- Tables are announced to them anew: what they have had of a table does not go on from where they were.
CREATE OR REPLACE FUNCTION {set}.announce_anew(rel oid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
BEGIN
  PERFORM {set}.announce('CREATE', rel);
  UPDATE {set}.watched SET create_seq = currval({seq}) WHERE relid = rel AND is_watched;
END $$;

DO $$
DECLARE
  one record;
BEGIN
  -- Nobody frees the log in the meantime.
  LOCK TABLE {set}.consumer IN SHARE ROW EXCLUSIVE MODE;
  UPDATE {set}.consumer SET name = {items_name}, target = {schema_name} WHERE id = 'documented';
  IF NOT FOUND THEN
    INSERT INTO {set}.consumer (id, name, target, scn) SELECT 'documented', {items_name}, {schema_name}, max(scn) FROM {set}.tick;
    UPDATE {set}.read_to SET given_up_at = NULL, given_up_from = NULL;
    DELETE FROM {set}.watch;
    FOR one IN SELECT w.* FROM {set}.watched w JOIN pg_class c ON c.oid = w.relid WHERE w.is_watched ORDER BY w.repl_key LOOP
      PERFORM {set}.open_watch(one.relid, one.actions), {set}.announce_anew(one.relid);
    END LOOP;
  END IF;
  -- Another version of the source's tables: rows that wait keep the one that they were captured in.
  FOR one IN SELECT w.* FROM {set}.watched w JOIN pg_class c ON c.oid = w.relid JOIN {set}.watch v ON v.relid = w.relid
    WHERE w.is_watched AND v.until_seq IS NULL AND v.version <> {version} ORDER BY w.repl_key
  LOOP
    PERFORM {set}.change_watch(one.relid, one.actions), {set}.announce_anew(one.relid);
  END LOOP;
END $$;
