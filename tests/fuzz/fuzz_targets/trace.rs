#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| bkfs_fuzz::bodies::run("trace", input));
