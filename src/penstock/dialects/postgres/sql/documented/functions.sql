-- Functions of the documented tables that make XML of a value. They read no table, so everybody may call them: the view
-- ITEMS does so with the rights of whoever reads it. What they name is looked up here and now, not when they are called:
-- readers have no right to the schema of the set.

-- How a text has to be written: 0 as it is, 1 as CDATA, 2 as base64. TAB and LF come through XML as they are; CR and
-- other control characters do not, nor does what is no character of XML.
CREATE OR REPLACE FUNCTION {needs_prot}(content text) RETURNS int
LANGUAGE sql IMMUTABLE
RETURN CASE
  WHEN content IS NULL THEN 0
  WHEN strpos(content, ']]>') > 0 OR content COLLATE "C" ~ '[\u0001-\u0008\u000b-\u001f\u007f-\u009f\ufffe\uffff]' THEN 2
  WHEN strpos(content, '<') > 0 OR strpos(content, '&') > 0 THEN 1
  ELSE 0 END;

-- A name as the value of an attribute in double quotes.
CREATE OR REPLACE FUNCTION {set}.attribute(name text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN name !~ '[&<"\t\n\r]' THEN name
  ELSE replace(replace(replace(replace(replace(replace(name, '&', '&amp;'), '<', '&lt;'), '"', '&quot;'),
    E'\t', '&#x9;'), E'\n', '&#xA;'), E'\r', '&#xD;') END;

CREATE OR REPLACE FUNCTION {col2xml_null}(name text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN '<col name="' || {set}.attribute(name) || '" type="null"/>';

CREATE OR REPLACE FUNCTION {col2xml_cdata}(name text, content text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN '<col name="' || {set}.attribute(name) || '"><![CDATA[' || content || ']]></col>';

CREATE OR REPLACE FUNCTION {col2xml_base64}(name text, content bytea) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN '<col name="' || {set}.attribute(name) || '" encoding="base64">'
  || replace(encode(content, 'base64'), E'\n', '') || '</col>';

CREATE OR REPLACE FUNCTION {col2xml_base64}(name text, content text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN {col2xml_base64}(name, convert_to(content, 'UTF8'));

CREATE OR REPLACE FUNCTION {col2xml}(name text, content text) RETURNS text
LANGUAGE sql IMMUTABLE
RETURN CASE WHEN content IS NULL THEN {col2xml_null}(name) ELSE CASE {needs_prot}(content)
  WHEN 0 THEN '<col name="' || {set}.attribute(name) || '">' || content || '</col>'
  WHEN 1 THEN {col2xml_cdata}(name, content)
  ELSE {col2xml_base64}(name, content) END END;

GRANT EXECUTE ON FUNCTION {needs_prot}(text), {col2xml_null}(text), {col2xml_cdata}(text, text),
  {col2xml_base64}(text, bytea), {col2xml_base64}(text, text), {col2xml}(text, text), {set}.attribute(text) TO PUBLIC;
