//! One case: the harm that is done to one object, and what must hold after it.

use std::collections::BTreeSet;
use std::fmt;

use bkfs::maintain::check::check;
use bkfs::root::chain::RootMark;
use bkfs::root::choice::KeyChoice;
use bkfs::root::memory::{GenerationMemory, VolatileMemory};
use bkfs::root::repository::open_keys;
use bkfs::root::state::Root;
use bkfs_chunker::crypto::Class;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::password::Known;
use crate::restored::restore;
use crate::world::{Fixture, Objects, SNAPSHOTS, bucket, class_of, wait};

/// The harm that is done to an object.
#[derive(Clone, Debug)]
pub enum Harm {
    /// One bit of a byte is flipped: the byte's position, and the bit.
    Flip(usize, u8),
    /// Only this many bytes are left.
    Cut(usize),
    /// This many bytes are appended.
    Grow(usize),
    /// The bytes from the first position up to the second (exclusive) become zero.
    Blank(usize, usize),
    /// The object is deleted.
    Remove,
    /// The object and this one are swapped.
    Swap(String),
    /// The object is as it was one snapshot before. Only the root has an older state.
    Older,
}

/// One case.
#[derive(Clone, Debug)]
pub struct Case {
    key: String,
    harm: Harm,
}

impl fmt::Display for Case {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{} of {}",
            format!("{:?}", self.harm).to_lowercase(),
            self.key
        )
    }
}

impl Case {
    /// Creates the case of this harm to this object.
    pub fn new(key: &str, harm: Harm) -> Self {
        let key = key.to_owned();
        Self { key, harm }
    }

    /// Draws the case of this number. Classes take turns, so that a few cases strike all of them.
    pub fn draw(fixture: &Fixture, seed: u64, number: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(number));
        let classes: BTreeSet<&str> = fixture.needed.iter().map(|key| class_of(key)).collect();
        let class = classes.iter().nth(number as usize % classes.len());
        let class = *class.expect("there are classes");
        let keys: Vec<&String> = fixture
            .needed
            .iter()
            .filter(|key| class_of(key) == class)
            .collect();
        let key = keys[random.random_range(0..keys.len())].clone();
        let length = fixture.objects[&key].len();
        let harm = loop {
            break match random.random_range(0..10) {
                0..4 => Harm::Flip(random.random_range(0..length), random.random_range(0..8)),
                4 => Harm::Cut(random.random_range(0..length)),
                5 => Harm::Grow(random.random_range(1..5_000)),
                6 => {
                    let start = random.random_range(0..length);
                    let end = (start + random.random_range(16..4_096)).min(length);
                    if fixture.objects[&key][start..end]
                        .iter()
                        .all(|byte| *byte == 0)
                    {
                        continue;
                    }
                    Harm::Blank(start, end)
                }
                7 => Harm::Remove,
                8 => {
                    let other = &fixture.needed[random.random_range(0..fixture.needed.len())];
                    // A mistaken copy would swap two objects of one class.
                    let alike = keys[random.random_range(0..keys.len())];
                    let other = if random.random_bool(0.7) {
                        alike
                    } else {
                        other
                    };
                    if *other == key {
                        continue;
                    }
                    Harm::Swap(other.clone())
                }
                _ if class == "root" => Harm::Older,
                _ => continue,
            };
        };
        Self { key, harm }
    }

    /// Returns the class of the object.
    pub fn class(&self) -> &'static str {
        class_of(&self.key)
    }

    /// Returns the objects with the harm done.
    pub fn apply(&self, fixture: &Fixture) -> Objects {
        let mut objects = fixture.objects.clone();
        let bytes = objects[&self.key].clone();
        let harmed = match &self.harm {
            Harm::Flip(byte, bit) => {
                let mut bytes = bytes.to_vec();
                bytes[*byte] ^= 1 << bit;
                Bytes::from(bytes)
            }
            Harm::Cut(length) => bytes.slice(..*length),
            Harm::Grow(more) => Bytes::from([&bytes[..], &vec![7; *more]].concat()),
            Harm::Blank(start, end) => {
                let mut bytes = bytes.to_vec();
                bytes[*start..*end].fill(0);
                Bytes::from(bytes)
            }
            Harm::Remove => {
                objects.remove(&self.key);
                return objects;
            }
            Harm::Swap(other) => objects.insert(other.clone(), bytes).expect("is there"),
            Harm::Older => fixture.older_root.clone(),
        };
        objects.insert(self.key.clone(), harmed);
        objects
    }

    /// Returns the objects that a check must name.
    fn harmed(&self) -> Vec<&str> {
        match &self.harm {
            Harm::Swap(other) => vec![&self.key, other],
            _ => vec![&self.key],
        }
    }

    /// Returns true if a check cannot see the harm, or need not. Without its heartbeat a session
    /// holds back deletion and harms nothing else: it may not have sent one yet. The newest journal
    /// that is gone might never have been written.
    fn is_unseen(&self, fixture: &Fixture) -> bool {
        let mut journals = fixture
            .objects
            .keys()
            .filter(|key| class_of(key) == "journal");
        let is_newest = journals.next_back() == Some(&self.key);
        matches!(self.harm, Harm::Remove) && (self.class() == "sessions" || is_newest)
    }
}

/// Returns a memory of this machine that has the last root.
fn memory(fixture: &Fixture) -> VolatileMemory {
    let payload = fixture
        .keyring
        .open_object(Class::Root, "root", &fixture.objects["root"]);
    let root = Root::decode(&payload.expect("opens")).expect("a root");
    let memory = VolatileMemory::default();
    let mark: RootMark = root.mark();
    wait(memory.remember(mark)).expect("remembers");
    memory
}

/// Does the harm, and checks what follows from it.
///
/// # Errors
/// A sentence about the first expectation that does not hold.
pub fn run_case(fixture: &Fixture, case: &Case) -> Result<(), String> {
    let objects = case.apply(fixture);
    let allowed = find(fixture, case, &objects)?;
    for name in SNAPSHOTS {
        let Ok(restored) = restore(fixture, bucket(&objects), name) else {
            if case.is_unseen(fixture) {
                return Err(format!("{name} does not restore"));
            }
            continue;
        };
        let expected = &fixture.trees[name];
        let spoiled = |path: &str| {
            let below =
                |problem: &String| path == problem || path.starts_with(&format!("{problem}/"));
            restored
                .problems
                .iter()
                .any(|problem| problem == "/" || below(problem))
        };
        for (path, seen) in &restored.tree {
            if !spoiled(path) && expected.get(path) != Some(seen) {
                return Err(format!(
                    "{path} of {name} was restored wrongly, without an error"
                ));
            }
        }
        let lost = expected
            .keys()
            .find(|path| !spoiled(path) && !restored.tree.contains_key(*path));
        if let Some(path) = lost {
            return Err(format!("{path} of {name} is gone, without an error"));
        }
        if let Some(allowed) = &allowed {
            for path in &restored.problems {
                if !allowed.contains(&format!("main/{name}:{path}")) {
                    return Err(format!(
                        "{path} of {name} failed, and was not hit: {allowed:?}"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Runs a check. Returns the files that may fail, if the check is known to have named all of them.
fn find(
    fixture: &Fixture,
    case: &Case,
    objects: &Objects,
) -> Result<Option<BTreeSet<String>>, String> {
    let opened = wait(open_keys(
        &*bucket(objects),
        None,
        &KeyChoice::default(),
        &mut Known(fixture.password),
    ));
    if let Err(error) = opened {
        let says = error.to_string();
        let named = case.harmed().iter().any(|key| says.contains(key))
            || (says.contains("keys/") && case.harmed().iter().any(|key| class_of(key) == "keys"));
        return match named {
            true => Ok(None),
            false => Err(format!("the error names no object: {says}")),
        };
    }
    let mut options = fixture.options();
    options.memory = Some(std::sync::Arc::new(memory(fixture)));
    let report = wait(check(bucket(objects), &fixture.keyring, &options));
    let report = report.map_err(|error| format!("the check ended with {error}"))?;
    if case.is_unseen(fixture) {
        return match report.is_clean() {
            true => Ok(Some(BTreeSet::new())),
            false => Err(format!("nothing to see, and found: {report}")),
        };
    }
    if report.is_clean() {
        return Err("the check found nothing".to_owned());
    }
    // Without a root the rest cannot be judged.
    let root_is_lost = report.generation.is_none();
    for key in case.harmed() {
        if !report.names(key) && !root_is_lost {
            return Err(format!("the check does not name {key}: {report}"));
        }
    }
    let packs_only = case
        .harmed()
        .iter()
        .all(|key| matches!(class_of(key), "data" | "meta"));
    if !packs_only {
        return Ok(None);
    }
    let mut files = BTreeSet::new();
    for problem in &report.problems {
        // Paths below a node that cannot be read in the middle of a tree have no known names.
        if problem
            .files
            .iter()
            .any(|file| file.contains("(inode") || file.ends_with(":/"))
        {
            return Ok(None);
        }
        // A report names the files of equal trees by the first snapshot only.
        for file in &problem.files {
            let path = file.split_once(':').map_or("", |(_, path)| path);
            files.extend(
                problem
                    .snapshots
                    .iter()
                    .map(|name| format!("{name}:{path}")),
            );
        }
    }
    Ok(Some(files))
}
