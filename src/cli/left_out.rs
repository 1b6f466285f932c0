//! What a command leaves out of a hostile tree: said on stderr, and by the exit code.

use std::fmt::Display;

use crate::cli::output::{Code, Failure, complain, name_text};

/// Lines that are shown; of more only the number is said.
const SHOWN: u64 = 100;

/// What was left out so far.
#[derive(Debug, Default)]
pub struct LeftOut(u64);

impl LeftOut {
    /// Leaves out what is at this path.
    pub fn note(&mut self, path: &[u8], why: &dyn Display) {
        self.0 += 1;
        if self.0 <= SHOWN {
            complain(format_args!("bkfs: left out: {}: {why}", name_text(path)));
        }
    }

    /// The end of a command that did everything else.
    ///
    /// # Errors
    /// [`Code::Partly`] if anything was left out.
    pub fn conclude(&self) -> Result<(), Failure> {
        match self.0 {
            0 => Ok(()),
            count => Err(Failure::new(format!(
                "{count} names were left out: no honest tree holds them"
            ))
            .code(Code::Partly)
            .hint("bkfs check says more.")),
        }
    }
}
