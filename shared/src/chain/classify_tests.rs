//! Every wording that nodes are known to use, and the traps between them.

use super::*;

/// One row per wording: class, client, code, text. The end-to-end tests have a worker meet each of them.
const SAID: &str = include_str!("node_answers.tsv");

/// What nodes, by the table, are known to say: the class, the code and the text.
fn said() -> Vec<(SubmitClass, i64, &'static str)> {
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [class, _client, code, text] = cells[..] else { panic!("four cells, not `{line}`") };
        let class = ALL.into_iter().find(|known| known.as_str() == class);
        (class.unwrap_or_else(|| panic!("no class has the name in `{line}`")), code.parse().unwrap(), text)
    };
    SAID.lines().skip(1).map(row).collect()
}

const ALL: [SubmitClass; 12] = [
    AlreadyKnown,
    NonceTooLow,
    NonceTooHigh,
    ReplacementUnderpriced,
    Underpriced,
    InsufficientFunds,
    PoolFull,
    DelegatedLimit,
    FeeCapExceeded,
    Fatal,
    Unavailable,
    Unknown,
];

#[test]
fn every_class_and_every_client_has_a_row() {
    for class in ALL {
        assert!(said().iter().any(|(of, _, _)| *of == class), "nothing is said of {}", class.as_str());
    }
    for (class, _) in WORDINGS {
        assert!(ALL.contains(class), "{} is missing in the list", class.as_str());
    }
    for client in ["geth", "reth", "nethermind", "besu", "erigon", "arbitrum", "zksync"] {
        assert!(SAID.lines().any(|line| line.split('\t').nth(1) == Some(client)), "{client}");
    }
}

/// A wording of the classifier that no row has is one that nobody has seen it recognise.
#[test]
fn every_wording_of_the_classifier_is_in_a_row_of_its_class() {
    for (class, wordings) in WORDINGS {
        for wording in *wordings {
            let mut of_class = said().into_iter().filter(|(of, _, _)| of == class);
            let found = of_class.any(|(_, _, text)| wording.found_in(&text.to_lowercase()));
            assert!(found, "{}: {wording:?}", class.as_str());
        }
    }
}

#[test]
fn every_known_wording_has_its_class_however_it_is_wrapped() {
    let none = ErrorPatterns::default();
    for (class, code, text) in said() {
        let wrapped = [text.to_string(), text.to_uppercase(), text.to_lowercase()];
        for said in wrapped {
            assert_eq!(classify(code, &said, None, &none), class, "`{said}` ({code})");
        }
        // A whole-text wording and an empty one are what a prefix would change.
        if !["Invalid", "", "502", "503", "408"].contains(&text) {
            let said = format!("RPC-7: upstream said \"{text}\" (request 42)");
            assert_eq!(classify(code, &said, None, &none), class, "`{said}` ({code})");
        }
    }
}

#[test]
fn a_revert_reason_that_quotes_another_wording_stays_fatal() {
    let none = ErrorPatterns::default();
    for (_, _, text) in said() {
        let said = format!("execution reverted: {text}");
        assert_eq!(classify(3, &said, None, &none), Fatal, "`{said}`");
    }
}

#[test]
fn data_is_asked_only_when_the_message_says_nothing() {
    let none = ErrorPatterns::default();
    assert_eq!(classify(-32603, "Internal error", Some("Nonce too low"), &none), NonceTooLow);
    assert_eq!(classify(-32603, "already known", Some("nonce too low"), &none), AlreadyKnown);
    assert_eq!(classify(-32005, "", Some("exceeds block gas limit"), &none), Fatal);
}

#[test]
fn configured_wordings_extend_and_correct_the_table() {
    let config = |name: &str, text: &str| BTreeMap::from([(name.to_owned(), vec![text.to_owned()])]);
    let extra = ErrorPatterns::from_config(&config("nonce_too_low", " Stale Nonce ")).unwrap();
    assert_eq!(classify(-32000, "rejected: STALE NONCE 5", None, &extra), NonceTooLow);
    assert_eq!(classify(-32000, "rejected", None, &extra), Unknown);
    let corrects = ErrorPatterns::from_config(&config("unavailable", "transaction invalid")).unwrap();
    assert_eq!(classify(-32000, "transaction invalid", None, &corrects), Unavailable);
}

#[test]
fn a_class_that_does_not_exist_is_refused_by_name() {
    for name in ["nonce_to_low", "unknown", "accepted", "NonceTooLow"] {
        let error =
            ErrorPatterns::from_config(&BTreeMap::from([(name.to_owned(), vec!["x".into()])])).unwrap_err();
        assert!(error.contains(name) && error.contains("nonce_too_low"), "{error}");
    }
    let empty = BTreeMap::from([("fatal".to_owned(), vec![" ".to_owned()])]);
    assert!(ErrorPatterns::from_config(&empty).is_err());
}
