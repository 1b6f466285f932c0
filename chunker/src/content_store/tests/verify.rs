//! The verifier's reports on undamaged and damaged packs.

use super::*;
use crate::catalog::PackLocation;
use crate::crypto::Class;
use crate::pack::FooterBuilder;
use crate::verify::{PackContents, PackDamage, Verifier, VerifierConfig};

/// Returns a repository of some files, and the packs of its only index object.
async fn packs(seed: u64, is_sealed: bool) -> (World, Verifier, Vec<PackContents>) {
    let mut world = World::new(seed, is_sealed);
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
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
    let content_store = world.loaded().await;
    let ingest = world.ingest(&content_store);
    let written = ingest.put_index(&described).await.expect("is written");
    let [reference] = written.as_slice() else {
        panic!("few packs make one index object");
    };
    assert_eq!(verifier.index(*reference).await.expect("reads"), packs);
    world.index = written;
    let again = world.content_store();
    again.load_packs(&described).await.expect("loads");
    let blob = packs[0].blobs().next().expect("a blob");
    let place = PackLocation {
        pack: packs[0].name(),
        frame: Some(0),
    };
    assert_eq!(again.places_in_memory(&blob.prefix), [place]);
}

/// An index states places. Only the bytes at a place decide which blob lies there.
#[tokio::test]
async fn an_index_that_gives_a_blob_the_place_of_another_makes_no_wrong_answer() {
    for is_sealed in [true, false] {
        let mut world = World::new(73, is_sealed);
        let content_store = world.loaded().await;
        let ingest = world.ingest(&content_store);
        let mut nodes = Vec::new();
        for seed in 0..2 {
            let bytes = noise(7300 + seed, 300);
            let id = ingest.store_blob(Kind::Node, bytes.clone()).await;
            nodes.push((id.expect("is stored"), bytes));
        }
        let finished = ingest.finish(&world.index).await.expect("finishes");
        let name = finished.packs[0];
        let config = VerifierConfig {
            workers: 0,
            ..VerifierConfig::default()
        };
        let verifier = Verifier::new(
            world.bucket.clone(),
            world.keyring.clone(),
            Arc::new(SeededEntropy::new(1)),
            &config,
        );
        let key = name.key(Class::MetadataPack);
        let length = world.bucket.bytes(&key).len() as u64;
        let verifier = verifier.expect("a verifier");
        let described = verifier.describe(name, Class::MetadataPack, length).await;
        let PackContents(truth) = described.expect("describes itself");
        let mut lie = truth.clone();
        let mut prefixes: Vec<_> = truth.footer.blobs().map(|blob| blob.prefix).collect();
        prefixes.reverse();
        let mut footer = FooterBuilder::new();
        for frame in truth.footer.frames() {
            let blobs = truth.footer.blobs().zip(&prefixes);
            let blobs = blobs.filter(|(blob, _)| blob.frame == frame.number);
            let blobs = blobs.map(|(blob, prefix)| (blob.kind, blob.length, *prefix));
            footer.push(frame.stored_length, blobs);
        }
        lie.footer = footer.finish().expect("a footer");
        for (record, is_true) in [(truth, true), (lie, false)] {
            let reader = world.content_store();
            let packs = [PackContents(record)];
            reader.load_packs(&packs).await.expect("loads");
            for (id, bytes) in &nodes {
                match reader.read_blob(Kind::Node, *id).await {
                    Ok(read) => assert!(is_true && read == *bytes),
                    Err(error) => assert!(!is_true, "{error}"),
                }
            }
        }
    }
}
