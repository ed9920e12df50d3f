-- Messages: what an application says to the target in the midst of a transaction, and is no row of a table. One is a
-- row of the log, operation 'M', in the transaction that sends it; so it is delivered if that commits, and at its place.
-- It counts as no change, since most readers leave it out.

-- It has no rights of its own, so those alone can send who may write to the log: the owner of the set, and functions of
-- the owner's that others may call.
CREATE OR REPLACE FUNCTION {set}.emit_message(kind text, content text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  -- Errors and logs tell of the kind: it is a name, as a table's, and no place for what the message says.
  IF kind IS NULL OR length(kind) NOT BETWEEN 1 AND 63 THEN
    RAISE EXCEPTION 'the kind of a message must be of 1 to 63 characters' USING ERRCODE = 'invalid_parameter_value',
      HINT = 'The first argument says what sort of message it is; the second one is the message.';
  END IF;
  INSERT INTO {set}.log (relid, version, op, before, changes)
  VALUES (0, 0, 'M', json_build_object('kind', kind, 'content', content), 0);
END $$;
COMMENT ON FUNCTION {set}.emit_message(text, text) IS 'sends a message to the message handler of the pipeline, in this transaction';
