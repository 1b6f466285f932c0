//! The program.

fn main() {
    std::process::exit(bkfs::cli::run(std::env::args_os()));
}
