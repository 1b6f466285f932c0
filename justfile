# Shortcuts for developers. CONTRIBUTING.md describes each of them.

# Lists the recipes
default:
    @just --list

# Builds the program in target/release
build:
    cargo build --release

# Runs the named suites of tests/run, or all of them; installs their packages, as root
test *SUITES:
    tests/run {{ SUITES }}

# Runs them with the long counts
test-full *SUITES:
    tests/run --full {{ SUITES }}

# Lints everything, as the suite `tidy` does
clippy:
    cargo clippy --release --workspace --all-targets -- -D warnings

# Formats everything
fmt:
    cargo fmt --all

# Builds the documentation of the crates in target/doc
doc:
    cargo doc --workspace --no-deps

# Runs suites of the benchmarks and writes bench/results
bench *SUITES="all":
    cargo run --release -p bkfs-bench -- {{ SUITES }}
