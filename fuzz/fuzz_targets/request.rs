#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gapless_api::hostile::read_request(bytes));
