-- Processes of the ledger that a run is alive of: it holds an advisory lock, see PostgresLedger.acquire.
SELECT p.name FROM penstock.process p
WHERE EXISTS (SELECT FROM pg_catalog.pg_locks l
  WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
    AND l.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
    AND l.classid::bigint = hashtext('penstock')::bigint & 4294967295
    AND l.objid::bigint = hashtext(p.name)::bigint & 4294967295)
ORDER BY 1
