//! What a hostile writer made is found alike by a check in memory and by one on local disk.

use std::sync::Arc;

use bkfs::maintain::check::check;
use bkfs::maintain::options::CheckOptions;
use bkfs::maintain::workspace::Workspace;
use bkfs::maintain::workspace::directory::WorkDirectory;
use bkfs_store::entropy::SystemEntropy;
use tempfile::TempDir;

use crate::forge::runtime;
use crate::forgeries::FORGERIES;

#[test]
fn forgeries_are_found_alike_in_memory_and_on_disk() {
    let (mut dangling, mut contradicted) = (0, 0);
    for forgery in FORGERIES {
        let home = TempDir::new().expect("a directory");
        let forger = forgery.forge(home.path());
        let work = home.path().join("work");
        let medium = WorkDirectory::new(work, Arc::new(SystemEntropy));
        let on_disk = CheckOptions {
            workspace: Workspace {
                medium: Some(Arc::new(medium)),
                memory_bytes: 0,
                announce: None,
            },
            ..CheckOptions::oracle()
        };
        let handle = &forger.repository.handle;
        let look = |options: &CheckOptions| {
            let checked = check(handle.store().clone(), handle.keyring(), options);
            runtime().block_on(checked).expect("checks")
        };
        let (kept, spilled) = (look(&CheckOptions::oracle()), look(&on_disk));
        assert!(kept == spilled, "{}: {kept:?}\n{spilled:?}", forgery.name);
        let says = spilled.to_string();
        dangling += says.matches("which no live pack holds").count();
        contradicted += says
            .matches("does not match the entry of its parent")
            .count();
    }
    assert!(
        dangling > 0 && contradicted > 0,
        "{dangling}, {contradicted}"
    );
}
