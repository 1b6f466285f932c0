//! `bkfs generate`: the files that packages install next to the program.

use std::io::Write;

use clap::ValueEnum;
use clap::builder::{Resettable, StyledStr};
use clap_complete::Shell;

use crate::cli::manual;
use crate::cli::output::Failure;

/// Print a completion script for a shell, or the manual page
#[derive(Debug, clap::Args)]
pub struct Generate {
    /// What to print
    what: What,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    Bash,
    Zsh,
    Fish,
    Man,
}

/// Prints a completion script or the manual page of `program`, the whole command line.
///
/// # Errors
/// A [`Failure`] with exit code 1 if the manual page cannot be written to standard output.
pub fn run(command: Generate, mut program: clap::Command) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    let shell = match command.what {
        What::Bash => Shell::Bash,
        What::Zsh => Shell::Zsh,
        What::Fish => Shell::Fish,
        What::Man => {
            let nothing = Resettable::<StyledStr>::Reset;
            // The manual has sections of its own for what the help says at its end.
            let page = clap_mangen::Man::new(program.after_long_help(nothing));
            return page
                .render(&mut out)
                .and_then(|()| out.write_all(manual::for_man().as_bytes()))
                .map_err(|error| Failure::new(error.to_string()));
        }
    };
    clap_complete::generate(shell, &mut program, "bkfs", &mut out);
    Ok(())
}
