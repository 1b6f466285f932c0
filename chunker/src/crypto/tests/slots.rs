//! Key slots: which passwords open them, and which slots are refused.

use super::*;

/// A low cost, which keeps the tests fast.
const CHEAP: SlotCost = SlotCost {
    memory_kib: 8,
    passes: 1,
    lanes: 1,
};

pub(super) fn slot<'a>() -> NewSlot<'a> {
    NewSlot {
        repository: REPOSITORY,
        name: SlotName(0xabc),
        label: "a label",
        created_s: 1_795_000_000,
        cost: CHEAP,
        object_salt: [5; 32],
        password_salt: [6; 32],
    }
}

#[test]
fn a_slot_tells_a_wrong_password_from_damage() {
    let object = slot().wrap(b"correct horse", &secrets()).unwrap();
    let open = |object: &[u8]| Slot::open(REPOSITORY, SlotName(0xabc), object);
    let opened = open(&object).unwrap();
    assert_eq!(opened.label(), "a label");
    assert_eq!(opened.created_s(), 1_795_000_000);
    assert_eq!(opened.cost(), CHEAP);
    let unwrapped = opened.unwrap(b"correct horse").unwrap();
    assert_eq!(*unwrapped.encode(), *secrets().encode());
    assert_eq!(
        opened.unwrap(b"correct horsf").err(),
        Some(SlotError::WrongPassword)
    );
    assert_eq!(opened.unwrap(b"").err(), Some(SlotError::EmptyPassword));
    for bit in 0..object.len() * 8 {
        let mut changed = object.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(open(&changed).is_err(), "bit {bit} does not count");
    }
    for length in 0..object.len() {
        assert!(open(&object[..length]).is_err());
    }
    let moved = Slot::open(REPOSITORY, SlotName(0xabd), &object);
    assert!(is_damaged(moved));
    let foreign = Slot::open(RepositoryId([0; 16]), SlotName(0xabc), &object);
    assert!(matches!(foreign, Err(OpenError::WrongRepository { .. })));
}

#[test]
fn slots_that_cannot_be_are_not_made() {
    let refused = |slot: NewSlot<'_>, password: &[u8]| slot.wrap(password, &secrets()).err();
    assert_eq!(refused(slot(), b""), Some(SlotError::EmptyPassword));
    let label = "l".repeat(256);
    let long = NewSlot {
        label: &label,
        ..slot()
    };
    assert_eq!(refused(long, b"x"), Some(SlotError::LabelTooLong));
    for (memory_kib, passes, lanes) in [
        (u32::MAX, 1, 1),
        (SlotCost::MEMORY_KIB_MAX + 1, 1, 1),
        (1024, u32::MAX, 1),
        (SlotCost::MEMORY_KIB_MAX, 17, 1),
        (1024, 1, u32::MAX),
        (1024, 1, 65),
        (1024, 0, 1),
        (1024, 1, 0),
        (0, 1, 1),
        (15, 1, 2),
    ] {
        let cost = SlotCost {
            memory_kib,
            passes,
            lanes,
        };
        let refusal = refused(NewSlot { cost, ..slot() }, b"x");
        assert_eq!(refusal, Some(SlotError::UnreasonableCost(cost)));
    }
}

#[test]
fn a_hostile_slot_does_not_take_all_memory() {
    // An attacker with write access to the bucket makes such an object: it verifies, but its cost
    // is out of bounds.
    let object = slot().wrap(b"x", &secrets()).unwrap();
    let keyring = Keyring::sealed(REPOSITORY, secrets());
    let key = SlotName(0xabc).key();
    let mut payload = keyring.open_object(Class::KeySlot, &key, &object).unwrap();
    let cost = payload
        .windows(4)
        .position(|bytes| bytes == [0x83, 8, 1, 1])
        .unwrap();
    payload.splice(cost + 1..cost + 2, [0x1a, 0xff, 0xff, 0xff, 0xff]);
    let hostile = keyring.seal_object(Class::KeySlot, &key, Features::NONE, [9; 32], &payload);
    let slot = Slot::open(REPOSITORY, SlotName(0xabc), &hostile).unwrap();
    let refusal = slot.unwrap(b"x").err();
    assert!(
        matches!(refusal, Some(SlotError::UnreasonableCost(_))),
        "{refusal:?}"
    );
}

#[test]
fn slots_have_names() {
    let name = SlotName(0xabc);
    assert_eq!(name.key(), "keys/0000000000000abc");
    assert_eq!(SlotName::from_key(&name.key()), Some(name));
    assert_eq!(name.to_string().parse(), Ok(name));
    for key in [
        "",
        "keys/",
        "keys/abc",
        "keys/0000000000000ABC",
        "keys/+000000000000abc",
        "key/0000000000000abc",
    ] {
        assert_eq!(SlotName::from_key(key), None, "{key}");
    }
}

/// Returns the slot with its payload changed by an attacker with write access to the bucket, as if
/// it lay under `name`.
fn changed(name: SlotName, change: impl FnOnce(&mut Vec<u8>)) -> Slot {
    let object = slot().wrap(b"x", &secrets()).unwrap();
    let keyring = Keyring::sealed(REPOSITORY, secrets());
    let payload = keyring.open_object(Class::KeySlot, &slot().name.key(), &object);
    let mut payload = payload.unwrap();
    change(&mut payload);
    let forged = keyring.seal_object(
        Class::KeySlot,
        &name.key(),
        Features::NONE,
        [9; 32],
        &payload,
    );
    Slot::open(REPOSITORY, name, &forged).unwrap()
}

#[test]
fn what_a_slot_states_is_bound_to_its_password() {
    let judged = |slot: &Slot| slot.unwrap_judged(b"x").map(|opened| opened.statement);
    let name = slot().name;
    let whole = changed(name, |_| ());
    assert_eq!(judged(&whole), Ok(Statement::Bound));
    assert_eq!(whole.epoch(), Some(0));
    // The slot opens, and the statement says that a field was changed.
    let label = changed(name, |payload| {
        let at = payload.windows(7).position(|bytes| bytes == b"a label");
        payload[at.unwrap()] = b'A';
    });
    assert_eq!(label.label(), "A label");
    assert_eq!(judged(&label), Ok(Statement::Changed));
    let time = changed(name, |payload| {
        let time = 1_795_000_000u32.to_be_bytes();
        let at = payload.windows(4).position(|bytes| bytes == time);
        payload[at.unwrap()] ^= 1;
    });
    assert_eq!(judged(&time), Ok(Statement::Changed));
    let epoch = changed(name, |payload| *payload.last_mut().unwrap() = 7);
    assert_eq!(epoch.epoch(), Some(7));
    assert_eq!(judged(&epoch), Ok(Statement::Changed));
    // Without its epoch the slot has the fields of the first form.
    let stripped = changed(name, |payload| {
        payload[0] -= 1;
        payload.truncate(payload.len() - 2);
    });
    assert_eq!(stripped.epoch(), None);
    assert_eq!(judged(&stripped), Ok(Statement::Changed));
    let copied = changed(SlotName(1), |_| ());
    assert_eq!(judged(&copied), Ok(Statement::Changed));
    assert_eq!(copied.fingerprint(), whole.fingerprint());
    let other = changed(name, |payload| {
        let at = payload.windows(32).position(|bytes| bytes == [6; 32]);
        payload[at.unwrap()] = 7;
    });
    assert_ne!(other.fingerprint(), whole.fingerprint());
    assert_eq!(judged(&other).err(), Some(SlotError::WrongPassword));
}

#[test]
fn slots_hold_all_master_keys_and_state_the_newest() {
    let mut more = secrets();
    more.add_master([9; 32]);
    assert!(more.extend(&secrets()) && !secrets().extend(&more));
    let mut others = secrets();
    others.add_master([8; 32]);
    assert!(!others.extend(&more));
    let object = slot().wrap(b"x", &more).unwrap();
    let opened = Slot::open(REPOSITORY, slot().name, &object).unwrap();
    assert_eq!(opened.epoch(), Some(1));
    let unwrapped = opened.unwrap_judged(b"x").unwrap();
    assert_eq!(unwrapped.statement, Statement::Bound);
    assert_eq!(*unwrapped.secrets.encode(), *more.encode());
}

#[test]
fn a_root_under_a_master_key_that_was_given_up_is_refused() {
    let old = Keyring::sealed(REPOSITORY, secrets());
    let mut more = secrets();
    more.add_master([9; 32]);
    let new = Keyring::sealed(REPOSITORY, more);
    assert_eq!((old.epoch(), new.epoch()), (0, 1));
    let object = old.seal_object(Class::Root, "root", Features::NONE, [7; 32], b"payload");
    let older = OpenError::OlderKeyEpoch {
        epoch: 0,
        newest: 1,
    };
    assert_eq!(new.open_object(Class::Root, "root", &object), Err(older));
    let rotating = new.rotating_from(0);
    let opened = rotating.open_object(Class::Root, "root", &object);
    assert_eq!(opened.as_deref(), Ok(&b"payload"[..]));
    let object = rotating.seal_object(Class::Root, "root", Features::NONE, [7; 32], b"payload");
    assert!(new.open_object(Class::Root, "root", &object).is_ok());
    // A flipped bit is damage, whichever epoch it states.
    let mut flipped = object.to_vec();
    flipped[12] = 0;
    assert!(is_damaged(new.open_object(Class::Root, "root", &flipped)));
}
