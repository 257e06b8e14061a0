#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gapless_api::fuzz_entry::read_request(bytes));
