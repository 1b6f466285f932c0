//! Progress of long work, on stderr, for people only.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::cli::output::Output;
use crate::restore::Progress;

/// How often the bar moves.
const TICK: Duration = Duration::from_millis(200);

/// A bar that follows a restore.
pub struct Bar(Option<(oneshot::Sender<()>, JoinHandle<()>)>);

impl Bar {
    /// Shows `progress` towards `total` bytes, if anybody watches.
    pub fn start(output: &Output, total: Option<u64>, progress: Arc<Progress>) -> Bar {
        if !output.shows_progress() {
            return Bar(None);
        }
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::no_length(),
        };
        let template = match total {
            Some(_) => {
                "{bar:30} {percent:>3} %  {binary_bytes} of {binary_total_bytes}  {binary_bytes_per_sec}  {eta} left  {msg}"
            }
            None => "{spinner} {binary_bytes}  {binary_bytes_per_sec}  {msg}",
        };
        // The templates are constants; a default bar is better than none.
        let style =
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        let (stop, mut stopped) = oneshot::channel();
        let task = tokio::spawn(async move {
            loop {
                bar.set_position(progress.bytes.load(Ordering::Relaxed));
                bar.set_message(format!(
                    "{} inodes",
                    progress.inodes.load(Ordering::Relaxed)
                ));
                if tokio::time::timeout(TICK, &mut stopped).await.is_ok() {
                    break;
                }
            }
            bar.finish_and_clear();
        });
        Bar(Some((stop, task)))
    }

    /// Takes the bar away.
    pub async fn finish(self) {
        if let Some((stop, task)) = self.0 {
            let _ = stop.send(());
            let _ = task.await;
        }
    }
}
