//! The parts of an open store of chunks that all its users share.
//!
//! Owns nothing but the parts: connection, keys, cutter, workers, index and reader. Does not own
//! how they are opened (content store), nor what is read and written with them (hydrate, ingest).

use std::sync::Arc;

use crate::catalog::Catalog;
use crate::chunking::Cutter;
use crate::codec::{Balance, Effort};
use crate::config::{Compression, ContentStoreConfig};
use crate::crypto::Keyring;
use crate::hydrate::Reader;
use crate::store_client::StoreClient;
use crate::workers::Workers;

/// The parts of an open store that its read path and write path share.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) link: Arc<StoreClient>,
    pub(crate) keyring: Keyring,
    pub(crate) cutter: Cutter,
    pub(crate) config: ContentStoreConfig,
    pub(crate) workers: Workers,
    pub(crate) catalog: Arc<Catalog>,
    pub(crate) reader: Arc<Reader>,
}

impl Runtime {
    /// Returns the compression effort at this balance.
    pub(crate) fn effort(&self, balance: Balance) -> Effort {
        match self.config.compression {
            Compression::Auto => Effort::Auto(balance),
            Compression::Level(level) => Effort::Level(level),
            Compression::None => Effort::None,
        }
    }
}
