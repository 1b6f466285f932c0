//! Files of pages that look like new data, written without a mount.

use std::error::Error;
use std::sync::Arc;

use bkfs::volume::namespace::NewInode;
use bkfs::volume::{ROOT_INODE, Volume};
use bkfs_chunker::chunking::Profile;
use bytes::{Bytes, BytesMut};
use rand::Rng;
use rand::rngs::StdRng;

/// Length of a page, in bytes.
pub const PAGE: usize = 16 << 10;

/// Pages that are stored with one call.
const RUN_PAGES: u64 = 256;

/// What a file is made of.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    /// Number of pages.
    pub pages: u64,
    /// Random bytes of each page. The others are zeros.
    pub random_bytes: usize,
    /// How the file is cut.
    pub profile: Profile,
}

/// Returns what the writer did not take of a run, in front of `pages` new pages.
fn run(left: &[u8], pages: u64, content: Content, random: &mut StdRng) -> Bytes {
    let mut run = BytesMut::with_capacity(left.len() + pages as usize * PAGE);
    run.extend_from_slice(left);
    run.resize(left.len() + pages as usize * PAGE, 0);
    for page in run[left.len()..].chunks_exact_mut(PAGE) {
        random.fill_bytes(&mut page[..content.random_bytes]);
    }
    run.freeze()
}

/// Adds a file to the root directory of a volume.
///
/// # Errors
/// Those of the volume.
pub async fn add_file(
    volume: &Arc<Volume>,
    name: &str,
    content: Content,
    random: &mut StdRng,
) -> Result<(), Box<dyn Error>> {
    let new = NewInode {
        mode: 0o100_600,
        uid: 0,
        gid: 0,
        device: 0,
        target: None,
        profile: content.profile as u8,
    };
    let inode = volume.begin_deposit(&new).await?;
    let (mut offset, mut to_come, mut left) = (0, content.pages, Bytes::new());
    while to_come > 0 {
        let now = to_come.min(RUN_PAGES);
        to_come -= now;
        let next = run(&left, now, content, random);
        let taken = volume
            .deposit(inode, offset, next.clone(), to_come == 0)
            .await?;
        offset += taken;
        left = next.slice(taken as usize..);
    }
    let now = volume.now();
    volume
        .name_deposit(inode, ROOT_INODE, name.as_bytes(), now)
        .await?;
    Ok(())
}
