-- A day at the wholesaler's. Each block is a transaction, as its programs commit them.

-- A new customer orders, and the goods are reserved.
BEGIN;
INSERT INTO customers (customer_id, company_name, city) VALUES ('NEWCO', 'Neue Firma & Söhne', 'Köln');
INSERT INTO orders (order_id, customer_id, employee_id, order_date, freight) VALUES (11078, 'NEWCO', 3, '1998-05-07', 0.1);
INSERT INTO order_details
  SELECT 11078, product_id, unit_price, 10, 0.15 FROM products WHERE product_id IN (1, 2, 3);
UPDATE products SET units_in_stock = units_in_stock - 1, units_on_order = units_on_order + 10 WHERE product_id IN (1, 2, 3);
COMMIT;

-- The order is changed before it is sent: one line more, one less, another quantity; and sent.
BEGIN;
DELETE FROM order_details WHERE order_id = 11078 AND product_id = 2;
INSERT INTO order_details SELECT 11078, 50, unit_price, 1, 0 FROM products WHERE product_id = 50;
UPDATE order_details SET quantity = quantity + 5 WHERE order_id = 11078 AND product_id = 3;
COMMIT;
BEGIN;
UPDATE orders SET shipped_date = '1998-05-08', ship_via = 2, freight = freight * 3 WHERE order_id = 11078;
COMMIT;

-- All prices rise by what no real can hold exactly.
BEGIN;
UPDATE products SET unit_price = unit_price * 1.1 WHERE discontinued = 0;
COMMIT;

-- Prices that no shop would have, though the type has them.
BEGIN;
INSERT INTO products (product_id, product_name, unit_price, discontinued) VALUES
  (100, 'not a number', 'NaN', 1), (101, 'without end', 'Infinity', 1), (102, 'tiny', '1e-45', 1), (103, 'below nothing', '-0', 1);
COMMIT;
BEGIN;
UPDATE products SET unit_price = 0 WHERE product_id = 103;
UPDATE products SET product_name = 'still not a number' WHERE unit_price = 'NaN';
COMMIT;

-- A customer gets another key, which its orders and its kind follow by hand.
BEGIN;
INSERT INTO customers SELECT 'AB', company_name, contact_name, contact_title, address, city, region, postal_code, country, phone, fax
  FROM customers WHERE customer_id = 'AA';
UPDATE orders SET customer_id = 'AB' WHERE customer_id = 'AA';
UPDATE customer_customer_demo SET customer_id = 'AB' WHERE customer_id = 'AA';
DELETE FROM customers WHERE customer_id = 'AA';
COMMIT;

-- The head leaves. The next takes over, and everybody reports to somebody else; the keys of two employees change places.
BEGIN;
UPDATE employees SET reports_to = 2 WHERE reports_to = 1;
UPDATE employees SET reports_to = NULL WHERE employee_id = 2;
UPDATE orders SET employee_id = 2 WHERE employee_id = 1;
DELETE FROM employee_territories WHERE employee_id = 1;
DELETE FROM employees WHERE employee_id = 1;
COMMIT;
BEGIN;
INSERT INTO employees SELECT 20, last_name, first_name, title, birth_date, hire_date, photo, notes, reports_to FROM employees WHERE employee_id = 9;
UPDATE orders SET employee_id = 20 WHERE employee_id = 9;
UPDATE employee_territories SET employee_id = 20 WHERE employee_id = 9;
DELETE FROM employees WHERE employee_id = 9;
COMMIT;

-- An old customer asks to be forgotten, with all orders.
BEGIN;
DELETE FROM order_details WHERE order_id IN (SELECT order_id FROM orders WHERE customer_id = 'BA');
DELETE FROM orders WHERE customer_id = 'BA';
DELETE FROM customer_customer_demo WHERE customer_id = 'BA';
DELETE FROM customers WHERE customer_id = 'BA';
COMMIT;

-- A picture is replaced, one is taken away, and the states, which have no key, are corrected.
BEGIN;
UPDATE categories SET picture = '\x00' || picture WHERE category_id = 1;
UPDATE categories SET picture = NULL WHERE category_id = 2;
UPDATE us_states SET state_name = upper(state_name) WHERE state_id < 10;
DELETE FROM us_states WHERE state_id = 51;
INSERT INTO us_states VALUES (50, 'State 50', NULL);
COMMIT;

-- Territories are spelled with blanks at the end, and move to another region.
BEGIN;
UPDATE territories SET territory_description = rtrim(territory_description) WHERE region_id = 1;
UPDATE territories SET region_id = 2 WHERE region_id = 1;
DELETE FROM region WHERE region_id = 1;
COMMIT;
