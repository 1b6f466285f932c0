//! Lists, page by page, until there are enough keys or no more pages.
//!
//! Owns what the services' lists have in common, and the bounds. They tell a store whose lists
//! never end or start over from a store with many objects.

use object_store::ObjectMeta;
use object_store::list::PaginatedListOptions;

use super::RemoteStore;
use super::departed::carrying;
use super::service::Flavor;
use crate::{ObjectInfo, Operation, StoreError, StoreErrorKind, check_key};

/// The number of keys per request: the most that S3 returns.
const PAGE_KEYS_MAX: usize = 1000;

/// The most pages in a row without a requested key. Google and Azure send such pages where many
/// objects were deleted.
const BARREN_PAGES_MAX: usize = 100;

impl RemoteStore {
    /// Returns the first `limit` objects whose key begins with `prefix` and comes after `after`, in
    /// key order.
    ///
    /// # Errors
    /// [`StoreErrorKind::Invalid`] if the store's lists are out of order or do not end; those of
    /// the requests.
    pub(super) async fn list_keys(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ObjectInfo>, StoreError> {
        let (asked, offset) = self.asked(prefix, after);
        let mut found: Vec<ObjectInfo> = Vec::new();
        let mut options = PaginatedListOptions {
            offset,
            ..PaginatedListOptions::default()
        };
        let mut barren = 0;
        while found.len() < limit {
            options.max_keys = Some((limit - found.len()).min(PAGE_KEYS_MAX));
            let (objects, token) = self.page(asked, &options).await?;
            let is_behind = |key: &str| key > prefix && !key.starts_with(prefix);
            let last = objects.last().and_then(|meta| self.key_of(meta));
            let is_over = token.is_none() || last.is_some_and(is_behind);
            let known = found.len();
            found.extend(objects.iter().filter_map(|meta| {
                let key = self.key_of(meta)?;
                let wanted = key.starts_with(prefix) && after.is_none_or(|after| key > after);
                wanted.then(|| ObjectInfo {
                    key: key.to_owned(),
                    size: meta.size,
                })
            }));
            let fresh = &found[known.saturating_sub(1)..];
            if !fresh.is_sorted_by(|first, second| first.key < second.key) {
                return Err(senseless(
                    prefix,
                    "the store does not list in the order of keys",
                ));
            }
            if is_over {
                break;
            }
            if token == options.page_token {
                let fault = "the store's list does not end: a page names itself as the next one";
                return Err(senseless(prefix, fault));
            }
            barren = match found.len() {
                count if count > known => 0,
                _ => barren + 1,
            };
            if barren >= BARREN_PAGES_MAX {
                let fault = format!(
                    "the store's list does not end: {barren} pages in a row name nothing that was \
                     asked for"
                );
                return Err(senseless(prefix, fault));
            }
            options.page_token = token;
        }
        found.truncate(limit);
        Ok(found)
    }

    async fn page(
        &self,
        prefix: &str,
        options: &PaginatedListOptions,
    ) -> Result<(Vec<ObjectMeta>, Option<String>), StoreError> {
        let whole = format!("{}{prefix}", self.prefix);
        let asked = Some(whole.as_str()).filter(|whole| !whole.is_empty());
        let page = self
            .attempt(Operation::List, prefix, |departed| {
                let mut options = options.clone();
                options.extensions = carrying(departed);
                self.service.list_paginated(asked, options)
            })
            .await?;
        Ok((page.result.objects, page.page_token))
    }

    /// Returns the prefix and the offset of the request to the service.
    fn asked<'a>(&self, prefix: &'a str, after: Option<&str>) -> (&'a str, Option<String>) {
        let directory = prefix.rfind('/').map_or("", |slash| &prefix[..=slash]);
        let (asked, after) = match self.flavor {
            // For Azure, `object_store` omits an object whose name equals the prefix. The request
            // therefore names the directory, and an offset that sorts before the prefix.
            Flavor::Azure if directory != prefix => {
                let mut before = prefix.chars();
                before.next_back();
                (directory, after.max(Some(before.as_str())))
            }
            _ => (prefix, after),
        };
        let offset = after.map(|after| format!("{}{after}", self.prefix));
        (asked, offset)
    }

    /// Returns the key of a listed object, or `None` if bkfs cannot have created it.
    fn key_of<'a>(&self, meta: &'a ObjectMeta) -> Option<&'a str> {
        let key = meta.location.as_ref().strip_prefix(&self.prefix)?;
        check_key(Operation::List, key).is_ok().then_some(key)
    }
}

fn senseless(prefix: &str, fault: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, Operation::List, prefix, fault)
}
