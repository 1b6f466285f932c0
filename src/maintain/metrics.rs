//! The metrics of a repository, read from its root.
//!
//! Owns what is read for them. Does not own the values (`exposition::repository`).

use crate::exposition::{Exposition, repository};
use crate::maintain::collect::sweep::free_epochs;
use crate::repository::Repository;
use crate::root::error::RootError;

/// Returns the metrics of a repository as text. Reads the root, the list of snapshots and, if packs
/// are condemned, what each session says of itself. The index of a large repository would take long.
///
/// # Errors
/// Those of reading these.
pub async fn metrics_of(repository: &Repository) -> Result<String, RootError> {
    let (view, snapshots) = (repository.lists.current_snapshots(&repository.handle)).await?;
    let mut text = Exposition::default();
    let (_, holding) = free_epochs(&repository.handle, &view.root, None).await?;
    repository::expose(&view.root, &snapshots, holding.len() as u64, &mut text);
    Ok(text.into_text(&[("repository", repository.url.clone())]))
}
