//! Names that a command leaves out of a hostile tree. They are reported on stderr, and by the exit
//! code.

use std::fmt::Display;

use crate::cli::output::{Code, Failure, complain, name_text};

/// Names that are reported. Further ones are only counted.
const SHOWN: u64 = 100;

/// The number of names that were left out so far.
#[derive(Debug, Default)]
pub struct LeftOut(u64);

impl LeftOut {
    /// Counts the name at this path, and reports why it is left out.
    pub fn note(&mut self, path: &[u8], why: &dyn Display) {
        self.0 += 1;
        if self.0 <= SHOWN {
            complain(format_args!("bkfs: left out: {}: {why}", name_text(path)));
        }
    }

    /// Returns the result of a command that did everything else.
    ///
    /// # Errors
    /// [`Code::Partly`] if anything was left out.
    pub fn conclude(&self) -> Result<(), Failure> {
        match self.0 {
            0 => Ok(()),
            count => Err(
                Failure::new(format!("left out {count} names that no file can have"))
                    .code(Code::Partly)
                    .hint("bkfs check shows the reasons."),
            ),
        }
    }
}
