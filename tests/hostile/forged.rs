//! The repository of a forgery.

use std::path::Path;

use crate::forge::Forger;
use crate::forgeries::{CLEAN, Forgery, HOSTILE, honest};

impl Forgery {
    /// Makes the repository `repository` in a directory, with an honest snapshot and the forgery.
    pub fn forge(&self, home: &Path) -> Forger {
        let forger = Forger::begin(&home.join("repository"));
        forger.snapshot(CLEAN, honest(&forger));
        let tree = (self.tree)(&forger);
        forger.snapshot(HOSTILE, tree);
        (self.after)(&forger);
        forger
    }
}
