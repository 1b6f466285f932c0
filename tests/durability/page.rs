//! What a page of `bkfs serve` waits for: round trips to a store that is far away.

use std::sync::Arc;
use std::time::Duration;

use bkfs::page::Page;
use bkfs::page::answer::Answering;
use bkfs::page::guard::Guard;
use bkfs::page::restores::Restores;
use bkfs_testing::fault::{Fault, Strike};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};

use crate::paused::{World, paused, seconds, snapshot};

/// The time from a request to its answer.
const ROUND_TRIP: Duration = Duration::from_millis(20);

/// The most round trips of a page whose directory was not looked at before.
const ROUND_TRIPS_MAX: u32 = 5;

/// Names in the large directory: as many as a page sorts.
const NAMES: usize = 10_000;

/// Asks for a page. Returns its text, and the round trips that it took.
async fn asked(answering: &Answering, path: &str) -> (String, u32) {
    let request = http::Request::builder()
        .uri(path)
        .header("host", "localhost");
    let request = request.body(Empty::<Bytes>::new()).expect("a request");
    let began = tokio::time::Instant::now();
    let answer = answering.answer(request).await;
    let status = answer.status();
    let body = answer.into_body().collect().await.expect("a body");
    let took = began.elapsed();
    let text = String::from_utf8(body.to_bytes().into()).expect("text");
    assert_eq!(status, 200, "{path}: {text}");
    let round_trips = took.as_micros().div_ceil(ROUND_TRIP.as_micros());
    (text, u32::try_from(round_trips).expect("few"))
}

#[test]
fn a_page_takes_few_round_trips() {
    paused(async {
        let world = World::new(seconds(600)).await;
        let mount = world.mount().await;
        for number in 0..NAMES {
            mount.put(&format!("name-{number}"), b"x").await;
        }
        snapshot(&mount, "full").await;
        let path = "/repository/1/main/full";
        for (path, shown, rows) in [
            (path.to_owned(), "name-9999", NAMES),
            (format!("{path}/name-777"), "name-777", 0),
        ] {
            // Each time a server that has not looked at the directory.
            let repository = world.repository().await;
            let answering = Answering::new(Page {
                repositories: vec![repository],
                guard: Guard::new(&[], None, [0; 32]),
                mounts: Arc::new(|_| Vec::new()),
                may_forget: false,
                restores: Restores::new(Vec::new()),
            });
            asked(&answering, "/repository/1/main/").await;
            world
                .faults
                .plan(Strike::with(Fault::Delay(ROUND_TRIP)).always());
            let (text, round_trips) = asked(&answering, &path).await;
            world.faults.heal();
            assert!(text.contains(shown), "{path}");
            assert!(text.matches("<tr>").count() >= rows, "{path}");
            assert!(
                round_trips <= ROUND_TRIPS_MAX,
                "{path}: {round_trips} round trips"
            );
        }
    });
}
