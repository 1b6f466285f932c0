//! The program `bkfs`.

fn main() {
    std::process::exit(bkfs::cli::run(std::env::args_os()));
}
