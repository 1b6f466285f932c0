//! What a large root holds, and what it refuses.

use super::support::*;
use crate::root::chain::Chain;
use crate::root::form::{Form, LARGE_BYTES_MAX};
use crate::root::form::{LARGE_SESSIONS_MAX, SMALL_BYTES_MAX, SMALL_SESSIONS_MAX};
use crate::root::refusal::Refusal;
use crate::root::state::{
    HolderInfo, Root, Session, SessionId, SessionState, SpoolId, StateError, Volume,
};
use bkfs_chunker::crypto::{Features, RepositoryId};
use bkfs_chunker::id::Id;

/// Hex digits that tell nothing of each other.
fn hex(of: &str, number: u64, digits: usize) -> String {
    let hash = blake3::hash(format!("{of} {number}").as_bytes());
    hash.to_hex()[..digits].to_owned()
}

/// Returns a large root of years of use: so many sessions, each of another machine with a volume of
/// its own, and so many volumes without one.
fn large(sessions: u64, idle: u64) -> Root {
    let mut root = Root::witnessed(RepositoryId([7; 16]), [1; 16]);
    root.form = Form::Large;
    root.generation = 50_000_000;
    root.chain = Some(Chain::new(root.generation, None));
    for number in 0..sessions {
        let session = SessionId(u64::from_str_radix(&hex("session", number, 16), 16).expect("hex"));
        let holder = HolderInfo {
            host: format!("db-{number:04}.example.com"),
            machine_id: hex("machine", number, 32),
            boot_id: hex("boot", number, 36),
            pid_namespace: 4_026_531_836,
            pid: (number as u32).wrapping_mul(48_271) % 4_000_000,
            process_start_ticks: number.wrapping_mul(0x9e37_79b9) % 400_000_000,
            user: "root".to_owned(),
            mount_point: "/backup".to_owned(),
        };
        let volume = format!("db-{number:04}");
        let covered = number.wrapping_mul(0x9e37_79b9) % 1_000_000_000;
        let entry = Session {
            state: SessionState::Live,
            floor: number as u32 % 50_000,
            volume: Some(volume.clone()),
            registered_epoch: number % 3000,
            covered,
            holder,
            claimed_generation: number.wrapping_mul(0x9e37_79b9) % root.generation,
            covered_journal: Some(covered / 7),
            spool: Some(SpoolId(session.0.rotate_left(17))),
        };
        root.sessions.insert(session, entry);
        let entry = Volume {
            holder: Some(session),
            ..used(number)
        };
        root.volumes.insert(volume, entry);
    }
    let volumes = (0..idle).map(|number| (format!("idle-{number}"), used(number << 20)));
    root.volumes.extend(volumes);
    root
}

fn used(number: u64) -> Volume {
    let random = |number: u64| Id(*blake3::hash(&number.to_le_bytes()).as_bytes());
    let bytes = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 22;
    Volume {
        tree: Some(random(!number)),
        holder: None,
        sequence: 1 + bytes % 100_000,
        commit: Some(random(number)),
        next_inode: bytes % 10_000_000,
        inodes: bytes % 9_000_000,
        bytes,
        unsnapshotted_bytes: bytes % 1_000_000_000,
        building: None,
    }
}

#[test]
fn four_thousand_hosts_and_six_thousand_more_volumes_fit() {
    let mut root = large(LARGE_SESSIONS_MAX as u64, 5904);
    assert_eq!(root.volumes.len(), 10_000);
    let payload = root.encode().expect("it fits");
    assert!(payload.len() < 1_500_000, "{}", payload.len());
    assert!(root.room().expect("it fits") > 1 << 20);
    let decoded = Root::decode_as(Form::Large, &payload);
    assert_eq!(decoded.as_ref(), Ok(&root));
    let refusal = root.register(SessionId(1), holder("one too many"));
    assert_eq!(refusal, Err(Refusal::Full { what: "sessions" }));
    assert!(root.places_to_take("db-0007") > LARGE_SESSIONS_MAX);
    assert_eq!(root.places_to_take("new"), LARGE_SESSIONS_MAX);
}

#[test]
fn a_large_root_takes_more_sessions_than_a_small_one() {
    let mut root = large(SMALL_SESSIONS_MAX as u64, 0);
    root.register(SessionId(1), holder("one more"))
        .expect("it has a place");
}

/// Entries that are alike compress to little until they change. That must always fit.
#[test]
fn in_a_full_root_all_can_change() {
    let mut root = large(8, 0);
    let mut number = 0;
    while let Ok(left) = root.room()
        && left > 600
    {
        for _ in 0..left / 600 {
            number += 1;
            root.volumes.insert(format!("{number:0250}"), used(1));
        }
    }
    let payload = root.encode().expect("it fits");
    assert!(payload.len() < LARGE_BYTES_MAX / 10, "they are alike");
    for (number, volume) in root.volumes.values_mut().enumerate() {
        (volume.tree, volume.commit) = (used(number as u64).tree, used(!number as u64).tree);
    }
    let payload = root.encode().expect("it fits");
    assert_eq!(Root::decode_as(Form::Large, &payload).as_ref(), Ok(&root));
    let session = *root.sessions.keys().next().expect("eight");
    root.end(session).expect("it is live");
    root.encode().expect("it fits");
}

#[test]
fn what_is_too_large_is_refused_before_it_is_written() {
    let mut root = large(1, 0);
    let holder = &mut root.sessions.values_mut().next().expect("one").holder;
    holder.mount_point = "x".repeat(LARGE_BYTES_MAX);
    let bytes_max = LARGE_BYTES_MAX;
    let refused = root.encode();
    assert!(
        matches!(refused, Err(StateError::TooLarge { bytes_max: most, .. }) if most == bytes_max)
    );
    assert!(root.room().is_err());
    // Compressed it is small, and nothing reads it.
    let cbor = minicbor::to_vec(&root).expect("memory takes it");
    let payload = Form::Large.payload(cbor);
    assert!(payload.len() < SMALL_BYTES_MAX);
    let refused = Root::decode_as(Form::Large, &payload);
    assert!(matches!(refused, Err(StateError::Malformed(why)) if why.contains("more than")));
}

#[test]
fn a_damaged_payload_is_no_root() {
    let payload = large(4, 0).encode().expect("it fits");
    for (at, byte) in [(4, 1), (3, 0x41), (1, 0xff), (0, 9)] {
        let mut forged = payload.clone();
        forged[at] = byte;
        let refused = Root::decode_as(Form::Large, &forged);
        assert!(matches!(refused, Err(StateError::Malformed(_))), "{at}");
    }
}

/// Neither form passes for the other: the header tells it.
#[test]
fn a_form_is_read_as_itself_only() {
    let large = large(4, 0);
    let mut small = large.clone();
    small.form = Form::Small;
    assert!(Root::decode(&large.encode().expect("it fits")).is_err());
    let small = small.encode().expect("it fits");
    assert!(Root::decode_as(Form::Large, &small).is_err());
    let features = Features {
        incompatible: Features::LARGE,
        ..Features::NONE
    };
    assert_eq!(Form::of(features), Form::Large);
    let told = Form::Large.stated_in(Features::NONE.with_witness());
    assert!(told.bear_witness() && Form::of(told) == Form::Large);
    let other = Form::Small.stated_in(told);
    assert!(other.bear_witness() && Form::of(other) == Form::Small);
    assert_eq!(Form::of(Features::NONE.with_witness()), Form::Small);
    assert!(features.permit_writing());
}
