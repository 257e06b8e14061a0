#!/usr/bin/env bash
# Records where a worker or an API spends its time while a benchmark runs.
#   bench/profile/record.sh gapless-worker 10 engine     → profile/gapless-worker.{data,txt}, and .svg with inferno
# Needs `perf`; a flame graph also `inferno-collapse-perf` and `inferno-flamegraph` (cargo install inferno).
set -euo pipefail
cd "$(dirname "$0")/../.."

program=${1:-gapless-worker} seconds=${2:-10} benchmark=${3:-engine}
command -v perf >/dev/null || { echo "there is no perf on this machine" >&2; exit 1; }
out=profile
mkdir -p "$out"

target/release/gapless-bench --only "$benchmark" --submitters 1000 --each 60 >"$out/$benchmark.txt" 2>&1 &
bench=$!
trap 'kill "$bench" 2>/dev/null || true' EXIT

# The process that a benchmark started, not one of somebody else.
mine() {
  for pid in $(pgrep -x "$(echo "$program" | cut -c1-15)"); do
    [ "$(ps -o ppid= -p "$pid" | tr -d ' ')" = "$bench" ] && echo "$pid" && return
  done
}
until pid=$(mine) && [ -n "$pid" ]; do
  kill -0 "$bench" 2>/dev/null || { echo "the benchmark ended before a $program was seen" >&2; exit 1; }
  sleep 0.2
done
# Under way. Each level of `ingest` has an API of its own for three seconds: there, ask for two.
if [ "$program" = gapless-api ]; then sleep 0.6; else sleep 2; fi

perf record -F 499 -g --call-graph dwarf,16384 -p "$pid" -o "$out/$program.data" -- sleep "$seconds"
perf report -i "$out/$program.data" --no-inline --no-children --percent-limit 0.5 -g none --stdio >"$out/$program.txt" 2>/dev/null
if command -v inferno-collapse-perf >/dev/null; then
  perf script -i "$out/$program.data" --no-inline | inferno-collapse-perf | inferno-flamegraph >"$out/$program.svg"
fi
ls "$out"
