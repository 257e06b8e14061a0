//! Runs the functions of `fuzz/` without a fuzzer: on its corpus, and on thousands of deterministic mutations of it.
//! Inputs that a fuzzer found are in the corpus.
#![allow(clippy::unwrap_used)]

use std::panic::catch_unwind;
use std::path::Path;
use std::time::{Duration, Instant};

use gapless_api::fuzz_entry::read_request;
use gapless_chain::fuzz_entry::{read_abi, read_answer, read_payload, read_words};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

const CASES: usize = 5_000;
const LONGEST: usize = 16 << 10;
/// Limit for one input, in a debug build on a busy machine.
const LIMIT: Duration = Duration::from_secs(5);

/// Fragments that have a meaning for one of the parsers.
const PIECES: [&str; 24] = [
    "\"",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "null",
    "0x",
    "-1",
    "1e400",
    "18446744073709551616",
    "\\u0000",
    "\\ud800",
    "é",
    "\0",
    "uint256",
    "(",
    ")",
    "tuple",
    "\"id\":1,",
    "\"result\":",
    "\"error\":{\"data\":",
    "revert 0x",
];

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{name} has no corpus");
    files.into_iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Mutates a text at a few places.
fn change(text: &mut Vec<u8>, others: &[Vec<u8>], rng: &mut StdRng) {
    for _ in 0..rng.random_range(1..6) {
        let at = rng.random_range(0..=text.len());
        let to = rng.random_range(at..=text.len().min(at + 40));
        match rng.random_range(0..7) {
            0 => drop(text.splice(at..to, [])),
            1 => drop(text.splice(at..to, PIECES.choose(rng).unwrap().bytes())),
            2 => drop(text.splice(at..at, PIECES.choose(rng).unwrap().bytes())),
            3 if at < text.len() => text[at] ^= 1 << rng.random_range(0..8),
            4 => {
                let again = text[at..to].repeat(rng.random_range(1..50));
                drop(text.splice(at..at, again));
            }
            5 => {
                drop(text.splice(
                    at..at,
                    PIECES.choose(rng).unwrap().repeat(rng.random_range(1..2_000)).into_bytes(),
                ))
            }
            _ => {
                let other = others.choose(rng).unwrap();
                let from = rng.random_range(0..other.len());
                drop(text.splice(at..to, other[from..].iter().copied()));
            }
        }
    }
    text.truncate(LONGEST);
}

fn try_out(name: &str, read: fn(&[u8])) {
    let seeds = corpus(name);
    let mut rng = StdRng::seed_from_u64(20);
    let changed = (0..CASES).map(|_| {
        let mut text = seeds.choose(&mut rng).unwrap().clone();
        change(&mut text, &seeds, &mut rng);
        text
    });
    for text in seeds.iter().cloned().chain(changed) {
        let begun = Instant::now();
        let survived = catch_unwind(|| read(&text)).is_ok();
        let spelled = || String::from_utf8_lossy(&text).into_owned();
        assert!(survived, "{name} panicked over:\n{}", spelled());
        assert!(begun.elapsed() < LIMIT, "{name} took {:?} over:\n{}", begun.elapsed(), spelled());
    }
}

#[test]
fn any_body_of_a_request_is_read_or_refused() {
    try_out("request", read_request);
}

#[test]
fn any_payload_is_read_or_refused() {
    try_out("payload", read_payload);
}

#[test]
fn any_call_and_any_error_of_a_contract_is_read_or_refused() {
    try_out("abi", read_abi);
}

#[test]
fn any_words_of_a_node_have_a_class() {
    try_out("words", read_words);
}

#[test]
fn any_answer_of_a_node_is_read_or_refused() {
    try_out("answer", read_answer);
}

/// The negative control: a parser that panics is detected.
#[test]
fn a_reader_that_panics_is_found_out() {
    let careless = |bytes: &[u8]| assert!(std::str::from_utf8(bytes).is_ok());
    assert!(catch_unwind(|| try_out("answer", careless)).is_err());
}
