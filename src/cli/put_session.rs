//! The session of a command that writes a volume without a mount.
//!
//! Owns: how it begins and ends, and what becomes of errors. Does not own: what is written.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::cli::access::open;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output};
use crate::cli::signals::Endings;
use crate::cli::target::target;
use crate::mounting::alone::{Alone, AloneParts};
use crate::mounting::ending::Deadline;
use crate::mounting::error::MountingError;
use crate::mounting::settings::Settings;
use crate::repository::Repository;
use crate::root::error::RootError;
use crate::root::refusal::Refusal;
use crate::root::snapshots::SnapshotReference;
use crate::volume::requests::{CommitOutcome, SnapshotRequest};

/// The volume that puts go to unless --volume is given. A mount of the default volume does not hold
/// it.
const VOLUME: &str = "streams";

/// Time limit of the last commit after a signal. That commit only spares the next put some work.
const LAST_COMMIT: Duration = Duration::from_secs(10);

/// What a session is begun with.
pub struct Begin<'a> {
    /// The repository, or a mount of one.
    pub url: &'a str,
    /// The name of the snapshot to be made, if it has one.
    pub name: Option<&'a str>,
    /// The command, for others that find the volume held.
    pub command: String,
    /// Take the volume over from its holder.
    pub steal: bool,
    /// Accept that acknowledged changes are missing from the bucket.
    pub accept_loss: bool,
}

/// A session that writes one volume.
pub struct Session {
    /// The repository.
    pub repository: Arc<Repository>,
    /// The name of the volume.
    pub volume: String,
    /// The session in the root.
    pub alone: Alone,
    signals: Signals,
}

/// The signals since a session began. None is lost between two steps of the work.
struct Signals {
    heard: watch::Receiver<(u32, &'static str)>,
    listener: tokio::task::JoinHandle<()>,
}

impl Signals {
    /// Starts to listen. Signals no longer end the process by themselves then, unless no handler can
    /// be set.
    fn listen() -> Signals {
        let (sender, heard) = watch::channel((0, ""));
        let endings = Endings::listen();
        let listener = tokio::spawn(async move {
            let Ok(mut endings) = endings else {
                return std::future::pending().await;
            };
            loop {
                let why = endings.recv().await;
                sender.send_modify(|heard| *heard = (heard.0 + 1, why));
            }
        });
        Signals { heard, listener }
    }

    /// Waits for the signal after the first `before`, and says what it was.
    async fn after(&self, before: u32) -> &'static str {
        let mut heard = self.heard.clone();
        let heard = heard.wait_for(|heard| heard.0 > before).await;
        heard.map_or("ended", |heard| heard.1)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Session {
    /// Opens the repository and takes the volume.
    ///
    /// # Errors
    /// The [`Failure`] of the repository or the volume; 11 if the volume is held. A snapshot's name
    /// that is taken is refused before anything is read.
    pub async fn begin(begin: Begin<'_>, global: &Global) -> Result<Session, Failure> {
        let (url, global) = target(begin.url, global)?;
        let repository = Arc::new(open(&url, &global).await?);
        let volume = match global.volume_is_given {
            true => global.volume.clone(),
            false => VOLUME.to_owned(),
        };
        refuse_name(begin.name, &volume, &repository).await?;
        let alone = Alone::begin(AloneParts {
            repository: repository.clone(),
            volume: volume.clone(),
            command: begin.command,
            memory_bytes: Settings::default().memory_bytes,
            steal: begin.steal,
            accept_loss: begin.accept_loss,
            session: None,
        })
        .await
        .map_err(held)?;
        Ok(Session {
            repository,
            volume,
            alone,
            signals: Signals::listen(),
        })
    }

    /// Does work until a signal ends it. After a signal no work begins.
    ///
    /// # Errors
    /// Those of the work; a failure that names the signal.
    pub async fn stoppable<T>(
        &self,
        work: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Failure> {
        tokio::select! {
            biased;
            why = self.signalled() => Err(Failure::new(why)),
            done = work => done,
        }
    }

    /// Waits for a signal, and says what it was. A signal that came before counts.
    pub async fn signalled(&self) -> &'static str {
        self.signals.after(0).await
    }

    /// Makes the snapshot of the work.
    ///
    /// # Errors
    /// The failure of the snapshot. It is asked for in any case, since all of it is in the volume; after
    /// a signal the outcome is unknown.
    pub async fn snapshot(&self, request: SnapshotRequest) -> Result<CommitOutcome, Failure> {
        tokio::select! {
            biased;
            made = self.alone.volume().snapshot(request) => Ok(made?),
            why = self.signalled() => {
                let hint = "bkfs snapshots says whether it was made.";
                let failure = Failure::new(why).context("the snapshot was being made");
                Err(failure.code(Code::Unknown).hint(hint))
            }
        }
    }

    /// Ends the session after the work, and returns its result. The reason why nothing can be
    /// committed any more says more than the error that follows from it, but not after a signal.
    ///
    /// # Errors
    /// The failure of the work.
    pub async fn end<T>(self, work: Result<T, Failure>, output: &Output) -> Result<T, Failure> {
        let work = match work {
            Err(failure) => Err(match self.fenced().await {
                Some(refusal) => Failure::from(RootError::from(refusal)).hint(
                    "Another session took the volume over. Run this again, or with another \
                     --volume.",
                ),
                None => failure,
            }),
            made => made,
        };
        let finished = finish(self.alone, &self.signals).await;
        let made = work.map_err(|failure| match failure.code {
            Code::Unknown => failure,
            _ => failure.context("no snapshot was made"),
        })?;
        // The snapshot is made, whatever the end of the session returns.
        if let Err(error) = finished {
            output.remark(format_args!("could not end the session: {error}"));
        }
        Ok(made)
    }

    /// Asks whether another session has taken the volume over. A signal ends the question, which
    /// waits for the store.
    async fn fenced(&self) -> Option<Refusal> {
        tokio::select! {
            biased;
            _ = self.signalled() => None,
            refusal = self.alone.fenced() => refusal,
        }
    }
}

/// Ends a session. A signal limits the time of the last commit, and a second one ends it.
async fn finish(alone: Alone, signals: &Signals) -> Result<(), MountingError> {
    let deadline = Deadline::default();
    let told = async {
        signals.after(0).await;
        deadline.draw_to(LAST_COMMIT);
        signals.after(1).await;
        deadline.end();
        std::future::pending().await
    };
    tokio::select! {
        biased;
        finished = alone.finish_by(&deadline) => finished,
        never = told => never,
    }
}

/// Refuses a name that is taken before anything is read.
async fn refuse_name(
    name: Option<&str>,
    volume: &str,
    repository: &Repository,
) -> Result<(), Failure> {
    let Some(name) = name else {
        return Ok(());
    };
    let list = repository.snapshots().await?;
    SnapshotReference::parse(name, repository.now())?;
    match list.named(volume, name) {
        Some(_) => {
            let name = name.to_owned();
            Err(RootError::NameTaken { name }.into())
        }
        None => Ok(()),
    }
}

fn held(error: MountingError) -> Failure {
    let mut failure = Failure::from(error);
    if failure.code == Code::Held {
        let hint = "Give another --volume, wait, or give --steal to take it over (unsent writes \
                    of its holder then fail).";
        failure.hint = Some(hint.into());
    }
    failure
}
