//! Additional rows that are not part of the measured work.

use anyhow::Result;
use sqlx::PgPool;

use crate::bed::{CHAIN_ID, Key};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ballast {
    None,
    /// This many queued intents behind the measured ones, in the same queues.
    Queued(u64),
    /// This many finished intents with their attempts, on another chain, which the audit does not check.
    Finished(u64),
}

impl Ballast {
    pub(crate) fn is_queued(self) -> bool {
        matches!(self, Ballast::Queued(_))
    }

    pub(crate) async fn put(self, db: &PgPool, keys: &[Key]) -> Result<()> {
        let submitters: Vec<Vec<u8>> = keys.iter().map(|key| key.address().as_bytes().to_vec()).collect();
        match self {
            Ballast::None => return Ok(()),
            Ballast::Queued(rows) => queued(db, &submitters, i64::try_from(rows)?).await?,
            Ballast::Finished(rows) => finished(db, &submitters, i64::try_from(rows)?).await?,
        }
        sqlx::query("VACUUM ANALYZE").execute(db).await?;
        Ok(())
    }
}

async fn queued(db: &PgPool, submitters: &[Vec<u8>], rows: i64) -> Result<()> {
    sqlx::query(
        r#"INSERT INTO managed_tx (tx_id, chain_id, submitter, request_id, payload, payload_hash)
           SELECT gen_random_uuid(), $1, a.address, 'ballast-' || n,
                  jsonb_build_object('to', '0x' || encode(a.address, 'hex'), 'value', '0x1', 'data', '0x', 'gasLimit', '0x5208', 'type', 'eip1559'),
                  decode(md5(n::TEXT) || md5(n::TEXT), 'hex')
           FROM generate_series(1, $3) AS n
           JOIN unnest($2::BYTEA[]) WITH ORDINALITY AS a (address, ord) ON a.ord = n % cardinality($2) + 1"#,
    )
    .bind(i64::try_from(CHAIN_ID)?)
    .bind(submitters)
    .bind(rows)
    .execute(db)
    .await?;
    Ok(())
}

async fn finished(db: &PgPool, submitters: &[Vec<u8>], rows: i64) -> Result<()> {
    sqlx::query(
        r#"WITH done AS (
               INSERT INTO managed_tx
                   (tx_id, chain_id, submitter, request_id, payload, payload_hash, state, nonce, tx_hash, receipt, block_number,
                    block_hash, submit_attempts, prepared_at, confirmed_at, finished_at, fencing_token)
               SELECT gen_random_uuid(), $1, a.address, 'ballast-' || n,
                      jsonb_build_object('to', '0x' || encode(a.address, 'hex'), 'value', '0x1', 'data', '0x', 'type', 'eip1559'),
                      decode(md5(n::TEXT) || md5(n::TEXT), 'hex'), 'CONFIRMED', n / cardinality($2),
                      decode(md5(n::TEXT) || md5('h' || n), 'hex'), '{"succeeded":true}', n, decode(md5('b' || n) || md5(n::TEXT), 'hex'),
                      1, clock_timestamp(), clock_timestamp(), clock_timestamp(), 1
               FROM generate_series(1, $3) AS n
               JOIN unnest($2::BYTEA[]) WITH ORDINALITY AS a (address, ord) ON a.ord = n % cardinality($2) + 1
               RETURNING tx_id, chain_id, submitter, nonce, tx_hash)
           INSERT INTO tx_attempt
               (attempt_id, tx_id, ordinal, chain_id, submitter, nonce, kind, raw_tx, tx_hash, gas_params, first_sent_at, last_sent_at,
                last_outcome, fencing_token)
           SELECT gen_random_uuid(), tx_id, 1, chain_id, submitter, nonce, 'ORIGINAL', decode(repeat('ab', 115), 'hex'), tx_hash,
                  '{}', clock_timestamp(), clock_timestamp(), 'accepted', 1
           FROM done"#,
    )
    .bind(i64::try_from(CHAIN_ID)? + 1)
    .bind(submitters)
    .bind(rows)
    .execute(db)
    .await?;
    Ok(())
}
