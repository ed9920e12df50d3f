-- Whether ITEMS has all that its readers are to get. Where it has not, it refuses to be read: nobody would miss what is gone.

CREATE OR REPLACE FUNCTION {set}.is_kept() RETURNS bool
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  state {set}.read_to := (SELECT r FROM {set}.read_to r);
BEGIN
  IF NOT EXISTS (SELECT FROM {set}.consumer WHERE id = 'documented') THEN
    RAISE EXCEPTION 'rows of % may be missing from TRANS_KEY % on: since % the log is kept for its readers no more', {items_name},
        coalesce(state.given_up_from::text, '(unknown)'), coalesce(state.given_up_at::text, '(unknown)')
      USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'Run `penstock setup`: the rows begin anew, with a CREATE for each table. Then bring what the tables contain to all receivers again.';
  END IF;
  -- Numbers of transactions are those of another server, or are given out a second time.
  IF (SELECT i.place FROM {set}.identity i) IS DISTINCT FROM {place} OR pg_snapshot_xmax(pg_current_snapshot()) < state.below THEN
    RAISE EXCEPTION 'rows of % may be missing: this database was restored or copied, and the log is that of another one, or of a later time', {items_name}
      USING ERRCODE = 'object_not_in_prerequisite_state',
        HINT = 'Run `penstock teardown` and `penstock setup`: the rows begin anew, with a CREATE for each table. Then bring what the tables contain to all receivers again.';
  END IF;
  RETURN true;
END $$;

-- Whoever removes the readers from the consumers of the log: a command, a run whose `capture.log` says so, or a person.
CREATE OR REPLACE FUNCTION {set}.on_given_up() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE {set}.read_to SET given_up_at = date_trunc('second', clock_timestamp()),
    given_up_from = least({set}.oldest_unread(), pg_snapshot_xmin(pg_current_snapshot()));
  DELETE FROM {set}.announced;
  RETURN NULL;
END $$;
-- No command empties the log, but a person may whose disk is full.
CREATE OR REPLACE FUNCTION {set}.on_log_emptied() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM {set}.consumer WHERE id = 'documented';
  RETURN NULL;
END $$;

-- In a block: CREATE TRIGGER would wait for those who write, only to find that there is nothing to do.
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{set}.consumer'::regclass AND tgname = 'on_given_up') THEN
    CREATE TRIGGER on_given_up AFTER DELETE ON {set}.consumer FOR EACH ROW WHEN (OLD.id = 'documented')
      EXECUTE FUNCTION {set}.on_given_up();
  END IF;
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = '{set}.log'::regclass AND tgname = 'on_log_emptied') THEN
    CREATE TRIGGER on_log_emptied BEFORE TRUNCATE ON {set}.log FOR EACH STATEMENT EXECUTE FUNCTION {set}.on_log_emptied();
  END IF;
END $$;
