//! Short file operations of async tasks.
//!
//! Owns the thread that they run on. The callers own the files.

use std::io;

/// Runs a short file operation on a thread where it does not block other tasks.
///
/// Cancel safety: dropped after its first poll, it leaves the operation to run to its end.
///
/// # Errors
/// Those of `work`, and an error of kind `Other` if the operation panics.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(io::Error::other)?
}
