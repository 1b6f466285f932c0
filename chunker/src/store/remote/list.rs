//! Lists, page by page, until there are enough of them or no more.
//!
//! Owns what the services' lists have in common, and the bounds: a store whose lists never end, or
//! that begins them anew, is told from one that has many objects.

use object_store::ObjectMeta;
use object_store::list::PaginatedListOptions;

use super::attempt::carrying;
use super::{Flavor, RemoteStore};
use crate::store::{ObjectInfo, Operation, StoreError, StoreErrorKind, check_key};

/// How many keys are asked for at once (the most that S3 gives).
const PAGE_KEYS_MAX: usize = 1000;

/// How many pages in a row may bring nothing that was asked for. Google and Azure send some where
/// many objects were deleted.
const BARREN_PAGES_MAX: usize = 100;

impl RemoteStore {
    /// The first `limit` objects whose key begins with `prefix` and comes after `after`, in the
    /// order of keys.
    ///
    /// # Errors
    /// `Invalid` if the store's lists are out of order, or do not end; those of the requests.
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
                    "the store's list does not end: {barren} pages in a row name nothing that was asked for"
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

    /// The prefix and the offset that the service is asked for.
    fn asked<'a>(&self, prefix: &'a str, after: Option<&str>) -> (&'a str, Option<String>) {
        let directory = prefix.rfind('/').map_or("", |slash| &prefix[..=slash]);
        let (asked, after) = match self.flavor {
            // For Azure, `object_store` leaves out what is named exactly as the prefix. So it is
            // asked for what lies in the
            // directory, from something before the prefix on.
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

    /// The key of a listed object; `None` if it is none of ours.
    fn key_of<'a>(&self, meta: &'a ObjectMeta) -> Option<&'a str> {
        let key = meta.location.as_ref().strip_prefix(&self.prefix)?;
        check_key(Operation::List, key).is_ok().then_some(key)
    }
}

fn senseless(prefix: &str, fault: impl Into<String>) -> StoreError {
    StoreError::new(StoreErrorKind::Invalid, Operation::List, prefix, fault)
}
