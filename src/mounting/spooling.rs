//! The spools of a mount: the replay of dead mounts' spools, and the end of its own.
//!
//! Owns the time of the replay, and its messages. Does not own the directory (`spool_place`), the
//! spool itself (the chunker), nor the replay of journals.
//!
//! Objects of a dead session of this machine are brought into the bucket before the volume is taken
//! over, so that the takeover finds its journals there like all others (docs/PROTOCOL.md, rule 7).
//! If another machine has ended the session meanwhile, its data becomes a snapshot of its own
//! (`recovery`).

use std::io::IsTerminal;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bkfs_chunker::error::ContentError;
use bkfs_chunker::spool::{
    LeftObject, Leftover, ReplayProgress, Spool, UnreadableSpool, leftovers,
};
use tokio::time::Instant;

use crate::mounting::error::SpoolingError;
use crate::mounting::recovered::Recovered;
use crate::mounting::recovery::{Rescued, recover};
use crate::mounting::spool_place::SpoolPlace;
use crate::mounting::survey::{Survey, SurveyProgress, survey};
use crate::mounting::writing::Writing;
use crate::repository::Repository;
use crate::root::ended_sessions::LOOKS_MAX;
use crate::root::gap::Gap;
use crate::root::kept::Covered;
use crate::root::request::KnownSpools;
use crate::root::session::OpenSession;
use crate::root::state::{Session, SessionId, SessionState};

/// Longest wait for the disk when a mount ends its own spool.
const ENDING: Duration = Duration::from_secs(10);

/// Interval of the progress messages of a replay, and of a survey on a terminal.
const SAID_EVERY: Duration = Duration::from_secs(5);

/// Interval of the later progress messages of a survey without a terminal.
const LOGGED_EVERY: Duration = Duration::from_secs(60);

/// Results for spools whose sessions another machine had ended.
#[derive(Debug, Clone, Default)]
pub struct SpoolNews {
    /// Snapshots that were made of them.
    pub recovered: Vec<Recovered>,
    /// Spools that stay where they are.
    pub stranded: Vec<Stranded>,
}

/// A spool that another process has left.
struct Found {
    left: Leftover,
    /// It is no copy of another machine's spool, as far as its session says.
    is_ours: bool,
}

/// A spool that was not brought into the bucket, or only in part.
#[derive(Debug, Clone)]
pub struct Stranded {
    /// Its directory.
    pub path: String,
    /// Bytes of its objects.
    pub bytes: u64,
    /// The reason.
    pub why: String,
}

impl SpoolPlace {
    /// Brings the spools of dead sessions into the bucket, as far as other objects name theirs.
    /// Returns the spools that may be removed once the volume is taken (see [`discard`]), and the
    /// state of all of them for the takeover. With `accepts_loss` the intact part of a damaged one
    /// is brought.
    ///
    /// Cancel safety: dropped, it leaves each spool's objects in its directory, in the bucket, or
    /// in both.
    ///
    /// # Errors
    /// `Damaged` or `Unreadable` if a spool of this volume is that and the loss is not accepted;
    /// `MachineCondition` if the machine lacks something to read it; `Unlisted`; `Unsettled`;
    /// errors of store and root.
    pub(super) async fn replay(
        &self,
        writing: &Writing,
        accepts_loss: bool,
        news: &mut SpoolNews,
    ) -> Result<(Vec<Brought>, KnownSpools), SpoolingError> {
        let brought = self.bring_all(writing, accepts_loss, news).await?;
        let handle = &writing.repository.handle;
        let listed = self.list(&writing.holder).await?;
        let root = &handle.current().root;
        let mut known = KnownSpools {
            own: None,
            empty: listed.empty(root),
            brought: Vec::new(),
        };
        if self.limit_bytes > 0 {
            known.own = Some(self.identify(&writing.holder, &**handle.entropy()).await?);
        }
        // A copy says nothing of what the spool of the other machine holds.
        let claimed = brought.iter().map(|brought| &brought.found);
        for found in claimed.filter(|found| found.is_ours) {
            let session = SessionId(found.left.session());
            match found.left.named().is_empty() {
                true => known.empty.push(session),
                false => known.brought.push(session),
            }
        }
        Ok((brought, known))
    }

    async fn bring_all(
        &self,
        writing: &Writing,
        accepts_loss: bool,
        news: &mut SpoolNews,
    ) -> Result<Vec<Brought>, SpoolingError> {
        let repository = &*writing.repository;
        let found = leftovers(&self.disk, &self.root).await;
        let found = found.map_err(|error| self.unlisted(&error))?;
        if found.spools.is_empty() && found.unreadable.is_empty() {
            return Ok(Vec::new());
        }
        let view = repository.handle.refresh().await?;
        let listed = self.list(&writing.holder).await?;
        for spool in &found.unreadable {
            let session = view.root.sessions.get(&SessionId(spool.session));
            pass_over(spool, session, writing, accepts_loss, news)?;
        }
        let mut done = Vec::new();
        for left in found.spools {
            let path = left.directory().display().to_string();
            let is_ours = listed.has(SessionId(left.session()), &view.root);
            let found = Found { left, is_ours };
            if found.left.named().is_empty() {
                if found.left.bytes() > 0 {
                    tracing::warn!(
                        "{path} holds {} that no journal names: it was written and never \
                         acknowledged, and is removed",
                        mebibytes(found.left.bytes())
                    );
                }
                done.push(Brought {
                    found,
                    last: 0,
                    is_safe: true,
                    damage: None,
                });
                continue;
            }
            match view.root.sessions.get(&SessionId(found.left.session())) {
                Some(session) => {
                    done.extend(bring_one(found, session, writing, accepts_loss, news).await?);
                }
                None => rescue(found, writing, accepts_loss, news).await,
            }
        }
        Ok(done)
    }
}

/// Leaves a spool where it is that cannot be looked into, and reports why.
///
/// # Errors
/// [`SpoolingError::Unreadable`] if its session is in the root with the volume that is being taken,
/// and the loss is not accepted; [`SpoolingError::MachineCondition`] whether it is accepted or not.
fn pass_over(
    spool: &UnreadableSpool,
    session: Option<&Session>,
    writing: &Writing,
    accepts_loss: bool,
    news: &mut SpoolNews,
) -> Result<(), SpoolingError> {
    let volume = session.and_then(|session| session.volume.as_deref());
    let path = spool.directory.display().to_string();
    let owner = match volume {
        Some(volume) => format!("volume {volume}"),
        None => "a session that is in the root no more".to_owned(),
    };
    let error = SpoolingError::unread(path.clone(), owner, &spool.source);
    if volume == Some(writing.volume.as_str()) && !is_accepted(&error, accepts_loss) {
        return Err(error);
    }
    leave(path, 0, &error, news);
    Ok(())
}

/// Returns whether a mount that `accepts_loss` goes on without a spool because of this error.
fn is_accepted(error: &SpoolingError, accepts_loss: bool) -> bool {
    accepts_loss && matches!(error, SpoolingError::Unreadable { .. })
}

/// A spool whose objects are in the bucket now.
pub(super) struct Brought {
    found: Found,
    /// The last operation in its journals; 0 if there is none.
    last: u64,
    /// The session that takes the volume finds its journals.
    is_safe: bool,
    /// The damage, if only part of it was brought.
    damage: Option<String>,
}

/// Brings the spool of a session that is in the root. Returns `None` if it stays where it is, for a
/// later mount: it cannot be read and that loss is accepted, or the session is of another volume
/// and its spool is damaged or cannot be brought.
async fn bring_one(
    found: Found,
    session: &Session,
    writing: &Writing,
    accepts_loss: bool,
    news: &mut SpoolNews,
) -> Result<Option<Brought>, SpoolingError> {
    let repository = &*writing.repository;
    let volume = session.volume.as_deref().unwrap_or_default();
    let is_wanted = volume == writing.volume;
    let left = &found.left;
    let (path, bytes) = (left.directory().display().to_string(), left.bytes());
    let judged = match judge(left, session, repository).await {
        Ok(judged) => judge_loss(judged, &path, volume, is_wanted && accepts_loss),
        Err(error) => Err(error),
    };
    let survey = match judged {
        Ok(Some(survey)) => survey,
        Ok(None) => {
            rescue(found, writing, accepts_loss, news).await;
            return Ok(None);
        }
        Err(error) if !is_wanted || is_accepted(&error, accepts_loss) => {
            leave(path, bytes, &error, news);
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let damage = survey.damage.map(|damage| damage.to_string());
    let last = survey.last;
    if let Err(source) = bring(left, &survey.objects, repository).await {
        let error = SpoolingError::Replay {
            path: path.clone(),
            source,
        };
        if !is_wanted {
            leave(path, bytes, &error, news);
            return Ok(None);
        }
        return Err(error);
    }
    // Asked after every answer: a session that takes the volume from a live one lists its journals
    // later.
    let view = repository.handle.refresh().await?;
    let session = view.root.sessions.get(&SessionId(left.session()));
    let is_safe = session.is_some_and(|session| session.state == SessionState::Live);
    Ok(Some(Brought {
        found,
        last,
        is_safe,
        damage,
    }))
}

/// Judges the spool of a session that was `session` in the root. Returns `None` if the session has
/// left the root meanwhile.
///
/// The bucket is asked after the root was read: a commit since then covers journals, and deletes
/// them. So what looks damaged is judged again if the root says that commits cover more. The
/// session's process is dead and has at most one commit on its way. Only a copy of the machine can
/// go on committing, and is not waited for.
///
/// # Errors
/// [`SpoolingError::Unsettled`] if commits covered more each time; errors of disk, store and root.
async fn judge<'a>(
    left: &'a Leftover,
    session: &Session,
    repository: &Repository,
) -> Result<Option<Survey<'a>>, SpoolingError> {
    let volume = session.volume.clone().unwrap_or_default();
    let path = left.directory().display().to_string();
    let mut covered = Covered::of(session);
    for _ in 0..LOOKS_MAX {
        let found = match survey_aloud(left, repository, covered).await {
            Err(SpoolingError::Spool(source)) => {
                let owner = format!("volume {volume}");
                return Err(SpoolingError::unread(path, owner, &source));
            }
            found => found?,
        };
        if found.damage.is_none() {
            return Ok(Some(found));
        }
        let view = repository.handle.refresh().await?;
        match view.root.sessions.get(&SessionId(left.session())) {
            None => return Ok(None),
            Some(session) if Covered::of(session) != covered => covered = Covered::of(session),
            Some(_) => return Ok(Some(found)),
        }
    }
    Err(SpoolingError::Unsettled {
        path,
        volume,
        looks: LOOKS_MAX,
    })
}

/// Refuses a survey that has found damage, unless its loss is accepted.
fn judge_loss<'a>(
    survey: Option<Survey<'a>>,
    path: &str,
    volume: &str,
    accepts_loss: bool,
) -> Result<Option<Survey<'a>>, SpoolingError> {
    let damage = survey.as_ref().and_then(|survey| survey.damage.as_ref());
    match damage {
        Some(damage) if !accepts_loss => Err(SpoolingError::Damaged {
            path: path.to_owned(),
            volume: volume.to_owned(),
            damage: damage.to_string(),
        }),
        _ => Ok(survey),
    }
}

/// Leaves a spool where it is, and reports why.
fn leave(path: String, bytes: u64, error: &SpoolingError, news: &mut SpoolNews) {
    tracing::error!("{error}");
    let why = error.to_string();
    news.stranded.push(Stranded { path, bytes, why });
}

/// Makes a snapshot of the rest of a session that another machine has ended. A failure delays no
/// mount: the spool stays, and the next mount tries again.
async fn rescue(found: Found, writing: &Writing, accepts_loss: bool, news: &mut SpoolNews) {
    let Found { left, is_ours } = found;
    let path = left.directory().display().to_string();
    match recover(&left, is_ours, writing, accepts_loss).await {
        Ok(Rescued { made, damage }) => {
            if let Some(made) = &made {
                tracing::warn!(
                    "{path} holds what was acknowledged here and nowhere else when volume {} was \
                     taken over: it is now the snapshot {}",
                    made.volume,
                    made.snapshot
                );
            } else if damage.is_none() {
                tracing::warn!("all that {path} names was committed before: it is removed");
            }
            news.recovered.extend(made);
            let_go(left, damage, news).await;
        }
        Err(error) => {
            tracing::error!(
                "{path} holds {} of a session that another machine has ended, and no snapshot can \
                 be made of it: {error}; it stays there",
                mebibytes(left.bytes())
            );
            news.stranded.push(Stranded {
                path,
                bytes: left.bytes(),
                why: error.to_string(),
            });
        }
    }
}

/// Ends a spool whose objects are in the bucket: removes it, or sets it aside if it had `damage`.
async fn let_go(left: Leftover, damage: Option<String>, news: &mut SpoolNews) {
    let Some(damage) = damage else {
        left.discard().await;
        return;
    };
    let (path, bytes) = (left.directory().display().to_string(), left.bytes());
    match left.set_aside().await {
        Ok(aside) => {
            let path = aside.display().to_string();
            tracing::error!(
                "{damage}: what comes before it is carried out, and all that the spool held is \
                 set aside as {path}"
            );
            let why = format!("set aside, because something of it is lost: {damage}");
            news.stranded.push(Stranded { path, bytes, why });
        }
        Err(error) => {
            tracing::error!(
                "{damage}: what comes before it is carried out, but {path} is not set aside: \
                 {error}"
            );
            let why = format!("not set aside ({error}): {damage}");
            news.stranded.push(Stranded { path, bytes, why });
        }
    }
}

/// Judges a spool ([`survey`]), with progress messages if that takes longer than [`SAID_EVERY`].
async fn survey_aloud<'a>(
    left: &'a Leftover,
    repository: &Repository,
    covered: Covered,
) -> Result<Survey<'a>, SpoolingError> {
    let path = left.directory().display();
    let later = match std::io::stderr().is_terminal() {
        true => SAID_EVERY,
        false => LOGGED_EVERY,
    };
    let progress = SurveyProgress::default();
    let total: u64 = left.named().iter().map(|object| object.length).sum();
    let (count, begin) = (left.named().len(), Instant::now());
    let mut is_told = false;
    let say = |elapsed| {
        is_told = true;
        let files = progress.files.load(Ordering::Relaxed);
        let bytes = progress.bytes.load(Ordering::Relaxed);
        let words = said(bytes, total, elapsed);
        tracing::warn!("reading the spool {path}: {files} of {count} files, {words}");
    };
    let found = telling(
        survey(left, &repository.handle, covered, &progress),
        later,
        say,
    )
    .await;
    if is_told {
        let seconds = begin.elapsed().as_secs_f64();
        tracing::warn!(
            "read {count} files, {}, of {path} in {seconds:.1} s",
            mebibytes(total)
        );
    }
    found
}

/// Waits for `work`, and calls `say` with the time that it has taken: after [`SAID_EVERY`], and
/// each time that `later` has passed since.
async fn telling<T>(
    work: impl Future<Output = T>,
    later: Duration,
    mut say: impl FnMut(Duration),
) -> T {
    let begin = Instant::now();
    let mut work = pin!(work);
    let mut pause = SAID_EVERY;
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(pause) => say(begin.elapsed()),
        }
        pause = later;
    }
}

/// Replays `objects` of one spool, with progress messages.
async fn bring(
    left: &Leftover,
    objects: &[&LeftObject],
    repository: &Repository,
) -> Result<(), ContentError> {
    let total: u64 = objects.iter().map(|object| object.length).sum();
    let (path, count) = (left.directory().display(), objects.len());
    tracing::warn!(
        "replaying {count} objects, {}, from {path}",
        mebibytes(total)
    );
    let begin = Instant::now();
    let progress = ReplayProgress::default();
    let work = left.replay(&repository.content_store, objects, &progress);
    let say = |elapsed| {
        let bytes = progress.bytes.load(Ordering::Relaxed);
        tracing::warn!("{}", said(bytes, total, elapsed));
    };
    telling(work, SAID_EVERY, say).await?;
    tracing::warn!("replayed {path} in {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// `12.0 of 300.0 MiB, 4.1 MiB/s, 70 s left`
fn said(bytes: u64, total: u64, elapsed: Duration) -> String {
    let rate = bytes as f64 / elapsed.as_secs_f64().max(0.001);
    let left = match bytes {
        0 => "no end in sight yet".to_owned(),
        _ => format!("{:.0} s left", total.saturating_sub(bytes) as f64 / rate),
    };
    format!(
        "{:.1} of {}, {:.1} MiB/s, {left}",
        bytes as f64 / MIB,
        mebibytes(total),
        rate / MIB
    )
}

const MIB: f64 = (1 << 20) as f64;

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB)
}

/// Ends the spools that were brought, after `open` has taken the volume: those whose journals
/// `open` has found, or a later holder of their volume finds. A holder that listed an ended
/// session's journals before these arrived misses them: see [`rescue`]. A spool with journals that
/// lie behind a gap of the bucket, and so are not carried out, is set aside.
pub(super) async fn discard(
    brought: Vec<Brought>,
    open: &OpenSession,
    writing: &Writing,
    accepts_loss: bool,
    news: &mut SpoolNews,
) {
    for brought in brought {
        let session = SessionId(brought.found.left.session());
        let mut ended_sessions = open.ended_sessions().iter();
        if brought.is_safe || ended_sessions.any(|ended_session| ended_session.session == session) {
            let mut gaps = open.gaps().iter();
            let gap = gaps.find(|gap| gap.session == session && gap.after < brought.last);
            let damage = brought.damage.or_else(|| gap.map(Gap::to_string));
            let_go(brought.found.left, damage, news).await;
        } else {
            rescue(brought.found, writing, accepts_loss, news).await;
        }
    }
}

/// Ends a mount's own spool. A non-empty one stays for the next mount. So does one whose disk does
/// not answer within [`ENDING`].
pub(super) async fn end(spool: &Spool) {
    let Ok(left) = tokio::time::timeout(ENDING, spool.end()).await else {
        tracing::warn!(
            "the disk does not answer on which the spool {} lies: the next mount removes it",
            spool.directory().display()
        );
        return;
    };
    if left.files > 0 {
        tracing::warn!(
            "{} stay in the spool {}",
            mebibytes(left.bytes),
            spool.directory().display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_said_in_words() {
        let text = said(12 << 20, 300 << 20, Duration::from_secs(3));
        assert_eq!(text, "12.0 of 300.0 MiB, 4.0 MiB/s, 72 s left");
        assert!(said(0, 1, Duration::ZERO).ends_with("no end in sight yet"));
    }

    #[tokio::test(start_paused = true)]
    async fn long_work_is_told_soon_and_then_rarely() {
        let told = |seconds| async move {
            let mut said = Vec::new();
            let work = tokio::time::sleep(Duration::from_secs(seconds));
            telling(work, LOGGED_EVERY, |elapsed| said.push(elapsed.as_secs())).await;
            said
        };
        assert!(told(4).await.is_empty(), "short work is not told");
        assert_eq!(told(130).await, [5, 65, 125]);
    }
}
