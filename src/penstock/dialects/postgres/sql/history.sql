-- Which history the log of {set} is, and who reads it.

CREATE TABLE IF NOT EXISTS {set}.identity (
  is_only bool PRIMARY KEY DEFAULT true CHECK (is_only),
  set_id uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid(),
  place text NOT NULL,
  made_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE {set}.identity IS 'drawn once, when the set is made; a set whose place is not where it is was copied';
-- A set of an earlier version that was copied here names none of the tables as they are called here.
INSERT INTO {set}.identity (place)
  SELECT CASE WHEN bool_and(k.oid IS NULL) THEN 'copied from another place' ELSE {place} END
  FROM {set}.captured c LEFT JOIN (pg_catalog.pg_class k JOIN pg_catalog.pg_namespace n
      ON n.oid OPERATOR(pg_catalog.=) k.relnamespace)
    ON k.oid OPERATOR(pg_catalog.=) c.relid
    AND k.relname::pg_catalog.text OPERATOR(pg_catalog.=) (c.definition OPERATOR(pg_catalog.->>) 'name')
    AND n.nspname::pg_catalog.text OPERATOR(pg_catalog.=) (c.definition OPERATOR(pg_catalog.->>) 'schema')
ON CONFLICT DO NOTHING;

-- Another history has a tick with another mark at the same position, or none.
ALTER TABLE {set}.tick ADD COLUMN IF NOT EXISTS mark uuid NOT NULL DEFAULT pg_catalog.gen_random_uuid();

CREATE TABLE IF NOT EXISTS {set}.consumer (
  id text PRIMARY KEY,
  name text NOT NULL,
  target text,
  target_place text,
  scn bigint NOT NULL,
  seen_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
COMMENT ON TABLE {set}.consumer IS 'readers of the log, which is freed up to the one that is furthest behind';

-- They are their first owner's, as the rest of the set is, whoever brings it up to date.
DO $$
DECLARE
  owner pg_catalog.oid := (SELECT relowner FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) '{set}.tick'::regclass);
BEGIN
  IF EXISTS (SELECT FROM pg_catalog.pg_class WHERE oid OPERATOR(pg_catalog.=) '{set}.consumer'::regclass
      AND relowner OPERATOR(pg_catalog.<>) owner) THEN
    EXECUTE pg_catalog.format('ALTER TABLE {set}.identity OWNER TO %s', owner::pg_catalog.regrole);
    EXECUTE pg_catalog.format('ALTER TABLE {set}.consumer OWNER TO %s', owner::pg_catalog.regrole);
  END IF;
END $$;
