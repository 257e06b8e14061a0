//! Core scenarios on other node programs than anvil: Gapless relies only on what nodes have in common.
//!
//! The scenarios are functions of the node program. A few of them run on Hardhat in every test run; all of them on all
//! programs with `make test-nodes`. `docs/internals/nodes.md` lists the differences.

mod flow;
mod losses;
mod prices;

use gapless_testkit::{Mining, Node, NodeKind, NodeOptions, StackBuilder};
use serde_json::json;

use crate::stack;

/// Each scenario as a test of the same name; with `ignored` only in `make test-nodes`.
macro_rules! on {
    ($kind:ident: $($module:ident::$scenario:ident),+ $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread")]
        async fn $scenario() {
            super::$module::$scenario(gapless_testkit::NodeKind::$kind).await;
        }
    )+};
    ($kind:ident, ignored: $($module:ident::$scenario:ident),+ $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread")]
        #[ignore = "make test-nodes"]
        async fn $scenario() {
            super::$module::$scenario(gapless_testkit::NodeKind::$kind).await;
        }
    )+};
}

mod hardhat {
    on!(Hardhat:
        flow::a_hundred_creates_at_once_are_a_gapless_sequence,
        flow::what_would_revert_fails_without_a_nonce_and_with_the_reason,
        flow::what_reverts_on_chain_has_failed_with_the_reason,
        losses::a_send_whose_answer_was_lost_is_recognised_as_ours,
    );

    on!(Hardhat, ignored:
        flow::while_the_first_is_unconfirmed_the_second_has_no_nonce,
        flow::every_type_of_transaction_is_mined_as_what_it_is,
        losses::a_worker_killed_at_any_step_leaves_exactly_one_effect,
        losses::a_restarted_worker_goes_on_with_what_waits_in_the_mempool,
        losses::a_lost_answer_is_already_known_when_the_bytes_go_out_again,
        losses::what_was_evicted_from_the_mempool_is_sent_again_as_it_was,
        losses::a_chain_that_began_anew_stops_the_worker,
        losses::a_key_used_outside_is_noticed,
        prices::a_replacement_is_taken_and_mined,
        prices::a_cancelled_transaction_is_replaced_by_a_placeholder,
        prices::more_gas_than_one_transaction_may_have_fails_with_the_reason,
        prices::an_estimate_near_the_limit_of_one_transaction_is_not_lifted_above_it,
        prices::a_submitter_without_funds_waits_until_it_has_some,
    );
}

mod geth {
    on!(Geth, ignored:
        flow::a_hundred_creates_at_once_are_a_gapless_sequence,
        flow::what_would_revert_fails_without_a_nonce_and_with_the_reason,
        flow::what_reverts_on_chain_has_failed_with_the_reason,
        flow::while_the_first_is_unconfirmed_the_second_has_no_nonce,
        flow::every_type_of_transaction_is_mined_as_what_it_is,
        flow::a_finality_tag_of_the_chain_ends_the_waiting,
        losses::a_send_whose_answer_was_lost_is_recognised_as_ours,
        losses::a_worker_killed_at_any_step_leaves_exactly_one_effect,
        losses::a_restarted_worker_goes_on_with_what_waits_in_the_mempool,
        losses::a_lost_answer_is_already_known_when_the_bytes_go_out_again,
        losses::a_node_that_restarts_with_an_empty_mempool_gets_the_same_bytes_again,
        losses::a_key_used_outside_is_noticed,
        prices::a_replacement_is_taken_and_mined,
        prices::a_cancelled_transaction_is_replaced_by_a_placeholder,
        prices::more_gas_than_one_transaction_may_have_fails_with_the_reason,
        prices::an_estimate_near_the_limit_of_one_transaction_is_not_lifted_above_it,
        prices::a_submitter_without_funds_waits_until_it_has_some,
    );
}

/// Anvil has no gas limit per transaction.
mod anvil {
    on!(Anvil, ignored:
        flow::a_hundred_creates_at_once_are_a_gapless_sequence,
        flow::what_would_revert_fails_without_a_nonce_and_with_the_reason,
        flow::what_reverts_on_chain_has_failed_with_the_reason,
        flow::while_the_first_is_unconfirmed_the_second_has_no_nonce,
        flow::every_type_of_transaction_is_mined_as_what_it_is,
        flow::a_finality_tag_of_the_chain_ends_the_waiting,
        losses::a_send_whose_answer_was_lost_is_recognised_as_ours,
        losses::a_worker_killed_at_any_step_leaves_exactly_one_effect,
        losses::a_restarted_worker_goes_on_with_what_waits_in_the_mempool,
        losses::a_lost_answer_is_already_known_when_the_bytes_go_out_again,
        losses::what_was_evicted_from_the_mempool_is_sent_again_as_it_was,
        losses::a_node_that_restarts_with_an_empty_mempool_gets_the_same_bytes_again,
        losses::a_key_used_outside_is_noticed,
        prices::a_replacement_is_taken_and_mined,
        prices::a_cancelled_transaction_is_replaced_by_a_placeholder,
        prices::an_estimate_near_the_limit_of_one_transaction_is_not_lifted_above_it,
        prices::a_submitter_without_funds_waits_until_it_has_some,
    );
}

/// A stack whose chain mines nothing until `Node::release`. Its prices are fixed: geth leaves low tips in the
/// mempool, and the tips of its own account are no reference.
fn held(kind: NodeKind) -> StackBuilder {
    stack()
        .node(kind)
        .mining(Mining::Manual)
        .set("fees.policy", "fixed")
        .set("fees.fixed.max_fee_per_gas", "20000000000")
        .set("fees.fixed.max_priority_fee_per_gas", "1000000000")
}

/// With `CI` set, Hardhat colours its output even in a file, and the port is in that line.
#[tokio::test(flavor = "multi_thread")]
async fn hardhat_is_found_listening_in_colour_and_without() {
    let dir = tempfile::tempdir().unwrap();
    for (name, ci) in [("coloured", "true"), ("plain", "")] {
        let log = dir.path().join(format!("{name}.log"));
        let env = vec![("CI".to_owned(), ci.to_owned())];
        let options = NodeOptions { env, ..NodeOptions::new(4713, Mining::Instant) };
        let node = Node::start_as(NodeKind::Hardhat, options, &log).await;
        assert_eq!(node.rpc("eth_chainId", json!([])).await, "0x1269", "{name}");
        let printed = std::fs::read_to_string(&log).unwrap();
        assert_eq!(printed.contains("\u{1b}[32mStarted"), ci == "true", "{name}: {printed}");
    }
}
