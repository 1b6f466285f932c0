//! Commit records: the blob that each commit leaves in a metadata pack. From the records, `check
//! --repair` rebuilds a lost root, and a session determines later whether its commit was made.
//!
//! Owns the record and its encoding. Pure. A record is written before the root that names it, so a
//! record alone does not prove that its commit was made. What counts is the chain of parents from
//! the record that the root names; if the root is lost, the longest chain without a gap.

use super::state::SessionId;
use super::wire;
use bkfs_chunker::id::Id;
use jiff::Timestamp;
use minicbor::{Decode, Encode};

/// One commit of one volume. It is stored as a blob of kind commit, and the root's entry of the
/// volume names its id.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct CommitRecord {
    /// The volume.
    #[n(0)]
    pub volume: String,
    /// The session that made it.
    #[n(1)]
    pub session: SessionId,
    /// Its number: one more than that of the commit before it. That of a volume's first commit is
    /// the generation of a root that was read for it. The number 0 means that it is outside their
    /// chain and made nothing but a snapshot.
    #[n(2)]
    pub sequence: u64,
    /// The id of the record of the commit before it.
    #[cbor(n(3), with = "wire::id_option", has_nil)]
    pub parent: Option<Id>,
    /// The root node of the tree.
    #[cbor(n(4), with = "wire::id_option", has_nil)]
    pub tree: Option<Id>,
    /// When it was made, by the clock of the host.
    #[cbor(n(5), with = "wire::time")]
    pub time: Timestamp,
    /// The last operation of the session that the tree contains.
    #[n(6)]
    pub covered: u64,
    /// The lowest inode number that was never given out.
    #[n(7)]
    pub next_inode: u64,
    /// The number of inodes in the tree.
    #[n(8)]
    pub inodes: u64,
    /// Bytes of file contents in the tree.
    #[n(9)]
    pub bytes: u64,
    /// The snapshot that was requested with it.
    #[n(10)]
    pub snapshot: Option<RecordedSnapshot>,
    /// Ended sessions whose journals it carried out; absent if there were none.
    #[n(11)]
    pub replayed: Option<Vec<Replayed>>,
    /// It is the last one before the removal of the volume. A repair that finds a later volume of
    /// the same name takes that one.
    #[cbor(n(12), with = "wire::flag", has_nil)]
    pub removes: bool,
    /// The least generation that it can get, by the newest root that its session knew. Of two
    /// commits with one number the one of the later holder has the greater one. Absent in records
    /// of older programs.
    #[n(13)]
    pub generation: Option<u64>,
}

/// An ended session whose journals a commit carried out (rule 7).
#[derive(Copy, Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(array)]
pub struct Replayed {
    /// The session.
    #[n(0)]
    pub session: SessionId,
    /// The last operation that was carried out.
    #[n(1)]
    pub last: u64,
}

/// The requested snapshot of a commit, as the record keeps it. The root assigns number and
/// generation later.
#[derive(Clone, Debug, Eq, PartialEq, Encode, Decode)]
#[cbor(map)]
pub struct RecordedSnapshot {
    /// Its name, if one was given; otherwise the time becomes its name.
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
    /// Returns whether it is outside the volume's chain of commits: see [`super::commit`].
    pub fn is_snapshot_only(&self) -> bool {
        self.sequence == 0
    }

    /// Returns the bytes of the blob. Equal records give equal bytes.
    pub fn encode(&self) -> Vec<u8> {
        minicbor::to_vec(self).expect("writing plain fields to memory cannot fail")
    }

    /// Decodes the bytes that [`CommitRecord::encode`] returns.
    ///
    /// # Errors
    /// A text that says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        minicbor::decode(bytes).map_err(|error| error.to_string())
    }
}
