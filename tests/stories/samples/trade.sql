-- A wholesaler, with the names and the structure of the Northwind sample database; made-up rows.

CREATE TABLE categories (
  category_id smallint PRIMARY KEY,
  category_name varchar(15) NOT NULL,
  description text,
  picture bytea
);
CREATE TABLE customer_demographics (
  customer_type_id bpchar PRIMARY KEY,
  customer_desc text
);
CREATE TABLE customers (
  customer_id char(5) PRIMARY KEY,
  company_name varchar(40) NOT NULL,
  contact_name varchar(30),
  contact_title varchar(30),
  address varchar(60),
  city varchar(15),
  region varchar(15),
  postal_code varchar(10),
  country varchar(15),
  phone varchar(24),
  fax varchar(24)
);
CREATE TABLE customer_customer_demo (
  customer_id char(5) NOT NULL REFERENCES customers,
  customer_type_id bpchar NOT NULL REFERENCES customer_demographics,
  PRIMARY KEY (customer_id, customer_type_id)
);
CREATE TABLE employees (
  employee_id smallint PRIMARY KEY,
  last_name varchar(20) NOT NULL,
  first_name varchar(10) NOT NULL,
  title varchar(30),
  birth_date date,
  hire_date date,
  photo bytea,
  notes text,
  reports_to smallint REFERENCES employees,
  photo_path varchar(255)
);
CREATE TABLE suppliers (
  supplier_id smallint PRIMARY KEY,
  company_name varchar(40) NOT NULL,
  country varchar(15),
  homepage text
);
CREATE TABLE products (
  product_id smallint PRIMARY KEY,
  product_name varchar(40) NOT NULL,
  supplier_id smallint REFERENCES suppliers,
  category_id smallint REFERENCES categories,
  quantity_per_unit varchar(20),
  unit_price real,
  units_in_stock smallint,
  units_on_order smallint,
  reorder_level smallint,
  discontinued integer NOT NULL
);
CREATE TABLE region (
  region_id smallint PRIMARY KEY,
  region_description bpchar NOT NULL
);
CREATE TABLE territories (
  territory_id varchar(20) PRIMARY KEY,
  territory_description bpchar NOT NULL,
  region_id smallint NOT NULL REFERENCES region
);
CREATE TABLE employee_territories (
  employee_id smallint NOT NULL REFERENCES employees,
  territory_id varchar(20) NOT NULL REFERENCES territories,
  PRIMARY KEY (employee_id, territory_id)
);
CREATE TABLE shippers (
  shipper_id smallint PRIMARY KEY,
  company_name varchar(40) NOT NULL,
  phone varchar(24)
);
CREATE TABLE orders (
  order_id smallint PRIMARY KEY,
  customer_id char(5) REFERENCES customers,
  employee_id smallint REFERENCES employees,
  order_date date,
  required_date date,
  shipped_date date,
  ship_via smallint REFERENCES shippers,
  freight real,
  ship_name varchar(40)
);
CREATE TABLE order_details (
  order_id smallint NOT NULL REFERENCES orders,
  product_id smallint NOT NULL REFERENCES products,
  unit_price real NOT NULL,
  quantity smallint NOT NULL,
  discount real NOT NULL,
  PRIMARY KEY (order_id, product_id)
);
-- It refers to nothing, and has no key.
CREATE TABLE us_states (
  state_id smallint NOT NULL,
  state_name varchar(100),
  state_abbr varchar(2)
);

INSERT INTO categories
  SELECT n, 'Category ' || n, 'Goods of kind ' || n, decode(repeat(lpad(to_hex(n * 31 % 256), 2, '0'), n * 400), 'hex')
  FROM generate_series(1, 8) AS n;
INSERT INTO customer_demographics VALUES ('large', 'buys by the ship'), ('small', NULL);
INSERT INTO customers
  SELECT upper(chr(97 + n % 26) || chr(97 + n / 26) || CASE WHEN n % 5 > 0 THEN 'X' || n % 10 ELSE '' END),
    'Company ' || n, 'Señora ' || n, CASE WHEN n % 2 = 0 THEN 'Owner' END, n || ' Rue de l''Église', 'Town ' || n % 20,
    CASE WHEN n % 4 = 0 THEN '' END, 'P' || n, 'Land ' || n % 9, '(' || n || ') 555', NULL
  FROM generate_series(0, 90) AS n;
INSERT INTO customer_customer_demo
  SELECT customer_id, CASE WHEN phone < '(5' THEN 'large' ELSE 'small' END FROM customers WHERE contact_title IS NOT NULL;
INSERT INTO employees
  SELECT n, 'Family ' || n, 'Given ' || n, 'Clerk', '1960-02-29'::date + n * 400, '1992-05-01'::date + n,
    decode(repeat('00ff', 500), 'hex'), E'Speaks\t' || n || E' languages\\and\nnever says "no".', CASE WHEN n > 1 THEN n / 2 END, NULL
  FROM generate_series(1, 9) AS n;
INSERT INTO suppliers SELECT n, 'Supplier ' || n, 'Land ' || n % 5, CASE WHEN n % 6 = 0 THEN '#http://s.example#' END
  FROM generate_series(1, 29) AS n;
INSERT INTO products
  SELECT n, 'Product ' || n, 1 + n % 29, 1 + n % 8, n || ' boxes', (n * 1.1 + 0.05)::real, n % 50, n % 7 * 10, n % 4 * 5, (n % 10 = 0)::int
  FROM generate_series(1, 77) AS n;
INSERT INTO region VALUES (1, 'Eastern'), (2, 'Western'), (3, 'Northern'), (4, 'Southern');
INSERT INTO territories SELECT lpad(n::text, 5, '0'), rpad('Territory ' || n, 50), 1 + n % 4 FROM generate_series(1, 53) AS n;
INSERT INTO employee_territories SELECT 1 + n % 9, lpad(n::text, 5, '0') FROM generate_series(1, 49) AS n;
INSERT INTO shippers SELECT n, 'Shipper ' || n, NULL FROM generate_series(1, 6) AS n;
INSERT INTO orders
  SELECT 10248 + n, (SELECT customer_id FROM customers ORDER BY customer_id OFFSET n % 91 LIMIT 1), 1 + n % 9,
    '1996-07-04'::date + n, '1996-08-01'::date + n, CASE WHEN n < 800 THEN '1996-07-10'::date + n END, 1 + n % 3,
    (n * 0.37)::real, 'Ship ' || n
  FROM generate_series(0, 829) AS n;
INSERT INTO order_details
  SELECT o.order_id, p.product_id, p.unit_price, 1 + o.order_id % 60, (o.order_id % 4 * 0.05)::real
  FROM orders AS o, LATERAL (SELECT DISTINCT 1 + (o.order_id * 3 + k * 17) % 77 AS id FROM generate_series(1, 3) AS k) AS d
    JOIN products AS p ON p.product_id = d.id;
INSERT INTO us_states SELECT n, 'State ' || n, chr(65 + n % 26) || chr(65 + n / 26) FROM generate_series(1, 51) AS n;
