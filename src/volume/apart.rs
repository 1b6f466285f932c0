//! Commits that keep the volume as it was until a snapshot completes them.
//!
//! Owns: when that begins and ends. Does not own: the commits (`commit`), nor the field of the root
//! that holds the unfinished tree (`root`).
//!
//! A tree that is put into a volume takes many commits. Each of them names what is stored, so that
//! a collection keeps it and an interrupted put need not send it again. The root holds the
//! unfinished tree apart from the volume's own.

use crate::volume::Volume;
use crate::volume::error::VolumeError;
use crate::volume::shown::Shown;

impl Volume {
    /// Commits what was done so far. From then on the volume shows this state, until a commit makes
    /// a snapshot. The root must bear witness, and nothing else may change the volume meanwhile.
    ///
    /// Cancel safety: dropped, it may have made the commit.
    ///
    /// # Errors
    /// As [`Volume::commit`].
    pub async fn build_apart(&self) -> Result<(), VolumeError> {
        self.commit().await?;
        let shown = {
            let state = self.view.state()?.lock();
            Shown {
                tree: state.base,
                totals: state.totals,
            }
        };
        *self.shown.lock() = Some(shown);
        Ok(())
    }

    /// Returns the state to show with a commit; none if the commit itself is shown.
    pub(super) fn shown(&self) -> Option<Shown> {
        *self.shown.lock()
    }

    /// Shows all further commits.
    pub(super) fn show_commits(&self) {
        *self.shown.lock() = None;
    }
}
