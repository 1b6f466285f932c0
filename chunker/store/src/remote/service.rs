//! What the clients of all services have in common, and which services need different requests.

use object_store::ObjectStore;
use object_store::list::PaginatedListStore;

/// The traits that the clients of all services implement.
pub(super) trait Service: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Service for T {}

/// The services that need different requests.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Flavor {
    S3,
    Gcs,
    Azure,
}
