#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| iwarp_fuzz_entry::stream(data));
