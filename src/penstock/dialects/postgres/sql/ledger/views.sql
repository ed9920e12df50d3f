-- Views of the ledger for people and their tools, named as Oracle's are, with the columns that mean something here and
-- a few of our own. None of them shows the value of a row.
-- They are replaced, not dropped, for others may have views that read them. A version that takes a column away, or puts
-- one between others, has to drop that view in its upgrade.

CREATE OR REPLACE VIEW penstock.dba_apply AS
SELECT p.name AS apply_name, p.source AS source_database, 'YES' AS apply_captured, p.settings ->> 'tag' AS apply_tag,
  p.settings ->> 'precommit' AS precommit_handler, p.status, p.status_at AS status_change_time,
  coalesce(p.error, p.reason) AS error_message,
  greatest(p.high_watermark, (SELECT max(a.highest_scn) FROM penstock.applied a WHERE a.process = p.name))
    AS max_applied_message_number,
  p.settings ->> 'message' AS message_handler, p.settings ->> 'ddl' AS ddl_handler
FROM penstock.process p;
COMMENT ON VIEW penstock.dba_apply IS 'the apply processes';

CREATE OR REPLACE VIEW penstock.dba_apply_parameters AS
SELECT p.name AS apply_name, upper(f.key) AS parameter, coalesce(s.value, f.value) AS value,
  CASE WHEN s.name IS NULL THEN 'NO' ELSE 'YES' END AS set_by_user, s.set_by, s.set_at
FROM penstock.process p CROSS JOIN jsonb_each_text(p.settings -> 'parameters') f
  LEFT JOIN penstock.parameter s ON s.process = p.name AND s.name = f.key;
COMMENT ON VIEW penstock.dba_apply_parameters IS 'the parameters: as the file of the last run has them, or as they were set since';

CREATE OR REPLACE VIEW penstock.dba_apply_dml_handlers AS
SELECT p.name AS apply_name, h.object_owner, h.object_name, h.operation_name, h.handler_type, h.handler_name
FROM penstock.process p CROSS JOIN jsonb_to_recordset(p.settings -> 'handlers')
  h (object_owner text, object_name text, operation_name text, handler_type text, handler_name text);
COMMENT ON VIEW penstock.dba_apply_dml_handlers IS 'handlers of changes, of each operation';

CREATE OR REPLACE VIEW penstock.dba_streams_stmts AS
SELECT p.name AS apply_name, h.object_owner, h.object_name, h.operation_name, h.handler_name,
  s.number AS execution_sequence, s.statement
FROM penstock.process p CROSS JOIN jsonb_to_recordset(p.settings -> 'handlers')
  h (object_owner text, object_name text, operation_name text, handler_name text, statements jsonb)
  CROSS JOIN jsonb_array_elements_text(h.statements) WITH ORDINALITY s (statement, number);
COMMENT ON VIEW penstock.dba_streams_stmts IS 'the statements of statement handlers, in their order';

CREATE OR REPLACE VIEW penstock.dba_apply_conflict_columns AS
SELECT p.name AS apply_name, c.object_owner, c.object_name, c.operation_name, c.row_is, c.method_name,
  c.resolution_column, l.column_name
FROM penstock.process p CROSS JOIN jsonb_to_recordset(p.settings -> 'conflicts')
  c (object_owner text, object_name text, operation_name text, row_is text, method_name text,
    resolution_column text, columns jsonb)
  LEFT JOIN jsonb_array_elements_text(c.columns) l (column_name) ON true;
COMMENT ON VIEW penstock.dba_apply_conflict_columns IS 'how conflicts are resolved; column_name is null where the list is all columns';

CREATE OR REPLACE VIEW penstock.dba_apply_key_columns AS
SELECT p.name AS apply_name, k.object_owner, k.object_name, c.column_name, c.column_position
FROM penstock.process p CROSS JOIN jsonb_to_recordset(p.settings -> 'keys')
  k (object_owner text, object_name text, columns jsonb)
  CROSS JOIN jsonb_array_elements_text(k.columns) WITH ORDINALITY c (column_name, column_position);
COMMENT ON VIEW penstock.dba_apply_key_columns IS 'substitute keys';

CREATE OR REPLACE VIEW penstock.dba_apply_table_columns AS
SELECT p.name AS apply_name, c.object_owner, c.object_name, c.column_name, c.compare_old_on_delete,
  c.compare_old_on_update
FROM penstock.process p CROSS JOIN jsonb_to_recordset(p.settings -> 'compared')
  c (object_owner text, object_name text, column_name text, compare_old_on_delete text, compare_old_on_update text);
COMMENT ON VIEW penstock.dba_apply_table_columns IS 'columns of which the file says when their old values are compared';

CREATE OR REPLACE VIEW penstock.dba_apply_value_dependencies AS
SELECT p.name AS apply_name, d.dependency_name, d.object_owner, d.object_name, c.column_name, c.column_position
FROM penstock.process p CROSS JOIN jsonb_to_recordset(p.settings -> 'value_dependencies')
  d (dependency_name text, object_owner text, object_name text, columns jsonb)
  CROSS JOIN jsonb_array_elements_text(d.columns) WITH ORDINALITY c (column_name, column_position);
COMMENT ON VIEW penstock.dba_apply_value_dependencies IS 'value dependencies that the file names';

CREATE OR REPLACE VIEW penstock.dba_apply_object_dependencies AS
SELECT p.name AS apply_name, d.object_owner, d.object_name, d.parent_object_owner, d.parent_object_name
FROM penstock.process p CROSS JOIN jsonb_to_recordset(p.settings -> 'object_dependencies')
  d (object_owner text, object_name text, parent_object_owner text, parent_object_name text);
COMMENT ON VIEW penstock.dba_apply_object_dependencies IS 'tables whose changes follow those of another';

CREATE OR REPLACE VIEW penstock.dba_apply_instantiated_objects AS
SELECT i.process AS apply_name, p.source AS source_database, i.schema_name AS object_owner,
  i.table_name AS object_name, 'TABLE' AS object_type, i.scn AS instantiation_scn, i.state
FROM penstock.instantiation i JOIN penstock.process p ON p.name = i.process;
COMMENT ON VIEW penstock.dba_apply_instantiated_objects IS 'tables that are copied, or being copied, by their names here, and as of which position';

CREATE OR REPLACE VIEW penstock.dba_apply_progress AS
SELECT p.name AS apply_name, p.source AS source_database, p.low_watermark AS applied_message_number,
  coalesce(p.anchor_scn, p.low_watermark) AS oldest_message_number, p.applied_at AS apply_time,
  p.consistent_at AS applied_message_create_time
FROM penstock.process p;
COMMENT ON VIEW penstock.dba_apply_progress IS 'up to where all is applied, and from where on the source must keep its changes';

CREATE OR REPLACE VIEW penstock.dba_apply_error AS
SELECT e.process AS apply_name, p.source AS source_database, e.process || '.' || e.id AS local_transaction_id,
  e.txn_id AS source_transaction_id, e.commit_scn AS source_commit_scn, e.committed_at AS source_commit_time,
  e.message_number, e.message_count, e.error_number, e.error_code, e.error_message, e.recipient AS recipient_name,
  e.created_at AS error_creation_time, e.is_held, e.on_hold_at, e.on_hold_by, e.on_hold_note
FROM penstock.error e JOIN penstock.process p ON p.name = e.process;
COMMENT ON VIEW penstock.dba_apply_error IS 'the error queue: local_transaction_id is what penstock errors takes';

CREATE OR REPLACE VIEW penstock.dba_apply_error_messages AS
SELECT c.process AS apply_name, e.process || '.' || e.id AS local_transaction_id,
  e.process || '.' || e.id || '.' || c.message_number AS message_id, c.message_number AS transaction_message_number,
  c.schema_name AS object_owner, c.table_name AS object_name, upper(c.op) AS operation,
  CASE WHEN c.message_number = e.message_number THEN e.error_number END AS error_number,
  CASE WHEN c.message_number = e.message_number THEN e.error_message END AS error_message
FROM penstock.error_change c JOIN penstock.error e ON (e.process, e.id) = (c.process, c.error_id);
COMMENT ON VIEW penstock.dba_apply_error_messages IS 'the changes of transactions in the error queue, without their values';

CREATE OR REPLACE VIEW penstock."v$streams_apply_coordinator" AS
SELECT p.name AS apply_name,
  CASE
    WHEN r.startup_time IS NULL THEN CASE p.status WHEN 'ABORTED' THEN 'ABORTING' ELSE 'STOPPED' END
    WHEN EXISTS (SELECT FROM penstock.stop_request s WHERE s.process = p.name) THEN 'SHUTTING DOWN CLEANLY'
    WHEN EXISTS (SELECT FROM penstock.instantiation i WHERE i.process = p.name AND i.state = 'COPYING')
      THEN 'INITIALIZING'
    WHEN l.active > 0 THEN 'APPLYING'
    ELSE 'IDLE'
  END AS state,
  coalesce(l.transactions, 0) AS total_applied, coalesce(l.errors, 0) AS total_errors,
  coalesce(l.conflicts, 0) AS total_conflicts, coalesce(l.resolved, 0) AS total_resolved,
  coalesce(l.held, 0) AS total_held,
  p.low_watermark AS lwm_message_number, p.applied_at AS lwm_time, p.consistent_at AS lwm_message_create_time,
  greatest(p.high_watermark, (SELECT max(a.highest_scn) FROM penstock.applied a WHERE a.process = p.name))
    AS hwm_message_number,
  r.startup_time, coalesce(l.active, 0) AS active_server_count
FROM penstock.process p
  LEFT JOIN LATERAL (
    SELECT sum(l.transactions + l.errors + l.held)::bigint AS transactions, sum(l.errors)::bigint AS errors,
      sum(l.conflicts)::bigint AS conflicts, sum(l.resolved)::bigint AS resolved, sum(l.held)::bigint AS held,
      (SELECT count(*) FROM pg_catalog.pg_stat_activity a
        WHERE a.datname = current_database() AND a.application_name = left('penstock ' || p.name || ' apply', 63)
          AND a.xact_start IS NOT NULL) AS active
    FROM penstock.lane l WHERE l.process = p.name
  ) l ON true
  LEFT JOIN LATERAL (
    SELECT p.status_at AS startup_time FROM pg_catalog.pg_locks k
    WHERE k.locktype = 'advisory' AND k.objsubid = 2 AND k.granted
      AND k.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())
      AND k.classid::bigint = hashtext('penstock')::bigint & 4294967295
      AND k.objid::bigint = hashtext(p.name)::bigint & 4294967295
    LIMIT 1
  ) r ON true;
COMMENT ON VIEW penstock."v$streams_apply_coordinator" IS 'what each process is at, and its counters, which go on from run to run';

CREATE OR REPLACE VIEW penstock."v$streams_apply_server" AS
SELECT l.process AS apply_name, l.lane AS server_id, l.transactions + l.errors + l.held AS total_assigned,
  l.changes AS total_messages_applied, l.errors AS total_errors, l.conflicts AS total_conflicts,
  l.resolved AS total_resolved, l.held AS total_held
FROM penstock.lane l;
COMMENT ON VIEW penstock."v$streams_apply_server" IS 'what each apply server has done so far, in all runs';
