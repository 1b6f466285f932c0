//! The runtime that a command's asynchronous work runs on.
//!
//! Owns when it starts and how long its end takes. A mount has a runtime of its own.

use std::time::Duration;

use crate::cli::output::Failure;

/// How long a command that has failed waits for its threads. One may sit in a question for a name
/// that no server answers.
pub const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(1);

/// Runs work that waits for the store.
///
/// # Errors
/// The [`Failure`] of the work, or one with exit code 1 if the runtime cannot start.
pub fn block_on<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let runtime = runtime()?;
    let done = runtime.block_on(work);
    if done.is_err() {
        runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    }
    done
}

/// The same for a server, which a signal ends: some of its threads may sit in a file that hangs.
///
/// # Errors
/// Those of [`block_on`].
pub fn block_on_until_told<T>(
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let runtime = runtime()?;
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(SHUTDOWN_PATIENCE);
    done
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new(format!("cannot start the runtime: {error}")))
}
