#!/usr/bin/env bash
# Shows the plans of the statements that look for work, claim it and read it, on a database as it is. They are read from
# the sources, run with the submitters of that database, and taken back. The claim locks free leases for a moment.
#   bench/profile/plans.sh "$DATABASE_URL"
set -euo pipefail
cd "$(dirname "$0")/../.."
url=${1:?the URL of a database}

statement() { # name, file: the SQL that begins with "-- name", up to the quote that ends it
  awk -v name="\"-- $1" 'index($0, name) { on = 1; sub(/.*"--/, "--") }
    on { if (match($0, /"/)) { print substr($0, 1, RSTART - 1); exit } print }' "shared/store/src/$2"
}
explain() { # name, file, arguments
  echo "== $1"
  { echo "BEGIN;"
    echo "PREPARE looked_at AS"; statement "$1" "$2"; echo ";"
    echo "EXPLAIN (ANALYZE, BUFFERS) EXECUTE looked_at($3);"
    echo "ROLLBACK; DEALLOCATE looked_at;"
  } | psql "$url" -X -q -A -t -v ON_ERROR_STOP=1
}

literal() { psql "$url" -X -q -A -t -c "SELECT quote_literal($1::TEXT)"; }
chains=$(literal "(SELECT array_agg(chain_id) FROM (SELECT chain_id FROM submitter ORDER BY 1, submitter LIMIT 500) s)")
addresses=$(literal "(SELECT array_agg(submitter) FROM (SELECT submitter FROM submitter ORDER BY chain_id, 1 LIMIT 500) s)")
limits=$(literal "(SELECT array_agg(16) FROM (SELECT 1 FROM submitter LIMIT 500) s)")

explain find_work fleet.rs 1.0
explain claim lease.rs "$chains, $addresses, 'nobody', 10.0, 1.0"
explain load_submitters load.rs "$chains, $addresses"
explain load_open load.rs "$chains, $addresses"
explain queue_heads queue.rs "$chains, $addresses, $limits"
