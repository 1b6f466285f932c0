//! `bkfs session list URL`, `bkfs session end URL SESSION…`

use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use crate::cli::access::{Repository, open};
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output};
use crate::cli::runtime::block_on;
use crate::cli::snapshots::columns;
use crate::cli::target::target;
use crate::mounting::error::MountingError;
use crate::mounting::spool_place::SpoolPlace;
use crate::mounting::{MountPlan, SESSION_END};
use crate::root::heartbeat::{Watched, published_bases, watch_holder};
use crate::root::holder::LocalVerdict;
use crate::root::removal::give_up;
use crate::root::session::OpenSession;
use crate::root::state::{RecoveryBase, Session as Entry, SessionId, SessionState};

/// List the sessions of a repository, or end dead ones
#[derive(Debug, clap::Subcommand)]
pub enum Session {
    /// List the sessions in the root (live writers, and dead ones that were not ended), and the
    /// spools of ended sessions that may hold what they acknowledged
    List(List),
    /// End a dead session, so that collection can go on; what it acknowledged is committed first
    End(End),
}

/// `bkfs session list URL`
#[derive(Debug, clap::Args)]
pub struct List {
    /// The repository, or a mount of one
    url: String,
}

/// `bkfs session end URL SESSION…`
///
/// bkfs first watches the heartbeat of the session for half a minute, unless it knows that the
/// process is gone. It does not end a session that is alive.
#[derive(Debug, clap::Args)]
pub struct End {
    /// The repository, or a mount of one
    url: String,
    /// The ids of sessions, as the list shows them; bkfs ends one after the other
    #[arg(value_name = "SESSION", value_parser = session_id, required = true)]
    sessions: Vec<SessionId>,
    /// End a session even if it may be alive: it then loses its mount, but nothing that it
    /// acknowledged
    #[arg(long)]
    force: bool,
    /// Continue without acknowledged changes whose journals are missing from the bucket; journals
    /// after the gap are moved to damaged/
    #[arg(long)]
    accept_loss: bool,
    /// For ended sessions (state "spool"): give up for good what only the spools on their machines
    /// may hold, so that collection can free what it would need
    #[arg(long, conflicts_with = "force")]
    give_up: bool,
}

fn session_id(text: &str) -> Result<SessionId, String> {
    let id =
        u64::from_str_radix(text, 16).map_err(|_| "expected 16 hexadecimal digits".to_owned())?;
    Ok(SessionId(id))
}

/// Lists sessions, or ends them, and prints the result.
///
/// # Errors
/// The [`Failure`] of the repository. Exit code 1 if a session does not exist, 11 if it lives.
pub fn run(command: Session, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        match command {
            Session::List(command) => list(command, global, output).await,
            Session::End(command) => end(command, global, output).await,
        }
    })
}

async fn list(command: List, global: &Global, output: &Output) -> Result<(), Failure> {
    let (url, global) = target(&command.url, global)?;
    let repository = open(&url, &global).await?;
    let handle = &repository.handle;
    let root = &handle.current().root;
    let head = [
        "SESSION", "STATE", "VOLUME", "BASE", "HOST", "PROCESS", "WHERE",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    let bases = published_bases(handle, root.sessions.keys().copied()).await?;
    for ((id, session), base) in root.sessions.iter().zip(bases) {
        let state = match session.state {
            SessionState::Live => "live",
            SessionState::Ending => "ending",
        };
        let holder = &session.holder;
        if output.is_json() {
            let row = json!({
                "session": id.to_string(),
                "state": state,
                "volume": session.volume,
                "base": base,
                "epoch": root.epoch,
                "host": holder.host,
                "pid": holder.pid,
                "user": holder.user,
                "where": holder.mount_point,
            });
            output.result(&row, String::new)?;
            continue;
        }
        rows.push([
            id.to_string(),
            state.to_owned(),
            session.volume.clone().unwrap_or_default(),
            base.map_or("-".to_owned(), |base| format!("{base}/{}", root.epoch)),
            holder.host.clone(),
            holder.pid.to_string(),
            holder.mount_point.clone(),
        ]);
    }
    for recovery_base in root.recovery_bases() {
        rows.extend(row_of_recovery_base(recovery_base, root.epoch, output)?);
    }
    if output.is_json() {
        return Ok(());
    }
    if rows.len() == 1 {
        output.remark("no sessions");
        return Ok(());
    }
    output.result(&(), || columns(&rows, &[]))
}

/// The row of a session that has ended and whose spool may hold more; none in JSON, where it is
/// written at once.
fn row_of_recovery_base(
    recovery_base: &RecoveryBase,
    epoch: u64,
    output: &Output,
) -> Result<Option<[String; 7]>, Failure> {
    if output.is_json() {
        let row = json!({
            "session": recovery_base.session.to_string(),
            "state": "spool",
            "volume": recovery_base.volume,
            "base": recovery_base.base(),
            "epoch": epoch,
            "host": recovery_base.host(),
        });
        output.result(&row, String::new)?;
        return Ok(None);
    }
    Ok(Some([
        recovery_base.session.to_string(),
        "spool".to_owned(),
        recovery_base.volume.clone(),
        format!("{}/{epoch}", recovery_base.base()),
        recovery_base.host().to_owned(),
        "-".to_owned(),
        "(ended; the spool on that host may hold what it acknowledged)".to_owned(),
    ]))
}

async fn end(command: End, global: &Global, output: &Output) -> Result<(), Failure> {
    let (url, global) = target(&command.url, global)?;
    let repository = Arc::new(open(&url, &global).await?);
    if command.give_up {
        return forsake(&repository, &command.sessions, output).await;
    }
    for session in &command.sessions {
        end_one(&repository, *session, &command, output).await?;
    }
    Ok(())
}

async fn end_one(
    repository: &Arc<Repository>,
    id: SessionId,
    command: &End,
    output: &Output,
) -> Result<(), Failure> {
    let root = &repository.handle.current().root;
    if let Some(recovery_base) = root.recovery_base_of(id) {
        return Err(has_ended(recovery_base));
    }
    let entry = root.sessions.get(&id).cloned();
    let entry = entry.ok_or_else(|| Failure::new(format!("there is no session {id}")))?;
    match entry.volume.clone() {
        Some(volume) => take(repository, volume, command).await?,
        None => remove(repository, id, &entry, command.force).await?,
    }
    let answer = json!({ "session": id.to_string(), "volume": entry.volume, "ended": true });
    output.result(&answer, || format!("session {id} has ended"))
}

fn has_ended(recovery_base: &RecoveryBase) -> Failure {
    let (session, host) = (recovery_base.session, recovery_base.host());
    Failure::new(format!(
        "session {session} has ended; the spool on host {host} may hold what it acknowledged"
    ))
    .hint("The next mount on that host makes a snapshot of it. --give-up gives it up for good.")
}

/// The recovery bases of ended sessions leave the root, all at once.
async fn forsake(
    repository: &Repository,
    ids: &[SessionId],
    output: &Output,
) -> Result<(), Failure> {
    let (handle, environment) = (&repository.handle, &repository.environment);
    let mut recovery_bases = Vec::new();
    for id in ids {
        let recovery_base = handle.current().root.recovery_base_of(*id).cloned();
        recovery_bases.push(recovery_base.ok_or_else(|| {
            Failure::new(format!("no ended session {id} has a spool to give up"))
        })?);
    }
    let here = environment.holder("bkfs session end");
    let session = OpenSession::open_to_give_up(handle, here, &*environment.processes).await?;
    let given_up = give_up(handle, &session, ids).await;
    session.end().await?;
    given_up?;
    for recovery_base in recovery_bases {
        let (id, host) = (recovery_base.session, recovery_base.host());
        let answer =
            json!({ "session": id.to_string(), "volume": recovery_base.volume, "given_up": true });
        output.result(&answer, || {
            format!("gave up what only the spool on host {host} may hold of session {id}")
        })?;
    }
    Ok(())
}

/// Step `TakeCas` and all that follows: what this machine's spools hold is brought into the bucket,
/// the volume is taken, what was acknowledged is carried out and committed, and the volume is free.
async fn take(repository: &Arc<Repository>, volume: String, command: &End) -> Result<(), Failure> {
    // Of no bytes: what dead sessions have left is replayed, and nothing new is kept.
    let spool = SpoolPlace::on_this_machine(repository, 0, Path::new(SESSION_END))
        .map_err(|error| Failure::new(error.to_string()))?;
    let mut plan = MountPlan::to_end(repository.clone(), volume, command.force, spool);
    plan.settings.accept_loss = command.accept_loss;
    let failed = |error| match error {
        MountingError::Root(error) => Failure::from(error),
        MountingError::Spool(error) if error.is_damage() => Failure::from(error),
        MountingError::Spool(error) => Failure::new(error.to_string()).hint(
            "The session stays. Mend the cause and repeat the command: it then stores what only \
             the spool holds. To end the session without that, move the directory elsewhere and \
             keep it: it may hold acknowledged files.",
        ),
        error => Failure::new(error.to_string()),
    };
    let assembled = plan
        .assemble(&tokio::runtime::Handle::current())
        .await
        .map_err(failed)?;
    // What became of spools is in the log, which goes to stderr.
    assembled.finish().await.map_err(failed)
}

/// A session of maintenance holds nothing but its place.
async fn remove(
    repository: &Repository,
    id: SessionId,
    entry: &Entry,
    force: bool,
) -> Result<(), Failure> {
    let (handle, environment) = (&repository.handle, &repository.environment);
    let here = environment.holder("bkfs session end");
    let verdict = entry.judge_locally(&here, &*environment.processes);
    let is_dead = match verdict {
        _ if force => true,
        LocalVerdict::Dead => true,
        LocalVerdict::Alive => false,
        LocalVerdict::Elsewhere => watch_holder(handle, id, None).await? != Watched::Alive,
    };
    if !is_dead {
        let message = format!("session {id} is alive: {}", entry.holder);
        return Err(Failure::new(message)
            .code(Code::Held)
            .hint("--force ends it nevertheless."));
    }
    let session = OpenSession::open_in_place_of(handle, here, id, &*environment.processes).await?;
    Ok(session.end().await?)
}
