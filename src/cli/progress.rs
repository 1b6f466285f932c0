//! Progress of long work, on stderr, for people only.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::cli::output::Output;
use crate::restore::job::RestoreProgress;

/// The pause between updates of the bar.
const TICK: Duration = Duration::from_millis(200);

/// A progress bar.
pub struct Bar(Option<(oneshot::Sender<()>, JoinHandle<()>)>);

/// The position of the work: what is done, of how much if that is known, and a few words.
pub struct Position {
    /// Bytes that are done.
    pub bytes: u64,
    /// Bytes in total. None if that is not known.
    pub total_bytes: Option<u64>,
    /// Text to show next to the bar.
    pub message: String,
}

impl Bar {
    /// Shows `progress` towards `total` bytes, if a person watches.
    pub fn start(output: &Output, total: Option<u64>, progress: Arc<RestoreProgress>) -> Bar {
        Bar::follow(output, move || Position {
            bytes: progress.bytes.load(Ordering::Relaxed)
                + progress.kept_bytes.load(Ordering::Relaxed),
            total_bytes: total,
            message: format!("{} inodes", progress.inodes.load(Ordering::Relaxed)),
        })
    }

    /// Shows what `position` returns, again every 200 ms, if a person watches.
    pub fn follow(output: &Output, position: impl Fn() -> Position + Send + 'static) -> Bar {
        if !output.shows_progress() {
            return Bar(None);
        }
        let bar = ProgressBar::no_length();
        // The templates are constants. A default bar is better than none.
        let style = |template| {
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
        };
        bar.set_style(style(
            "{spinner} {binary_bytes}  {binary_bytes_per_sec}  {msg}",
        ));
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                let position = position();
                if let Some(total) = position.total_bytes.filter(|_| bar.length().is_none()) {
                    bar.set_style(style(
                        "{bar:30} {percent:>3} %  {binary_bytes} of {binary_total_bytes}  \
                         {binary_bytes_per_sec}  {eta} left  {msg}",
                    ));
                    bar.set_length(total);
                }
                bar.set_position(position.bytes);
                bar.set_message(position.message);
                if tokio::time::timeout(TICK, &mut stopped).await.is_ok() {
                    break;
                }
            }
            bar.finish_and_clear();
        });
        Bar(Some((stop, task)))
    }

    /// Removes the bar. Cancel safety: dropped, it leaves the bar to its task, which removes it.
    pub async fn finish(self) {
        if let Some((stop, task)) = self.0 {
            let _ = stop.send(());
            let _ = task.await;
        }
    }
}
