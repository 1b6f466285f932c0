//! What forms change.
//!
//! Owns which form may change what, and the fields of forms. Does not own who may send one
//! (`guard`), nor the pages with the forms (`forms`).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore, oneshot};
use url::form_urlencoded;

use crate::maintain::forgetting::Changer;
use crate::page::Page;
use crate::page::contents::{self, ContentsError};
use crate::page::restores::{NotBegun, Wish};
use crate::page::route::{FileName, Form, Route};
use crate::repository::Repository;
use crate::restore::overwrite::Overwrite;
use crate::root::error::RootError;

/// What the root names as the holder of the session of a change.
const COMMAND: &str = "bkfs serve";

/// Changes of one repository that are made or wait for their turn.
const CHANGES_MAX: usize = 4;

/// Pause before one more attempt to remove a session that a change has left.
const LEFTOVER_PAUSE: Duration = Duration::from_secs(30);

/// What a restore does with existing files: the name in a form, and the words for it.
pub const OVERWRITE: [(&str, &str, Overwrite); 4] = [
    ("refused", "restore nothing", Overwrite::Refused),
    (
        "never",
        "keep them, and make what is absent",
        Overwrite::Never,
    ),
    (
        "if-changed",
        "replace those of another size or time",
        Overwrite::IfChanged,
    ),
    ("always", "replace them", Overwrite::Always),
];

/// Why a form changes nothing.
#[derive(Debug, thiserror::Error)]
pub enum NotChanged {
    /// The server was not started for that.
    #[error("this server does not do that: bkfs serve needs {option} for it")]
    NotAllowed {
        /// The option that allows it.
        option: &'static str,
    },
    /// The form lacks a field, or has an impossible one.
    #[error("the form has no proper {field}")]
    Field {
        /// The name of the field.
        field: &'static str,
    },
    /// What it is about is not there, or cannot be read.
    #[error(transparent)]
    Contents(#[from] ContentsError),
    /// A repository was not changed.
    #[error("{0}")]
    Lists(RootError),
    /// Others wait for their turn.
    #[error("{CHANGES_MAX} changes of this repository are on their way: try again later")]
    Busy,
    /// A restore does not begin.
    #[error(transparent)]
    NotBegun(#[from] NotBegun),
    /// The change has ended by a fault of bkfs.
    #[error("the change has ended by a fault of bkfs: the log of the server has more")]
    Lost,
}

/// The fields of a form.
#[derive(Debug)]
pub struct Fields(Vec<(String, String)>);

impl Fields {
    /// Returns the fields that a body has.
    pub fn parse(body: &[u8]) -> Self {
        Self(form_urlencoded::parse(body).into_owned().collect())
    }

    /// Returns the value of a field that is there once.
    pub fn get(&self, field: &str) -> Option<&str> {
        let mut values = self.0.iter().filter(|(name, _)| name == field);
        let (_, value) = values.next()?;
        values.next().is_none().then_some(value)
    }
}

/// Carries forms out.
pub struct Changes {
    page: Arc<Page>,
    /// For each repository of the page. One that it has twice has one queue.
    queues: Vec<Queue>,
}

/// The changes of a repository. Each is a session in its root: one at a time.
#[derive(Clone)]
struct Queue {
    places: Arc<Semaphore>,
    turn: Arc<Mutex<()>>,
}

impl Changes {
    /// Returns what carries out the forms of a page.
    pub fn new(page: Arc<Page>) -> Self {
        let id = |repository: &Repository| repository.handle.keyring().repository();
        let mut queues: Vec<Queue> = Vec::new();
        for repository in &page.repositories {
            let mut before = page.repositories.iter().zip(&queues);
            let same = before.find(|(other, _)| id(other) == id(repository));
            let queue = same.map(|(_, queue)| queue.clone());
            queues.push(queue.unwrap_or_else(|| Queue {
                places: Arc::new(Semaphore::new(CHANGES_MAX)),
                turn: Arc::default(),
            }));
        }
        Self { page, queues }
    }

    /// Lets no change begin any more, and waits for those that were begun, and until stopped restores
    /// have let their files go.
    pub async fn end(&self) {
        self.page.restores.end();
        for queue in &self.queues {
            queue.places.close();
        }
        for queue in &self.queues {
            drop(queue.turn.lock().await);
        }
        self.page.restores.are_over().await;
    }

    /// Checks that the server may do what a page with a form is about.
    ///
    /// # Errors
    /// [`NotChanged::NotAllowed`].
    pub fn check(&self, route: &Route) -> Result<(), NotChanged> {
        let (is_allowed, option) = match route {
            Route::File(_, Form::Forget | Form::BringBack) => {
                (self.page.may_forget, "--allow-forget")
            }
            Route::File(_, Form::Restore) | Route::Restores | Route::Restore { .. } => {
                (!self.page.restores.roots.is_empty(), "--allow-restore")
            }
            _ => (true, ""),
        };
        match is_allowed {
            true => Ok(()),
            false => Err(NotChanged::NotAllowed { option }),
        }
    }

    /// Carries out the form that was sent to an address. Returns the page to go on with.
    ///
    /// Cancel safety: dropped, it leaves a change of a repository to go on by itself.
    ///
    /// # Errors
    /// [`NotChanged`].
    pub async fn carry_out(&self, route: Route, fields: &Fields) -> Result<Route, NotChanged> {
        self.check(&route)?;
        match route {
            Route::File(file, form @ (Form::Forget | Form::BringBack)) => {
                self.change_lists(file, form).await
            }
            Route::File(file, Form::Restore) => self.restore(file, fields).await,
            Route::Restore { number, .. } => {
                let restore = self.page.restores.find(number);
                restore
                    .ok_or(ContentsError::Absent { what: "restore" })?
                    .stop();
                let is_watched = false;
                Ok(Route::Restore { number, is_watched })
            }
            _ => Err(ContentsError::Absent { what: "form" }.into()),
        }
    }

    async fn change_lists(&self, file: FileName, form: Form) -> Result<Route, NotChanged> {
        if !file.path.is_empty() {
            return Err(ContentsError::Absent { what: "form" }.into());
        }
        let after = Route::Volume(file.volume.clone());
        let number = file.volume.repository;
        let absent = ContentsError::Absent { what: "repository" };
        let queue = self.queues.get(number).ok_or(absent)?;
        let place = queue.places.clone().try_acquire_owned();
        let place = place.map_err(|_| NotChanged::Busy)?;
        let (page, turn) = (self.page.clone(), queue.turn.clone());
        let (sender, done) = oneshot::channel();
        // A task of its own: a browser that leaves must not leave a session in the root.
        tokio::spawn(async move {
            let taken = turn.lock().await;
            if sender.is_closed() {
                // The browser has left while it waited for its turn.
                return;
            }
            let done = change_lists(&page, &file, form).await;
            drop(taken);
            // The browser may have left meanwhile.
            let _ = sender.send(done);
            clear(&page, number, &turn, place).await;
        });
        done.await.map_err(|_| NotChanged::Lost)??;
        Ok(after)
    }

    async fn restore(&self, file: FileName, fields: &Fields) -> Result<Route, NotChanged> {
        let wish = wish(fields)?;
        // A full house need not ask the store.
        let place = self.page.restores.place()?;
        let opened = contents::open(self.page.repository(file.volume.repository)?, &file).await?;
        if !opened.entry.is_directory() && !opened.entry.is_file() {
            return Err(ContentsError::Absent { what: "file" }.into());
        }
        let number = self.page.restores.begin(opened, file, &wish, place)?;
        let is_watched = false;
        Ok(Route::Restore { number, is_watched })
    }
}

fn changer(page: &Page, number: usize) -> Result<Changer<'_>, ContentsError> {
    Ok(Changer {
        repository: page.repository(number)?,
        command: COMMAND,
    })
}

async fn change_lists(page: &Page, file: &FileName, form: Form) -> Result<(), NotChanged> {
    let changer = changer(page, file.volume.repository)?;
    let (volume, name) = (&file.volume.volume, &file.snapshot);
    let (changed, doing) = if form == Form::Forget {
        let names = std::slice::from_ref(name);
        (changer.forget(volume, names).await, "forgotten")
    } else {
        let back = changer.bring_back(volume, name).await;
        (back.map(|_| ()), "brought back")
    };
    let shown = crate::printable::line(name);
    match &changed {
        // A trace of what was changed from afar, though nothing is wrong.
        Ok(()) => tracing::warn!("a form has {doing} the snapshot {shown}"),
        Err(error) => tracing::warn!("the snapshot {shown} is not {doing} by a form: {error}"),
    }
    changed.map_err(NotChanged::Lists)
}

/// Removes the session that a change has left in the root, if it has left one. The place is taken
/// for as long, the turn for each attempt.
async fn clear(page: &Page, number: usize, turn: &Mutex<()>, place: OwnedSemaphorePermit) {
    let _place = place;
    let Ok(changer) = changer(page, number) else {
        return;
    };
    loop {
        let taken = turn.lock().await;
        let ended = changer.end_leftovers().await;
        drop(taken);
        match ended {
            Ok(()) => return,
            Err(error) => {
                tracing::debug!("a session of this server may still be in the root: {error}");
            }
        }
        tokio::time::sleep(LEFTOVER_PAUSE).await;
    }
}

/// Returns what the form of a restore asks for.
fn wish(fields: &Fields) -> Result<Wish, NotChanged> {
    let field = |field| fields.get(field).ok_or(NotChanged::Field { field });
    let root = field("root")?.parse();
    let overwrite = field("existing")?;
    let overwrite = OVERWRITE.iter().find(|(name, ..)| *name == overwrite);
    Ok(Wish {
        root: root.map_err(|_| NotChanged::Field { field: "root" })?,
        below: PathBuf::from(field("below")?),
        overwrite: overwrite.ok_or(NotChanged::Field { field: "existing" })?.2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::guard::Guard;
    use crate::page::restores::{RestoreRoot, Restores};
    use crate::page::route::VolumeName;

    /// Returns what carries out the forms of a page without repositories.
    fn changes(may_forget: bool, roots: Vec<RestoreRoot>) -> Changes {
        Changes::new(Arc::new(Page {
            repositories: Vec::new(),
            guard: Guard::new(&[], None, [0; 32]),
            mounts: Arc::new(|_| Vec::new()),
            may_forget,
            restores: Restores::new(roots),
        }))
    }

    fn file(form: Form) -> Route {
        let volume = VolumeName {
            repository: 0,
            volume: "main".into(),
        };
        Route::File(volume.snapshot("first"), form)
    }

    #[tokio::test]
    async fn a_server_does_what_its_options_allow() {
        let home = tempfile::TempDir::new().unwrap();
        let roots = || vec![RestoreRoot::open(home.path()).unwrap()];
        let (number, is_watched) = (1, false);
        let restore = || Route::Restore { number, is_watched };
        for (changes, allowed) in [
            (changes(false, Vec::new()), [false, false]),
            (changes(true, Vec::new()), [true, false]),
            (changes(false, roots()), [false, true]),
            (changes(true, roots()), [true, true]),
        ] {
            let fields = Fields::parse(b"root=0&below=x&existing=never");
            for (route, is_allowed) in [
                (file(Form::Forget), allowed[0]),
                (file(Form::BringBack), allowed[0]),
                (file(Form::Restore), allowed[1]),
                (restore(), allowed[1]),
            ] {
                let checked = changes.check(&route);
                assert_eq!(checked.is_ok(), is_allowed, "{route:?}");
                let done = changes.carry_out(route, &fields).await.unwrap_err();
                let is_refused = matches!(done, NotChanged::NotAllowed { .. });
                assert_eq!(is_refused, !is_allowed, "{done}");
            }
            changes.check(&Route::Overview).unwrap();
        }
    }

    #[test]
    fn a_field_that_is_there_twice_has_no_value() {
        let fields = Fields::parse(b"a=1&b=2&b=3&c=%2e%2e%2Fx&d=");
        assert_eq!(fields.get("a"), Some("1"));
        assert_eq!(fields.get("b"), None);
        assert_eq!(fields.get("c"), Some("../x"));
        assert_eq!(fields.get("d"), Some(""));
        assert_eq!(fields.get("e"), None);
    }

    #[test]
    fn a_restore_needs_each_of_its_fields() {
        let good = "root=1&below=a/b&existing=never";
        let made = wish(&Fields::parse(good.as_bytes())).unwrap();
        assert_eq!(made.root, 1);
        assert_eq!(made.below, PathBuf::from("a/b"));
        assert_eq!(made.overwrite, Overwrite::Never);
        for bad in [
            "root=1&below=a",
            "root=-1&below=a&existing=never",
            "root=1&existing=never",
            "root=1&below=a&existing=all",
            "root=1&root=0&below=a&existing=never",
        ] {
            let field = wish(&Fields::parse(bad.as_bytes()));
            assert!(matches!(field, Err(NotChanged::Field { .. })), "{bad}");
        }
    }
}
