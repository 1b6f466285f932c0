//! `bkfs init URL`

use bkfs_store::lock::{LockMode, LockRule};
use serde_json::json;
use zeroize::Zeroizing;

use crate::acquaintance::{Acquaintance, known_at};
use crate::cli::access::Access;
use crate::cli::options::{Global, some_lock_days};
use crate::cli::output::{Failure, Output};
use crate::cli::runtime::block_on;
use crate::cli::target::target_of_new;
use crate::places;
use crate::repository::{self, Creation};

/// Create a repository
///
/// bkfs refuses a store whose conditional writes are wrong. Without --no-encryption it asks for a
/// password twice. Without that password nothing can be restored.
#[derive(Debug, clap::Args)]
pub struct Init {
    /// The repository: s3://bucket/prefix, gs://…, az://…, or a directory
    url: String,
    /// Do not encrypt: every reader of the bucket can read the contents; they are verified by hash
    #[arg(long)]
    no_encryption: bool,
    /// Let the bucket lock packs, keys and config against deletion for this many days; bkfs gc
    /// extends the locks of what is needed. Only for S3, in a bucket created with Object Lock
    #[arg(
        long,
        value_name = "DAYS",
        value_parser = some_lock_days
    )]
    lock_days: Option<u32>,
    /// governance: users with s3:BypassGovernanceRetention can remove a lock; compliance: no user
    /// can, not even the owner of the account
    #[arg(
        long,
        value_name = "MODE",
        default_value = "governance",
        requires = "lock_days"
    )]
    lock_mode: LockMode,
}

/// Creates a repository.
///
/// # Errors
/// The [`Failure`] of the store; exit code 1 if the URL is taken or the store's conditional writes
/// are wrong, 2 if the two passwords differ or are empty, 12 if there is no password and no
/// terminal.
pub fn run(command: Init, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let url = target_of_new(&command.url)?;
        let access = Access::of_command(&url, global)?;
        let mode = command.lock_mode;
        let lock = command.lock_days.map(|days| LockRule { days, mode });
        create(&access, command.no_encryption, lock, output).await
    })
}

async fn create(
    access: &Access,
    no_encryption: bool,
    lock: Option<LockRule>,
    output: &Output,
) -> Result<(), Failure> {
    let password = if no_encryption {
        None
    } else {
        Some(access.password.new_password()?)
    };
    let password = password.map(|password| Zeroizing::new(password.as_bytes().to_vec()));
    let creation = Creation {
        url: access.url.clone(),
        store: access.store.clone(),
        password,
        lock,
    };
    let id = repository::create(creation)
        .await
        .map_err(|error| access.explain(error))?;
    let sealed = !no_encryption;
    let place = places::state_dir().map(|directory| access.place(&directory));
    if let (Some(place), Some(made)) = (place, Acquaintance::named(&id, sealed)) {
        place.remember(made).await;
    }
    let answer = json!({ "repository": access.url.to_string(), "id": id, "encrypted": sealed,
        "lock_days": lock.map(|lock| lock.days),
        "lock_mode": lock.map(|lock| lock.mode.to_string()) });
    output.result(&answer, || {
        let how = if sealed {
            "sealed under the password"
        } else {
            "NOT encrypted"
        };
        let locked = lock.map_or(String::new(), |lock| {
            format!("; packs are locked for {} days ({})", lock.days, lock.mode)
        });
        format!("created repository {} ({how}{locked})", access.url)
    })
}

/// Creates the repository unless it exists. Returns true if it did not.
///
/// # Errors
/// Those of creating one. Exit code 1 if this machine has known a repository here and none is left.
pub async fn create_if_absent(
    access: &Access,
    no_encryption: bool,
    output: &Output,
) -> Result<bool, Failure> {
    if repository::exists(&access.url, &access.store)
        .await
        .map_err(|error| access.explain(error))?
    {
        return Ok(false);
    }
    let place = places::state_dir().map(|directory| access.place(&directory));
    if let Some(known) = known_at(place.as_ref(), access.accepted.replaced).await {
        let message = format!(
            "repository {}: this machine knows {known} at this address, and found none",
            access.url
        );
        let hint =
            "Bring the repository back; if it was removed on purpose, create a new one: bkfs init";
        return Err(Failure::new(message).hint(hint));
    }
    create(access, no_encryption, None, output).await?;
    Ok(true)
}
