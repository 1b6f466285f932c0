//! Mounts the null filesystem until it is unmounted.
//!
//! Usage: `null_mount MOUNTPOINT [cached|direct] [THREADS]`.

use std::path::Path;
use std::sync::Arc;

use bkfs_bench::null_fs::{NullConfig, NullFs};
use bkfs_fuse::{Access, MountConfig, MountOptions, mount};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [mount_point, rest @ ..] = arguments.as_slice() else {
        return Err("usage: null_mount MOUNTPOINT [cached|direct] [THREADS]".into());
    };
    let direct_io = rest.first().is_none_or(|mode| mode == "direct");
    let threads = rest.get(1).map(|threads| threads.parse()).transpose()?;
    let null = Arc::new(NullFs::new(NullConfig {
        direct_io,
        parallel_direct_writes: direct_io,
    }));
    let config = MountConfig {
        threads,
        options: MountOptions {
            access: Access::Everyone,
            ..MountOptions::default()
        },
        ..MountConfig::new("null")
    };
    let session = mount(null, Path::new(mount_point), &config)?;
    println!("{:?}", session.granted());
    session.wait()?;
    Ok(())
}
