//! The signals by which a command is asked to end.
//!
//! Owns: which these are, and that an ignored hangup stays ignored. Does not own: what a command does
//! then.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Returns when a signal asks for the end, so that neither half a file nor a held volume is left
/// behind. A SIGHUP that is ignored, as below nohup(1), asks for nothing.
pub async fn signals() -> &'static str {
    match Endings::listen() {
        Ok(mut endings) => endings.recv().await,
        // A signal that cannot be waited for ends the process as it always does.
        Err(_) => std::future::pending().await,
    }
}

/// The signals that ask for the end, from the moment on at which it listens.
pub struct Endings {
    interrupt: Signal,
    terminate: Signal,
    hangup: Hangup,
}

impl Endings {
    /// Starts to listen.
    ///
    /// # Errors
    /// The I/O error of setting a handler.
    pub fn listen() -> io::Result<Endings> {
        Ok(Endings {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: Hangup::listen()?,
        })
    }

    /// Waits for the next signal, and says what it was.
    pub async fn recv(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "interrupted",
            _ = self.terminate.recv() => "ended by a signal",
            () = self.hangup.recv() => "the terminal was closed",
        }
    }
}

/// SIGHUP, which is waited for only if this process does not ignore it. What it starts ignores it
/// then as well.
pub struct Hangup(Option<Signal>);

impl Hangup {
    /// Starts to listen.
    ///
    /// # Errors
    /// The I/O error of setting the handler.
    pub fn listen() -> io::Result<Hangup> {
        let heard = !ignores_hangup();
        let signal = heard.then(|| signal(SignalKind::hangup())).transpose()?;
        Ok(Hangup(signal))
    }

    /// Waits for the signal; forever if it is ignored.
    pub async fn recv(&mut self) {
        match &mut self.0 {
            Some(signal) => signal.recv().await,
            None => std::future::pending().await,
        };
    }
}

/// Returns true if this process ignores SIGHUP, as below nohup(1). To wait for the signal would end
/// that.
pub fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & (1 << (libc::SIGHUP - 1)) != 0)
}
