#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gapless::fuzz_entry::read_abi(bytes));
