//! Progress of long work, on stderr: a bar for people, lines of JSON for scripts.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::cli::output::{self, Output, ProgressForm};
use crate::restore::job::RestoreProgress;

/// The pause between updates of the bar.
const TICK: Duration = Duration::from_millis(200);

/// The pause between lines.
const LINE_TICK: Duration = Duration::from_secs(1);

/// The time over which the rate is taken.
const RATE_TIME: Duration = Duration::from_secs(10);

/// Progress that is being shown.
pub struct Progress(Option<(oneshot::Sender<()>, JoinHandle<()>)>);

/// The position of the work: what is done, of how much if that is known, and a few words.
pub struct Position {
    /// Bytes that are done.
    pub bytes: u64,
    /// Bytes in total. None if that is not known.
    pub total_bytes: Option<u64>,
    /// Text to show next to the bar.
    pub message: String,
}

impl Progress {
    /// Shows the progress of a restore towards `total` bytes.
    pub fn start(output: &Output, total: Option<u64>, progress: Arc<RestoreProgress>) -> Progress {
        Progress::follow(output, move || Position {
            bytes: progress.bytes.load(Ordering::Relaxed)
                + progress.kept_bytes.load(Ordering::Relaxed),
            total_bytes: total,
            message: format!("{} inodes", progress.inodes.load(Ordering::Relaxed)),
        })
    }

    /// Shows what `position` returns: to a person as a bar, again every 200 ms; to a script as a
    /// line, every second.
    pub fn follow(output: &Output, position: impl Fn() -> Position + Send + 'static) -> Progress {
        let (stop, stopped) = oneshot::channel();
        let task = match output.progress_form() {
            ProgressForm::Nothing => return Progress(None),
            ProgressForm::Bar => tokio::spawn(draw(position, stopped)),
            ProgressForm::Lines => tokio::spawn(report(position, stopped)),
        };
        Progress(Some((stop, task)))
    }

    /// Shows no more, and removes the bar. Cancel safety: dropped, it leaves that to its task.
    pub async fn finish(self) {
        if let Some((stop, task)) = self.0 {
            let _ = stop.send(());
            let _ = task.await;
        }
    }
}

/// Draws a bar until `stopped`.
async fn draw(position: impl Fn() -> Position, mut stopped: oneshot::Receiver<()>) {
    let bar = ProgressBar::no_length();
    // The templates are constants. A default bar is better than none.
    let style = |template| {
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
    };
    bar.set_style(style(
        "{spinner} {binary_bytes}  {binary_bytes_per_sec}  {msg}",
    ));
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
}

/// Prints a line every second until `stopped`. Work that takes less prints none.
async fn report(position: impl Fn() -> Position, mut stopped: oneshot::Receiver<()>) {
    let mut pace = Pace::begin(Instant::now(), position().bytes);
    while tokio::time::timeout(LINE_TICK, &mut stopped).await.is_err() {
        output::report(&pace.line(Instant::now(), position()));
    }
}

/// How fast work goes on.
struct Pace {
    began: Instant,
    /// The positions of the last [`RATE_TIME`] and the one before, in bytes.
    seen: VecDeque<(Instant, u64)>,
}

impl Pace {
    fn begin(now: Instant, bytes: u64) -> Pace {
        Pace {
            began: now,
            seen: VecDeque::from([(now, bytes)]),
        }
    }

    /// Notes where the work is now, and returns that for a script.
    fn line(&mut self, now: Instant, position: Position) -> Value {
        self.seen.push_back((now, position.bytes));
        while (self.seen.get(1)).is_some_and(|(then, _)| now.duration_since(*then) >= RATE_TIME) {
            self.seen.pop_front();
        }
        let (then, bytes) = self.seen[0];
        let seconds = now.duration_since(then).as_secs_f64();
        let rate = match seconds > 0.0 {
            true => (position.bytes.saturating_sub(bytes) as f64 / seconds) as u64,
            false => 0,
        };
        let left = (position.total_bytes).map(|total| total.saturating_sub(position.bytes));
        json!({ "progress": {
            "bytes": position.bytes,
            "total_bytes": position.total_bytes,
            "bytes_per_second": rate,
            "seconds": now.duration_since(self.began).as_secs(),
            "seconds_left": left.and_then(|left| left.checked_div(rate)),
            "message": position.message,
        } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_last_seconds() {
        let start = Instant::now();
        let mut pace = Pace::begin(start, 0);
        let mut at = |seconds, bytes, total_bytes| {
            let message = "3 inodes".to_owned();
            let position = Position {
                bytes,
                total_bytes,
                message,
            };
            pace.line(start + Duration::from_secs(seconds), position)["progress"].clone()
        };
        let first = at(1, 1000, None);
        assert_eq!(
            (&first["bytes"], &first["seconds"]),
            (&json!(1000), &json!(1))
        );
        assert_eq!(first["total_bytes"], Value::Null);
        assert_eq!(first["seconds_left"], Value::Null);
        assert_eq!(first["message"], "3 inodes");
        for second in 2..=30 {
            at(second, 1000, Some(4000));
        }
        // What was fast half a minute ago says nothing of the time that is left.
        let stalled = at(31, 1000, Some(4000));
        assert_eq!(stalled["bytes_per_second"], 0);
        assert_eq!(stalled["seconds_left"], Value::Null);
        let moving = at(32, 2000, Some(4000));
        assert_eq!(moving["bytes_per_second"], 100);
        assert_eq!(moving["seconds_left"], 20);
    }
}
