-- Keys in cloud key management services: two more kinds of signers.

COMMENT ON COLUMN submitter.signer IS 'Kind of signer that announced it: keystore, raw_key, json_rpc, clef, http, aws_kms, gcp_kms.';
