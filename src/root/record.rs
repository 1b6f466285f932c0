//! Commit records: what a commit leaves in a metadata pack, so that a lost root can be rebuilt (check --repair) and a commit's fate be told later.
//!
//! Owns the record and its encoding. Pure. A record is written before the root that names it, so a record alone does not prove that its commit was made:
//! of a volume's records the chain by parents counts, from the one that the root names, or, if the root is lost, from the longest chain that is whole.

use super::state::SessionId;
use super::wire;
use bkfs_chunker::id::Id;
use jiff::Timestamp;
use minicbor::{Decode, Encode};

/// One commit of one volume. Stored as a blob of kind commit; its id is what the root's volume entry names.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct CommitRecord {
    /// The volume.
    #[n(0)]
    pub volume: String,
    /// The session that made it.
    #[n(1)]
    pub session: SessionId,
    /// Its number among the volume's commits, from 1; 0 for one beside their chain, which made nothing but a snapshot.
    #[n(2)]
    pub sequence: u64,
    /// The record of the commit before it.
    #[cbor(n(3), with = "wire::id_option", has_nil)]
    pub parent: Option<Id>,
    /// The root node of the tree.
    #[cbor(n(4), with = "wire::id_option", has_nil)]
    pub tree: Option<Id>,
    /// When it was made, by the clock of the host.
    #[cbor(n(5), with = "wire::time")]
    pub time: Timestamp,
    /// The last operation of the session that the tree holds.
    #[n(6)]
    pub covered: u64,
    /// The lowest inode number not yet given out.
    #[n(7)]
    pub next_inode: u64,
    /// Inodes in the tree.
    #[n(8)]
    pub inodes: u64,
    /// Bytes of file contents in the tree.
    #[n(9)]
    pub bytes: u64,
    /// The snapshot that was asked for with it.
    #[n(10)]
    pub snapshot: Option<RecordedSnapshot>,
    /// What of ended sessions it carried out; none if nothing.
    #[n(11)]
    pub replayed: Option<Vec<Replayed>>,
}

/// Journals of an ended session that a commit carried out (rule 7).
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(array)]
pub struct Replayed {
    /// The session.
    #[n(0)]
    pub session: SessionId,
    /// Its last operation.
    #[n(1)]
    pub last: u64,
}

/// What a commit record keeps of the snapshot that the commit was to make. Number and generation are given by the root, later.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct RecordedSnapshot {
    /// Its name, if one was given; the time names it otherwise.
    #[n(0)]
    pub name: Option<String>,
    /// Name of the host.
    #[n(1)]
    pub host: String,
    /// Name of the user.
    #[n(2)]
    pub user: String,
    /// Its tags.
    #[n(3)]
    pub tags: Vec<String>,
}

impl CommitRecord {
    /// Whether it is no link of the volume's chain of commits: see [`super::commit`].
    pub fn is_beside(&self) -> bool {
        self.sequence == 0
    }

    /// The blob. The same record gives the same bytes, always.
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing plain fields to memory cannot fail")
    }

    /// The inverse of [`CommitRecord::encode`]; the error says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        minicbor::decode(bytes).map_err(|error| error.to_string())
    }
}
