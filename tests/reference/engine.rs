//! The filesystem itself, unmounted, over a bucket in memory.

mod life;

use std::sync::Arc;

use bkfs::mounting::Assembled;
use bkfs_store::Store;
use tokio::runtime::Runtime;

use crate::alphabet::{Answer, Dump, Op, World};
use crate::client::Client;

/// An engine that can be reopened from its bucket.
pub struct Engine {
    /// `None` only while one machine replaces another.
    runtime: Option<Runtime>,
    store: Arc<dyn Store>,
    password: Option<&'static str>,
    assembled: Option<Assembled>,
}

impl Engine {
    fn ask(&self, op: &Op) -> Answer {
        self.runtime().block_on(self.client().apply(op))
    }

    fn client(&self) -> Client {
        Client(self.assembled.as_ref().expect("is open").vfs.clone())
    }
}

impl World for Engine {
    fn apply(&mut self, op: &Op) -> Answer {
        match op {
            Op::Reopen => self.reopen(),
            Op::Commit => self.commit(),
            Op::Crash => {
                self.ask(&Op::Sync)?;
                self.crash();
            }
            other => return self.ask(other),
        }
        Ok(Vec::new())
    }

    fn dump(&mut self) -> Dump {
        let dump = self.runtime().block_on(self.client().dump());
        dump.unwrap_or_else(|(path, errno)| panic!("{}: errno {errno}", path.escape_ascii()))
    }
}
