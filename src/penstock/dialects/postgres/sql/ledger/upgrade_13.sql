-- Version 13: the view dba_apply names the handler of DDL (views.sql).

COMMENT ON COLUMN penstock.process.settings IS 'what the file of the last run said, as the views show it';
