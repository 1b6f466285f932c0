//! The pending index and its pack writers under all orders of events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;

use super::frame::{BlobKey, FramePlace, FullFrame, Pending};
use super::pack_writer::{NewPack, OpenPack};
use super::pending_index::{Mark, Matching, PendingIndex};
use crate::codec::Effort;
use crate::crypto::{Class, Features, Keyring, RepositoryId, Secrets};
use crate::gate::ByteGate;
use crate::id::{Id, Kind};
use crate::pack::{FinishedPack, FrameEncoder, PackBuilder, PackError, PackName};

const TARGET_BYTES: u64 = 300_000;

/// The possible events. Numbers choose among the existing items.
#[derive(Debug, Clone)]
enum Event {
    /// A caller stores a blob.
    Store {
        metadata: bool,
        number: u8,
        length: u32,
    },
    /// A frame reaches a worker.
    Ticket(u8),
    /// A worker has sealed a frame.
    Deliver(u8),
    /// Everything accepted so far is sent.
    Cut {
        metadata: bool,
    },
    /// The store acknowledges a pack.
    Acknowledge(u8),
    Mark,
    Begin,
    End(u8),
    /// A root takes all waiting packs, by the last mark.
    Commit,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        8 => (any::<bool>(), any::<u8>(), 1u32..100_000)
            .prop_map(|(metadata, number, length)| Event::Store { metadata, number, length }),
        6 => any::<u8>().prop_map(Event::Ticket),
        6 => any::<u8>().prop_map(Event::Deliver),
        1 => any::<bool>().prop_map(|metadata| Event::Cut { metadata }),
        3 => any::<u8>().prop_map(Event::Acknowledge),
        1 => Just(Event::Mark),
        1 => Just(Event::Begin),
        1 => any::<u8>().prop_map(Event::End),
        1 => Just(Event::Commit),
    ]
}

struct World {
    pending_index: PendingIndex,
    gate: ByteGate,
    keyring: Keyring,
    encoder: FrameEncoder,
    full: Vec<FullFrame>,
    working: Vec<(FullFrame, FramePlace)>,
    sent: Vec<OpenPack>,
    /// The bytes of every blob ever stored, and the time of the event that last referred to it.
    blobs: BTreeMap<(Class, u8), (Bytes, u64)>,
    cuts: BTreeMap<Class, BTreeSet<u64>>,
    /// The last mark, and the time at which it was drawn.
    mark: (Mark, u64),
    operations: Vec<(u64, u64)>,
    /// Packs that roots took.
    taken: BTreeSet<PackName>,
    now: u64,
}

impl World {
    fn new() -> Self {
        let secrets = Secrets::new([1; 32], [2; 32], [3; 32]);
        let mut pending_index = PendingIndex::new(7, TARGET_BYTES);
        let mark = pending_index.mark();
        Self {
            pending_index,
            gate: ByteGate::new(1 << 30),
            keyring: Keyring::unsealed(RepositoryId([0; 16]), secrets),
            encoder: FrameEncoder::new(),
            full: Vec::new(),
            working: Vec::new(),
            sent: Vec::new(),
            blobs: BTreeMap::new(),
            cuts: BTreeMap::new(),
            mark: (mark, 0),
            operations: Vec::new(),
            taken: BTreeSet::new(),
            now: 0,
        }
    }

    fn blob(class: Class, number: u8) -> (Kind, Id) {
        let kind = match class {
            Class::DataPack => Kind::Chunk,
            _ => Kind::Node,
        };
        (kind, Id([number; 32]))
    }

    fn key(class: Class, number: u8) -> BlobKey {
        let (kind, id) = Self::blob(class, number);
        BlobKey::of(kind, &id)
    }

    fn step(&mut self, event: Event) {
        self.now += 1;
        match event {
            Event::Store {
                metadata,
                number,
                length,
            } => self.store(class(metadata), number, length),
            Event::Ticket(choice) => self.ticket(choice),
            Event::Deliver(choice) => self.deliver(choice),
            Event::Cut { metadata } => self.cut(class(metadata)),
            Event::Acknowledge(choice) => self.acknowledge(choice),
            Event::Mark => self.mark = (self.pending_index.mark(), self.now),
            Event::Begin => {
                let number = self.pending_index.begin_operation();
                self.operations.push((number, self.now));
            }
            Event::End(choice) => {
                if let Some(position) = pick(&self.operations, choice) {
                    let (number, _) = self.operations.remove(position);
                    self.pending_index.end_operation(number);
                }
            }
            Event::Commit => self.commit(),
        }
        let (count, counted) = (
            self.pending_index.relied_count(),
            self.pending_index.count_relied(),
        );
        assert_eq!(count, counted, "blobs that are relied on");
    }

    fn store(&mut self, class: Class, number: u8, length: u32) {
        let (kind, name) = Self::blob(class, number % 16);
        let id = (class, number % 16);
        let bytes = match self.blobs.get(&id) {
            Some((bytes, _)) => bytes.clone(),
            None => Bytes::from(vec![number; length as usize]),
        };
        let in_root = self.is_in_root(id);
        let reservation = self.gate.try_reserve(1).expect("there is room");
        if in_root && !self.pending_index.has(kind, name) {
            // The index lists the blob: the session refers to the copy that the root holds.
            let pack = *self.taken.first().expect("a root holds it");
            self.pending_index.rely_on(pack, kind, name);
        } else {
            let gathered = self.pending_index.gather(
                (kind, name),
                bytes.len(),
                reservation,
                Matching::Everything,
            );
            self.full.extend(gathered.full);
            if let Some(new) = gathered.new {
                new.fill(bytes.clone());
            }
        }
        self.blobs.insert(id, (bytes, self.now));
    }

    /// Returns true if the blob was stored once and is not in the pending index any more: a root
    /// has it then.
    fn is_in_root(&self, id: (Class, u8)) -> bool {
        self.blobs.contains_key(&id) && self.pending_index.find(&Self::key(id.0, id.1)).is_none()
    }

    fn ticket(&mut self, choice: u8) {
        let Some(position) = pick(&self.full, choice) else {
            return;
        };
        let full = self.full.remove(position);
        let class = full.frame.class;
        let keyring = &self.keyring;
        let (names, pack_writer) = self.pending_index.names_and_pack_writer(class);
        let ticket = pack_writer.ticket(&full, || {
            let name = names.draw(9)?;
            let builder = PackBuilder::new(keyring, class, name, Features::NONE, [4; 32]);
            let opener = keyring.object_opener(class, &name.key(class), builder.header());
            Ok(NewPack {
                opener: Arc::new(opener.expect("opens")),
                builder,
            })
        });
        self.working.push((full, ticket.expect("there are names")));
    }

    fn deliver(&mut self, choice: u8) {
        let Some(position) = pick(&self.working, choice) else {
            return;
        };
        let (full, place) = self.working.remove(position);
        let class = full.frame.class;
        let sealed = full
            .frame
            .seal(place, &mut self.encoder, Effort::None)
            .expect("fits");
        let packs = self.pending_index.pack_writer(class).deliver(full, sealed);
        self.send(packs.expect("belongs here"));
    }

    fn cut(&mut self, class: Class) {
        let frontier = self.pending_index.frontier();
        let pack_writer = self.pending_index.pack_writer(class);
        self.full.extend(pack_writer.take_gathering());
        let packs = pack_writer.cut(frontier);
        self.cuts.entry(class).or_default().insert(frontier);
        self.send(packs);
    }

    /// Checks that no earlier cut goes through one of these packs, and sends them.
    fn send(&mut self, packs: Vec<OpenPack>) {
        for pack in packs {
            let numbers: BTreeSet<u64> = pack.frames.iter().map(|frame| frame.number).collect();
            let (low, high) = (
                numbers.first().expect("frames"),
                numbers.last().expect("frames"),
            );
            for cut in self.cuts.get(&pack.class).into_iter().flatten() {
                assert!(cut <= low || cut > high, "{cut} goes through {numbers:?}");
            }
            self.sent.push(pack);
        }
    }

    fn acknowledge(&mut self, choice: u8) {
        let Some(position) = pick(&self.sent, choice) else {
            return;
        };
        let (builder, sent) = self.sent.remove(position).into_parts();
        let (pack, _) = builder
            .finish(&mut self.encoder, Effort::None)
            .expect("is whole");
        for (frame, entry) in sent.frames.iter().zip(pack.footer.frames()) {
            assert!(
                frame.sealed(pack.name, &entry).is_some(),
                "frames of a closed pack are in memory, in the order of the pack"
            );
        }
        self.pending_index.acknowledge(&sent, pack);
    }

    /// Combines a seal and a replacement of the root, for all packs that are acknowledged now.
    fn commit(&mut self) {
        let (mark, made) = self.mark;
        let waiting = self.pending_index.waiting(u64::MAX);
        let packs: Vec<PackName> = waiting.iter().map(|stored| stored.pack.name).collect();
        let below = |name: &PackName| name.sequence < mark.floor;
        // A seal waits for all data that was stored before it, so everything below the floor is
        // acknowledged by then.
        if self.sent.iter().any(|pack| below(&pack.builder.name())) {
            return;
        }
        self.check_floor(mark, made);
        self.pending_index.commit(&packs, mark.floor, mark);
        self.taken.extend(packs);
        self.check_reliances(mark, made);
    }

    /// Checks that no blob that was referred to after the mark is in an own pack below the floor,
    /// unless that pack is relied on.
    fn check_floor(&mut self, mark: Mark, made: u64) {
        let relied_on = self.pending_index.relied_on();
        let began = self
            .operations
            .iter()
            .map(|(_, began)| *began)
            .min()
            .unwrap_or(made);
        for (&(class, number), (_, referred)) in &self.blobs {
            if *referred <= made.min(began) {
                continue;
            }
            let pack = match self.pending_index.find(&Self::key(class, number)) {
                Some(Pending::Sealed(sealed, _)) => sealed.pack,
                Some(Pending::Stored(candidate)) => candidate.location.pack,
                Some(Pending::Bytes(_)) | None => continue,
            };
            let is_own = pack.sequence >= mark.floor;
            let will_be = relied_on.contains(&pack) || self.pending_index.is_relied_on(&pack);
            assert!(
                is_own || will_be,
                "{pack} holds what only uncommitted references name"
            );
        }
    }

    /// Checks that references made after the mark are still known to be relied on.
    fn check_reliances(&self, mark: Mark, made: u64) {
        let relied_on = self.pending_index.relied_on();
        for (&id, (_, referred)) in &self.blobs {
            if *referred > made && self.is_in_root(id) && mark.floor > 0 {
                let known = self
                    .taken
                    .iter()
                    .any(|pack| relied_on.contains(pack) || pack.sequence >= mark.floor);
                assert!(known, "{id:?} was referred to at {referred}, after {made}");
            }
        }
    }

    /// Sends and acknowledges everything, and checks that all blobs are there.
    fn finish(&mut self) {
        for class in [Class::DataPack, Class::MetadataPack] {
            self.cut(class);
        }
        while !self.full.is_empty() {
            self.ticket(0);
        }
        while !self.working.is_empty() {
            self.deliver(1);
        }
        let frontier = self.pending_index.frontier();
        assert!(self.sent.iter().all(|pack| pack.builder.pending() == 0));
        while !self.sent.is_empty() {
            self.acknowledge(0);
        }
        for class in [Class::DataPack, Class::MetadataPack] {
            assert!(
                self.pending_index
                    .pack_writer(class)
                    .is_acknowledged(frontier),
                "nothing is left behind"
            );
            assert!(!self.pending_index.pack_writer(class).is_moving());
            assert_eq!(self.pending_index.pack_writer(class).lowest_open(), None);
        }
        self.check_blobs();
        assert_eq!(self.gate.used(), 0, "every reservation was given back");
        let mark = self.pending_index.mark();
        let waiting = self.pending_index.waiting(frontier);
        let packs: Vec<Arc<FinishedPack>> = waiting.into_iter().map(|stored| stored.pack).collect();
        let names: Vec<PackName> = packs.iter().map(|pack| pack.name).collect();
        if self.operations.is_empty() {
            assert!(names.iter().all(|name| name.sequence < mark.floor));
        }
        self.pending_index.commit(&names, mark.floor, mark);
        assert_eq!(self.pending_index.blob_count(), 0);
    }

    fn check_blobs(&self) {
        for ((class, number), (bytes, _)) in &self.blobs {
            match self.pending_index.find(&Self::key(*class, *number)) {
                Some(Pending::Bytes(found)) => assert_eq!(found, *bytes),
                Some(Pending::Sealed(..) | Pending::Stored(_)) | None => {}
            }
        }
    }
}

fn class(metadata: bool) -> Class {
    match metadata {
        true => Class::MetadataPack,
        false => Class::DataPack,
    }
}

fn pick<T>(items: &[T], choice: u8) -> Option<usize> {
    (!items.is_empty()).then(|| usize::from(choice) % items.len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_order_of_events_breaks_the_ledger(events in prop::collection::vec(event(), 0..120)) {
        let mut world = World::new();
        for event in events {
            world.step(event);
            world.check_blobs();
        }
        world.finish();
    }
}

#[test]
fn a_frame_that_lacks_a_blob_is_not_sealed() {
    let mut world = World::new();
    world.store(Class::DataPack, 1, 10);
    let name = World::blob(Class::DataPack, 2);
    let reservation = world.gate.try_reserve(1).expect("there is room");
    let index = &mut world.pending_index;
    let gathered = index.gather(name, 10, reservation, Matching::Everything);
    drop(gathered.new.expect("it is new"));
    world.cut(Class::DataPack);
    world.ticket(0);
    let (full, place) = world.working.remove(0);
    let sealed = full.frame.seal(place, &mut world.encoder, Effort::None);
    assert!(matches!(sealed, Err(PackError::Inconsistent(_))));
}

#[test]
fn what_has_another_place_is_relied_on_no_more() {
    let mut world = World::new();
    let packs = [1, 2].map(|random| PackName {
        session: 1,
        sequence: 1,
        random,
    });
    let blobs = [1, 2].map(|number| World::blob(Class::DataPack, number));
    for pack in packs {
        for (kind, id) in blobs {
            world.pending_index.rely_on(pack, kind, id);
        }
    }
    assert_eq!(world.pending_index.relied_count(), 4);
    world.pending_index.let_go(&packs[..1], &blobs[..1]);
    world.pending_index.let_go(&packs[..1], &blobs[..1]);
    assert_eq!(world.pending_index.relied_count(), 3);
    world.pending_index.let_go(&packs, &blobs);
    assert_eq!(world.pending_index.relied_count(), 0);
    assert!(world.pending_index.relied_on().is_empty());
}
