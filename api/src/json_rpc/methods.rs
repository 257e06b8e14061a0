//! Which methods there are, and what becomes of a call.

/// Calls of this method store something.
pub(super) const SEND: &str = "eth_sendTransaction";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    ChainId,
    NetVersion,
    ClientVersion,
    Accounts,
    SendTransaction,
    TransactionByHash,
    TransactionReceipt,
    TransactionCount,
    GaplessTransaction,
}

/// What a call costs the node. Executions have a queue of their own, so that they do not delay reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Read,
    Execution,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Own(Own),
    /// To a node, unchanged.
    Passed(&'static str, Work),
    /// Why not.
    Refused(&'static str),
}

const OWN: [(&str, Own); 10] = [
    ("eth_chainId", Own::ChainId),
    ("net_version", Own::NetVersion),
    ("web3_clientVersion", Own::ClientVersion),
    ("eth_accounts", Own::Accounts),
    ("eth_requestAccounts", Own::Accounts),
    (SEND, Own::SendTransaction),
    ("eth_getTransactionByHash", Own::TransactionByHash),
    ("eth_getTransactionReceipt", Own::TransactionReceipt),
    ("eth_getTransactionCount", Own::TransactionCount),
    ("gapless_getTransaction", Own::GaplessTransaction),
];

const PASSED: [(&str, Work); 28] = [
    ("eth_blobBaseFee", Work::Read),
    ("eth_blockNumber", Work::Read),
    ("eth_call", Work::Execution),
    ("eth_createAccessList", Work::Execution),
    ("eth_estimateGas", Work::Execution),
    ("eth_feeHistory", Work::Read),
    ("eth_gasPrice", Work::Read),
    ("eth_getBalance", Work::Read),
    ("eth_getBlockByHash", Work::Read),
    ("eth_getBlockByNumber", Work::Read),
    ("eth_getBlockReceipts", Work::Execution),
    ("eth_getBlockTransactionCountByHash", Work::Read),
    ("eth_getBlockTransactionCountByNumber", Work::Read),
    ("eth_getCode", Work::Read),
    ("eth_getLogs", Work::Execution),
    ("eth_getProof", Work::Execution),
    ("eth_getStorageAt", Work::Read),
    ("eth_getTransactionByBlockHashAndIndex", Work::Read),
    ("eth_getTransactionByBlockNumberAndIndex", Work::Read),
    ("eth_getUncleByBlockHashAndIndex", Work::Read),
    ("eth_getUncleByBlockNumberAndIndex", Work::Read),
    ("eth_getUncleCountByBlockHash", Work::Read),
    ("eth_getUncleCountByBlockNumber", Work::Read),
    ("eth_maxPriorityFeePerGas", Work::Read),
    ("eth_protocolVersion", Work::Read),
    ("eth_syncing", Work::Read),
    ("net_listening", Work::Read),
    ("web3_sha3", Work::Read),
];

/// By prefix; the first that fits.
const REFUSED: [(&str, &str); 12] = [
    ("eth_sendRawTransaction", "Gapless signs itself and manages the nonces; use eth_sendTransaction"),
    ("eth_sign", "Gapless signs nothing but the transactions it sends; use eth_sendTransaction"),
    ("wallet_", "this is not a wallet; use eth_sendTransaction"),
    ("personal_", "Gapless holds the keys itself; use eth_sendTransaction with a key of the API"),
    ("debug_", "not offered; ask a node directly"),
    ("trace_", "not offered; ask a node directly"),
    ("admin_", "not offered; ask a node directly"),
    ("txpool_", "not offered; ask a node directly"),
    ("miner_", "not offered; ask a node directly"),
    ("eth_subscribe", "needs one node; poll eth_blockNumber and eth_getLogs, or use GET /api/v1/events"),
    ("eth_newFilter", "needs one node; use eth_getLogs"),
    ("eth_new", "needs one node; poll eth_blockNumber"),
];

impl Method {
    pub(super) fn of(name: &str) -> Method {
        if let Some((_, own)) = OWN.iter().find(|(known, _)| *known == name) {
            return Method::Own(*own);
        }
        if let Some((known, work)) = PASSED.iter().find(|(known, _)| *known == name) {
            return Method::Passed(known, *work);
        }
        let refused = REFUSED.iter().find(|(prefix, _)| name.starts_with(prefix));
        Method::Refused(refused.map_or("there is no such method here", |(_, reason)| reason))
    }

    /// For metrics: one of a fixed list.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Method::Own(own) => OWN.iter().find(|(_, known)| known == own).map_or("other", |(name, _)| name),
            Method::Passed(name, _) => name,
            Method::Refused(_) => "other",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_methods_reach_a_node() {
        assert_eq!(Method::of("eth_call"), Method::Passed("eth_call", Work::Execution));
        assert_eq!(Method::of("eth_sendTransaction"), Method::Own(Own::SendTransaction));
        for refused in [
            "eth_sendRawTransaction",
            "eth_sendRawTransactionConditional",
            "wallet_sendTransaction",
            "personal_unlockAccount",
            "eth_sign",
            "eth_signTransaction",
            "eth_signTypedData_v4",
            "debug_traceCall",
            "admin_peers",
            "evm_mine",
            "eth_newFilter",
            "eth_subscribe",
            "",
            "ETH_CALL",
        ] {
            assert!(matches!(Method::of(refused), Method::Refused(_)), "{refused}");
        }
    }

    #[test]
    fn no_method_is_listed_twice() {
        let mut names: Vec<&str> =
            OWN.iter().map(|(name, _)| *name).chain(PASSED.iter().map(|(name, _)| *name)).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    }
}
