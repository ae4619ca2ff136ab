#!/usr/bin/env bash
# A cluster's life on the command line: up, grow, lose a server, shrink, check, down.
#
#   bash operator.sh [FOLDER]
set -euo pipefail
folder=${1:-.stelae/operated}
mkdir -p "$folder"
cd "$folder"
trap 'stelae down >/dev/null 2>&1 || true' EXIT

file() { # file TSERVERS BACKUPS: what the cluster shall be
  cat >cluster.yaml <<YAML
apiVersion: stelae/v1
kind: Cluster
cluster: operated
ray: {address: local, num_cpus: 4}
data_dir: data
masters: {count: 1}
tservers: {count: $1, memory: 128MiB}
backups: {count: $2}
serve: null
spark: null
YAML
}

echo "--- a small cluster, and a table of ten thousand rows"
file 2 2
stelae up
python - <<'PYTHON'
import pyarrow as pa
import pyarrow.parquet as pq

import stelae

with stelae.connect("data") as db:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("value", pa.float64())])
    rows = pa.table({"id": range(10_000), "value": [n / 3 for n in range(10_000)]}, schema=schema)
    db.create_table("points", schema, key="id", partition=stelae.hash_partition("id", 4)).upsert(rows)
PYTHON
stelae status

echo "--- it grows while it serves: first what would be done, then it is done"
file 4 3
stelae apply --dry-run
stelae apply

echo "--- a tablet server dies; its tablets are served elsewhere"
pid=$(stelae status --json | python -c '
import json, sys
print(next(s["pid"] for s in json.load(sys.stdin)["servers"] if s["kind"] == "tserver"))')
kill -9 "$pid"
stelae check --wait 60

echo "--- it shrinks: servers are emptied before they end"
file 3 2
stelae apply
stelae server list
stelae check --checksums

echo "--- down, and up again: everything is on disk"
stelae down
stelae up
stelae table list
python -c '
import stelae
with stelae.connect("data") as db:
    assert db.table("points").count() == 10_000
    print("all rows are there")'
