"""Clients of the HTTP endpoints, with nothing but an HTTP library: a shop's stock.

Several buyers take pieces of the same articles at once. Each reads an article, and writes it back
only if nobody else has meanwhile (If-Match); in the end no piece was sold twice.

    python web_client.py [FOLDER]           a cluster of its own
    python web_client.py URL ADMIN_TOKEN    one that runs, with its HTTP front
"""

from __future__ import annotations

import contextlib
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

import stelae

ARTICLES = [f"article-{number}" for number in range(5)]
STOCK, BUYERS, PURCHASES = 40, 4, 25


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, str]]:
    """The URL of a small cluster, and its admin's token."""
    spec = {
        "cluster": "shop",
        "data_dir": str(folder),
        "ray": {"address": "local", "num_cpus": 4},
        "masters": {"count": 1},
        "tservers": {"count": 2, "memory": "128MiB"},
        "backups": {"count": 2},
        "serve": {"host": "127.0.0.1", "port": 0},  # 0: any that is free
        "spark": None,
    }
    with stelae.launch(spec) as db:
        yield str(db.http_url), (folder / "admin-token").read_text().strip()


def buy(http: httpx.Client, article: str) -> bool:
    """Take one piece, if there is one left; whoever comes in between makes us look again."""
    while True:
        found = http.get(f"/rows/{article}").raise_for_status()
        left = found.json()["stock"]
        if left == 0:
            return False
        answer = http.put(
            f"/rows/{article}",
            json={"stock": left - 1},
            headers={
                "If-Match": found.headers["ETag"],
                "Idempotency-Key": str(uuid.uuid4()),  # so that it may be sent again
            },
        )
        if answer.status_code != httpx.codes.PRECONDITION_FAILED:
            answer.raise_for_status()
            return True


def sell(url: str, token: str) -> None:
    """Make the table, let the buyers in, and count."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=f"{url}/v1", headers=headers, timeout=60.0) as admin:
        columns = [
            {"name": "article", "type": "string", "nullable": False},
            {"name": "stock", "type": "int64"},
        ]
        admin.post(
            "/tables", json={"name": "stock", "key": ["article"], "columns": columns}
        ).raise_for_status()
        rows = [{"article": article, "stock": STOCK} for article in ARTICLES]
        admin.post("/tables/stock/rows:write", json={"rows": rows}).raise_for_status()
        made = admin.post("/tokens", json={"name": "buyers", "role": "write"}).raise_for_status()
        buyers = {"Authorization": f"Bearer {made.json()['token']}"}  # may not drop tables

        def shop(number: int) -> int:
            with httpx.Client(
                base_url=f"{url}/v1/tables/stock", headers=buyers, timeout=60.0
            ) as http:
                return sum(buy(http, ARTICLES[(number + n) % 5]) for n in range(PURCHASES))

        with ThreadPoolExecutor(BUYERS) as pool:
            sold = sum(pool.map(shop, range(BUYERS)))

        left, page = 0, {"page_rows": 2}  # scans in pages; any replica can go on with a token
        while page:
            found = admin.post("/tables/stock/rows:scan", json=page).raise_for_status().json()
            left += sum(row["stock"] for row in found["rows"])
            page = {"page_rows": 2, "after": found["next"]} if found["next"] else {}
    assert sold + left == STOCK * len(ARTICLES), "no piece was sold twice"
    print(f"{sold} pieces sold by {BUYERS} buyers at once, {left} are left")
    with stelae.connect(url, token=token) as remote:  # the same, with the Python API over HTTP
        remote.delete_table("stock")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sell(sys.argv[1].rstrip("/"), sys.argv[2])
    else:
        place = Path(sys.argv[1] if len(sys.argv) > 1 else ".stelae/shop").absolute()
        with cluster(place) as (where, secret):
            sell(where, secret)
