//! Waiting for a mount: with progress, until the answer or Ctrl-C.
//!
//! Owns the questions until there is an answer, and what a signal of the terminal does meanwhile.
//! Does not own what the commands say then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::cli::control::MountClient;
use crate::cli::output::{Code, Failure, Output, bytes};
use crate::cli::progress::{Position, Progress};
use crate::cli::runtime::block_on;
use crate::cli::signals::ignores_hangup;

/// The exit code of a command that a second Ctrl-C ends: 128 and the number of SIGINT.
const INTERRUPTED: i32 = 130;

/// Ctrl-C, SIGTERM, SIGHUP and SIGQUIT: the first asks for a clean end, the second ends the process
/// at once.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Hears these signals from now on. A SIGHUP that is ignored, as below nohup(1), stays so.
    ///
    /// # Errors
    /// A [`Failure`] with exit code 1 if signals cannot be received.
    pub fn hear() -> Result<Interrupt, Failure> {
        let failed = |error: std::io::Error| Failure::new(format!("signals: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let heard = Interrupt::default();
        let told = heard.clone();
        let mut signals = {
            let _within = runtime.enter();
            let interrupt = SignalKind::interrupt();
            let mut kinds = vec![interrupt, SignalKind::terminate(), SignalKind::quit()];
            if !ignores_hangup() {
                kinds.push(SignalKind::hangup());
            }
            let signals = kinds.into_iter().map(signal).collect::<Result<Vec<_>, _>>();
            signals.map_err(failed)?
        };
        std::thread::spawn(move || {
            runtime.block_on(async {
                any(&mut signals).await;
                told.0.store(true, Ordering::SeqCst);
                any(&mut signals).await;
                std::process::exit(INTERRUPTED);
            });
        });
        Ok(heard)
    }

    /// Returns true after the first Ctrl-C.
    pub fn is_heard(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// Waits for one of the signals.
async fn any(signals: &mut [Signal]) {
    let heard = signals.iter_mut().map(|signal| Box::pin(signal.recv()));
    futures::future::select_all(heard).await;
}

/// How the wait for an answer ended.
#[derive(Debug)]
pub enum Waited {
    /// The mount answered.
    Answer(Value),
    /// Ctrl-C: the request goes on, and this many bytes are not in the bucket yet.
    Interrupted {
        /// Bytes that wait.
        waiting_bytes: u64,
    },
}

/// Sends a request that takes long, and waits for its answer. Shows how much waits for the bucket,
/// if a person watches.
///
/// # Errors
/// Those of [`MountClient::request`].
pub fn request(
    mount: &MountClient,
    request: &Value,
    interrupt: &Interrupt,
    output: &Output,
) -> Result<Waited, Failure> {
    let job = match mount.request(&json!({ "begin": request })) {
        Ok(begun) => begun["job"].as_u64().unwrap_or_default(),
        // A daemon of an older version answers only at the end.
        Err(failure) if failure.code == Code::Usage => {
            return mount.request(request).map(Waited::Answer);
        }
        Err(failure) => return Err(failure),
    };
    let left = Arc::new(Left::default());
    let (client, asked, shown) = (mount.clone(), left.clone(), left.clone());
    let interrupt = interrupt.clone();
    block_on(async {
        let bar = Progress::follow(output, move || shown.position());
        let answer = tokio::task::spawn_blocking(move || ask(&client, job, &interrupt, &asked));
        let answer = answer.await;
        bar.finish().await;
        match answer {
            Ok(answer) => answer,
            Err(error) => Err(Failure::new(format!("the wait broke off: {error}"))),
        }
    })
}

/// Asks until there is an answer. The mount takes a moment for each question.
fn ask(
    mount: &MountClient,
    job: u64,
    interrupt: &Interrupt,
    left: &Left,
) -> Result<Waited, Failure> {
    loop {
        let answer = mount.request(&json!({ "job": job }))?;
        let Some(waiting_bytes) = answer["pending"]["bytes"].as_u64() else {
            return Ok(Waited::Answer(answer));
        };
        left.note(waiting_bytes);
        if interrupt.is_heard() {
            return Ok(Waited::Interrupted { waiting_bytes });
        }
    }
}

/// The bytes that wait for the bucket: now, and the most that were seen.
#[derive(Debug, Default)]
struct Left {
    now_bytes: AtomicU64,
    most_bytes: AtomicU64,
}

impl Left {
    fn note(&self, bytes: u64) {
        self.now_bytes.store(bytes, Ordering::Relaxed);
        self.most_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    fn position(&self) -> Position {
        let now = self.now_bytes.load(Ordering::Relaxed);
        let most = self.most_bytes.load(Ordering::Relaxed);
        Position {
            bytes: most.saturating_sub(now),
            total_bytes: Some(most).filter(|most| *most > 0),
            message: format!("{} wait for the bucket", bytes(now)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_goes_from_the_most_that_waited_to_nothing() {
        let left = Left::default();
        assert_eq!(left.position().total_bytes, None);
        left.note(60);
        left.note(45);
        let position = left.position();
        assert_eq!((position.bytes, position.total_bytes), (15, Some(60)));
        left.note(0);
        assert_eq!(left.position().bytes, 60);
    }
}
