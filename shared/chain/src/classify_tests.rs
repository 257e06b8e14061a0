//! Every known node message is classified correctly.

use super::*;

/// One row per message: class, client, code, text. The end-to-end tests run a worker against each of them.
const ROWS: &str = include_str!("node_answers.tsv");

/// The rows of the table: class, code and text.
fn rows() -> Vec<(SubmitClass, i64, &'static str)> {
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [class, _client, code, text] = cells[..] else { panic!("four cells, not `{line}`") };
        let class = SubmitClass::ALL.into_iter().find(|known| known.as_str() == class);
        (class.unwrap_or_else(|| panic!("unknown class in `{line}`")), code.parse().unwrap(), text)
    };
    ROWS.lines().skip(1).map(row).collect()
}

#[test]
fn every_class_and_every_client_has_a_row() {
    for class in SubmitClass::ALL.into_iter().filter(|class| *class != Accepted) {
        assert!(rows().iter().any(|(of, _, _)| *of == class), "no row for {}", class.as_str());
    }
    for (class, _) in PATTERNS {
        assert!(SubmitClass::ALL.contains(class), "{} is missing in the list", class.as_str());
    }
    for client in ["geth", "reth", "nethermind", "besu", "erigon", "arbitrum", "zksync"] {
        assert!(ROWS.lines().any(|line| line.split('\t').nth(1) == Some(client)), "{client}");
    }
}

/// Every pattern must be covered by a row; otherwise it is untested.
#[test]
fn every_pattern_matches_a_row_of_its_class() {
    for (class, wordings) in PATTERNS {
        for wording in *wordings {
            let mut of_class = rows().into_iter().filter(|(of, _, _)| of == class);
            let found = of_class.any(|(_, _, text)| wording.found_in(&text.to_lowercase()));
            assert!(found, "{}: {wording:?}", class.as_str());
        }
    }
}

#[test]
fn every_known_message_has_its_class_with_prefix_and_suffix() {
    let none = ErrorPatterns::default();
    for (class, code, text) in rows() {
        let wrapped = [text.to_string(), text.to_uppercase(), text.to_lowercase()];
        for message in wrapped {
            assert_eq!(classify(code, &message, None, &none), class, "`{message}` ({code})");
        }
        // Whole-text patterns and the empty text do not match with a prefix.
        if !["Invalid", "", "502", "503", "408"].contains(&text) {
            let message = format!("RPC-7: upstream said \"{text}\" (request 42)");
            assert_eq!(classify(code, &message, None, &none), class, "`{message}` ({code})");
        }
    }
}

#[test]
fn a_revert_reason_that_contains_another_pattern_is_fatal() {
    let none = ErrorPatterns::default();
    for (_, _, text) in rows() {
        let message = format!("execution reverted: {text}");
        assert_eq!(classify(3, &message, None, &none), Fatal, "`{message}`");
    }
}

#[test]
fn data_is_used_only_if_the_message_matches_nothing() {
    let none = ErrorPatterns::default();
    assert_eq!(classify(-32603, "Internal error", Some("Nonce too low"), &none), NonceTooLow);
    assert_eq!(classify(-32603, "already known", Some("nonce too low"), &none), AlreadyKnown);
    assert_eq!(classify(-32005, "", Some("exceeds block gas limit"), &none), Fatal);
}

#[test]
fn configured_patterns_extend_and_override_the_table() {
    let config = |name: &str, text: &str| BTreeMap::from([(name.to_owned(), vec![text.to_owned()])]);
    let extra = ErrorPatterns::from_config(&config("nonce_too_low", " Stale Nonce ")).unwrap();
    assert_eq!(classify(-32000, "rejected: STALE NONCE 5", None, &extra), NonceTooLow);
    assert_eq!(classify(-32000, "rejected", None, &extra), Unknown);
    let corrects = ErrorPatterns::from_config(&config("unavailable", "transaction invalid")).unwrap();
    assert_eq!(classify(-32000, "transaction invalid", None, &corrects), Unavailable);
}

#[test]
fn an_unknown_class_is_refused_by_name() {
    for name in ["nonce_to_low", "unknown", "accepted", "NonceTooLow"] {
        let error =
            ErrorPatterns::from_config(&BTreeMap::from([(name.to_owned(), vec!["x".into()])])).unwrap_err();
        assert!(error.contains(name) && error.contains("nonce_too_low"), "{error}");
    }
    let empty = BTreeMap::from([("fatal".to_owned(), vec![" ".to_owned()])]);
    assert!(ErrorPatterns::from_config(&empty).is_err());
}
