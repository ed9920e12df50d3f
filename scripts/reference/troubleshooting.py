"""docs/troubleshooting.md is played: what a heading speaks of is brought about, then the commands below it are run.

It happens to the shop of docs/first-hour.md, set up and not yet run, and to one run, from its first copy to its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from scripts.reference.first_hour import PAGE as FIRST_HOUR
from scripts.reference.first_hour import ROOT, Fence, fences

PAGE = ROOT / "docs/troubleshooting.md"

BEGIN = """
export SHOP_URL=postgresql://penstock@/shop COPY_URL=postgresql://penstock@/copy
createdb shop && psql -q -d shop -f shop.sql -f source.sql
createdb copy && psql -q -d copy -f target.sql
penstock setup
"""
# A session that goes on holding its locks until it is ended.
HOLD = """
psql -q -d copy -c "SET application_name = 'nightly report'" -c BEGIN -c "{sql}" -c "SELECT pg_sleep(600)" \
  > /dev/null 2>&1 &
until psql -At -d copy -c "SELECT 1 FROM pg_stat_activity WHERE query ~ '^SELECT pg_sleep'
  AND application_name = 'nightly report'" | grep -q 1; do sleep 0.1; done
"""
RELEASE = """
psql -q -At -d copy -c "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
  WHERE application_name = 'nightly report'"
"""
AWAIT = """
until grep -q "{words}" run.log; do sleep 0.1; done
"""
FULL = """
psql -q -d copy -c "CREATE FUNCTION no_room() RETURNS trigger LANGUAGE plpgsql AS \\$\\$ BEGIN
    RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = 'disk_full'; END \\$\\$" \
  -c "CREATE TRIGGER no_room BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION no_room()" \
  -c "ALTER TABLE orders ENABLE ALWAYS TRIGGER no_room"
"""

SCENES: Mapping[str, str] = {
    "The first copy is slow": HOLD.format(sql="LOCK TABLE orders IN SHARE MODE")
    + "penstock run > run.log 2>&1 & echo $! > run.pid\n",
    "Lag grows": RELEASE
    + AWAIT.format(words="up to date")
    + HOLD.format(sql="UPDATE orders SET state = 'held' WHERE id = 1")
    + "psql -q -d shop -c \"UPDATE orders SET state = 'paid' WHERE id <= 300\"\n",
    "Source and target differ": RELEASE
    + """
until psql -At -d copy -c "SELECT state FROM orders WHERE id = 300" | grep -q paid; do sleep 0.1; done
psql -q -d copy -c "DELETE FROM orders WHERE id IN (11, 12)"
""",
    "Transactions are in the error queue": """
psql -q -d copy -c "INSERT INTO customer VALUES (101, 'by hand', '101@example.com')"
psql -q -d shop -c "INSERT INTO customer VALUES (101, 'Ada', 'ada@example.com')"
""",
    "The target's disk is full": FULL + 'psql -q -d shop -c "INSERT INTO orders (customer, price) VALUES (1, 2.50)"\n',
    "The page, or status, shows aborted": "kill -KILL $(cat run.pid)\n",
    "The run ends": """
cp pipeline.yaml pipeline.keep
echo "  retry_s: 0" >> pipeline.yaml
export COPY_URL=postgresql://penstock@/copy?port=1
""",
    "It does not start": """
mv pipeline.keep pipeline.yaml
export COPY_URL=postgresql://penstock@/copy
""",
    "The log grows, and the source's disk fills up": """
psql -q -d shop -c "UPDATE orders SET state = 'sent' WHERE id <= 3000"
""",
}


def script(page: str) -> list[Fence]:
    """The blocks of the page, with those of the tutorial that come before, and a scene where a heading has one."""
    played = [fence for fence in fences(FIRST_HOUR.read_text(encoding="utf-8")) if fence.title]
    played.append(Fence("sh", "", BEGIN, 0, 0))
    blocks = fences(page)
    for heading in re.finditer(r"^## (.+)$", page, re.M):
        played += [block for block in blocks if block.start < heading.start()]
        blocks = [block for block in blocks if block.start > heading.start()]
        if scene := SCENES.get(heading[1]):
            played.append(Fence("sh", "", scene, 0, 0))
    return played + blocks
