//! What the verifier says of good and of damaged packs.

use super::*;
use crate::catalog::Place;
use crate::seal::Class;
use crate::verify::{PackContents, PackDamage, Verifier, VerifierConfig};

/// A repository of some files, and the packs of its only index object.
async fn packs(seed: u64, is_sealed: bool) -> (World, Verifier, Vec<PackContents>) {
    let mut world = World::new(seed, is_sealed);
    let depot = world.loaded().await;
    let ingest = world.ingest(&depot);
    for (number, profile) in [Profile::Grid, Profile::Content].into_iter().enumerate() {
        let file = content(seed + number as u64, 3 << 20);
        store_file(&ingest, profile, &file, MIB).await;
    }
    world.commit(&ingest).await;
    let config = VerifierConfig {
        workers: 0,
        ..VerifierConfig::default()
    };
    let entropy = Arc::new(SeededEntropy::new(1));
    let verifier = Verifier::new(
        world.bucket.clone(),
        world.keyring.clone(),
        entropy,
        &config,
    );
    let verifier = verifier.expect("a verifier");
    let mut packs = Vec::new();
    for reference in &world.index {
        packs.extend(verifier.index(*reference).await.expect("reads"));
    }
    assert!(packs.len() >= 3, "data and metadata");
    (world, verifier, packs)
}

async fn damage_of(verifier: &Verifier, pack: &PackContents) -> Vec<PackDamage> {
    let walked = verifier.walk(pack, &mut |_| ()).await;
    walked.expect("the store answers").damage
}

#[tokio::test]
async fn good_packs_verify_and_describe_themselves() {
    for is_sealed in [true, false] {
        let (_world, verifier, packs) = packs(70, is_sealed).await;
        for pack in &packs {
            let mut seen = Vec::new();
            let walked = verifier
                .walk(pack, &mut |found| {
                    seen.push((found.kind, found.id.prefix(), found.frame));
                })
                .await
                .expect("the store answers");
            assert_eq!(walked.damage, []);
            assert_eq!(walked.verified_bytes, pack.bytes());
            let listed = pack
                .blobs()
                .map(|blob| (blob.kind, blob.prefix, blob.frame));
            assert_eq!(seen, listed.collect::<Vec<_>>());
            let described = verifier
                .describe(pack.name(), pack.class(), pack.bytes())
                .await;
            assert_eq!(described.expect("describes itself"), *pack);
        }
    }
}

#[tokio::test]
async fn every_flipped_bit_of_a_pack_is_found_and_placed() {
    for is_sealed in [true, false] {
        let (world, verifier, packs) = packs(71, is_sealed).await;
        for class in [Class::DataPack, Class::MetadataPack] {
            let pack = packs.iter().find(|pack| pack.class() == class);
            let pack = pack.expect("there is one");
            let key = pack.key();
            let good = world.bucket.bytes(&key);
            let end = good.len();
            let spots = (0..40).map(|step| step * (end - 1) / 39);
            for spot in spots.chain([0, 9, 111, 127, 128, end - 16, end - 1]) {
                let mut bytes = good.to_vec();
                bytes[spot] ^= 1 << (spot % 8);
                world.bucket.overwrite(&key, Bytes::from(bytes));
                let damage = damage_of(&verifier, pack).await;
                assert_eq!(damage.len(), 1, "byte {spot} of {end}: {damage:?}");
                if spot < 128 || spot >= end - 16 {
                    assert_eq!(damage[0].frame, None, "byte {spot}");
                    assert_ne!(verifier.ends(pack).await.expect("answers"), []);
                }
            }
            for length in [0, 1, 127, 128, end / 2, end - 1] {
                world
                    .bucket
                    .overwrite(&key, Bytes::from(good[..length].to_vec()));
                assert_ne!(damage_of(&verifier, pack).await, [], "{length} of {end}");
            }
            world
                .bucket
                .overwrite(&key, Bytes::from([&good[..], b"x"].concat()));
            assert_ne!(damage_of(&verifier, pack).await, [], "a byte too many");
            world.bucket.overwrite(&key, Bytes::from(good.to_vec()));
            assert_eq!(damage_of(&verifier, pack).await, []);
        }
    }
}

#[tokio::test]
async fn a_lost_index_is_written_anew_from_footers() {
    let (mut world, verifier, packs) = packs(72, true).await;
    let mut described = Vec::new();
    for pack in &packs {
        let found = verifier.describe(pack.name(), pack.class(), pack.bytes());
        described.push(found.await.expect("describes itself"));
    }
    let depot = world.loaded().await;
    let ingest = world.ingest(&depot);
    let written = ingest.put_index(&described).await.expect("is written");
    let [reference] = written.as_slice() else {
        panic!("few packs make one index object");
    };
    assert_eq!(verifier.index(*reference).await.expect("reads"), packs);
    world.index = written;
    let again = world.depot();
    again.load_packs(&described).await.expect("loads");
    let blob = packs[0].blobs().next().expect("a blob");
    let place = Place {
        pack: packs[0].name(),
        frame: Some(0),
    };
    assert_eq!(again.places_of(&blob.prefix), [place]);
}
