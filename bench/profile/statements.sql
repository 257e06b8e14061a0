-- The statements that take a server longest, by the name they begin with. Needs pg_stat_statements:
--   psql "$DATABASE_URL" -f bench/profile/statements.sql
SELECT split_part(ltrim(split_part(s.query, E'\n', 1), '- '), ':', 1) AS statement,
       sum(s.calls) AS calls,
       round(sum(s.total_exec_time)::NUMERIC, 1) AS total_ms,
       round((sum(s.total_exec_time) / sum(s.calls))::NUMERIC, 3) AS mean_ms,
       round((sum(s.rows)::NUMERIC / sum(s.calls)), 1) AS rows_per_call,
       sum(s.shared_blks_hit + s.shared_blks_read) / sum(s.calls) AS blocks_per_call,
       pg_size_pretty(sum(s.wal_bytes)) AS wal
FROM pg_stat_statements s
JOIN pg_database d ON d.oid = s.dbid
WHERE d.datname = current_database()
GROUP BY 1
ORDER BY sum(s.total_exec_time) DESC
LIMIT 25;
