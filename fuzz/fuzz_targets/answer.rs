#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| gapless::hostile::read_answer(bytes));
