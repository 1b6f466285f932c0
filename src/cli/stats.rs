//! `bkfs stats URL`

use serde_json::{Value, json};

use crate::cli::access::open;
use crate::cli::options::Global;
use crate::cli::output::{Failure, Output, bytes};
use crate::cli::profile::configuration;
use crate::cli::runtime::block_on;
use crate::cli::snapshots::columns;
use crate::cli::target::{profile_of, target};
use crate::config::Prices;
use crate::root::snapshots::SnapshotEntry;
use crate::stats::{Bill, Stats};

/// Show what a repository holds: raw, unique and stored bytes, objects, and an estimate of the bill
///
/// Raw is the size of all snapshots without deduplication, unique the size after deduplication,
/// stored the size in the bucket after compression. The command reads the index and no data. Stored
/// bytes include forgotten data that bkfs gc has not freed yet.
///
/// The estimate uses the prices in the table [repository.NAME.prices] or [prices] of the
/// configuration (storage_gb_month, put_1000, currency). Without one it uses the list prices of S3
/// Standard in us-east-1, or no prices for a local directory.
#[derive(Debug, clap::Args)]
pub struct StatsCommand {
    /// The repository, or a mount of one
    url: String,
}

/// Prints what the repository holds.
///
/// # Errors
/// Exit code 2 if the configuration is not valid; the [`Failure`] of the repository.
pub fn run(command: StatsCommand, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let (url, global) = target(&command.url, global)?;
        let of_profile = profile_of(&command.url)?.and_then(|profile| profile.prices);
        let given = of_profile.or(configuration()?.prices);
        let repository = open(&url, &global).await?;
        let list = repository.snapshots().await?;
        let root = repository.handle.current().root.clone();
        let content_store = &repository.content_store;
        let stats = Stats::of(
            &root,
            content_store.store().clone(),
            content_store.keyring().clone(),
            content_store.entropy().clone(),
        )
        .await?;
        let mut snapshots: Vec<&SnapshotEntry> = list.iter().collect();
        snapshots.sort_by(|one, other| {
            let order = |entry: &SnapshotEntry| (entry.volume.clone(), entry.time);
            order(one).cmp(&order(other))
        });
        let is_local = !repository.url.contains("://") || repository.url.starts_with("file:");
        let prices = match (given, is_local) {
            (Some(prices), _) => Some(prices),
            (None, true) => None,
            (None, false) => Some(Prices::default()),
        };
        let bill = prices.map(|prices| {
            let bill = Bill::estimate(&stats, &snapshots, repository.now(), &prices);
            (bill, prices)
        });
        show(&stats, &snapshots, bill, output)
    })
}

/// Returns how many times `to` fits into `of`; 0 if `to` is 0.
fn ratio(of: u64, to: u64) -> f64 {
    match to {
        0 => 0.0,
        to => of as f64 / to as f64,
    }
}

fn show(
    stats: &Stats,
    snapshots: &[&SnapshotEntry],
    bill: Option<(Bill, Prices)>,
    output: &Output,
) -> Result<(), Failure> {
    let answer = as_json(stats, snapshots, &bill);
    output.result(&answer, || as_text(stats, snapshots, &bill))
}

fn raw_bytes(snapshots: &[&SnapshotEntry]) -> u64 {
    let all = snapshots.iter().map(|entry| entry.bytes);
    all.fold(0, u64::saturating_add)
}

fn as_json(stats: &Stats, snapshots: &[&SnapshotEntry], bill: &Option<(Bill, Prices)>) -> Value {
    let raw = raw_bytes(snapshots);
    let row = |entry: &&SnapshotEntry| {
        json!({
            "volume": entry.volume,
            "name": entry.name,
            "time": entry.time.to_string(),
            "bytes": entry.bytes,
            "new_bytes": entry.new_bytes,
        })
    };
    let month = bill.as_ref().map(|(bill, prices)| {
        json!({
            "currency": prices.currency,
            "storage": bill.storage,
            "requests": bill.requests,
            "total": bill.total(),
        })
    });
    json!({
        "snapshots": snapshots.iter().map(row).collect::<Vec<_>>(),
        "raw_bytes": raw,
        "unique_bytes": stats.unique_bytes,
        "stored_bytes": stats.stored_bytes(),
        "deduplication": ratio(raw, stats.unique_bytes),
        "compression": ratio(stats.unique_bytes, stats.data_bytes),
        "ratio": ratio(raw, stats.stored_bytes()),
        "chunks": stats.chunks,
        "data_packs": stats.data_packs,
        "data_bytes": stats.data_bytes,
        "metadata_packs": stats.metadata_packs,
        "metadata_bytes": stats.metadata_bytes,
        "index_objects": stats.index_objects,
        "lists": stats.lists,
        "month": month,
    })
}

fn as_text(stats: &Stats, snapshots: &[&SnapshotEntry], bill: &Option<(Bill, Prices)>) -> String {
    let raw = raw_bytes(snapshots);
    let mut text = table(snapshots);
    text += &format!(
        "\n\n{} snapshots, {} raw\n{} unique in {} chunks ({:.2} : 1)",
        snapshots.len(),
        bytes(raw),
        bytes(stats.unique_bytes),
        stats.chunks,
        ratio(raw, stats.unique_bytes),
    );
    text += &format!(
        "\n{} stored ({:.2} : 1): {} data packs with {}, {} metadata packs with {}, {} index objects, {} lists",
        bytes(stats.stored_bytes()),
        ratio(raw, stats.stored_bytes()),
        stats.data_packs,
        bytes(stats.data_bytes),
        stats.metadata_packs,
        bytes(stats.metadata_bytes),
        stats.index_objects,
        stats.lists,
    );
    if let Some((bill, prices)) = bill {
        text += &format!(
            "\nabout {:.2} {} a month: {:.2} for storage, {:.2} for requests",
            bill.total(),
            prices.currency,
            bill.storage,
            bill.requests,
        );
    }
    text
}

fn table(snapshots: &[&SnapshotEntry]) -> String {
    let mut rows = vec![["SNAPSHOT", "TIME", "SIZE", "NEW"].map(str::to_owned)];
    rows.extend(snapshots.iter().map(|entry| {
        [
            format!("{}:{}", entry.volume, entry.name),
            entry.time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            bytes(entry.bytes),
            bytes(entry.new_bytes),
        ]
    }));
    columns(&rows, &[2, 3])
}
