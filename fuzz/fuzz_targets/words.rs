#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gapless_chain::fuzz_entry::read_words(bytes));
