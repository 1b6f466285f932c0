//! The places where data can live: the local disk, clones of bkfs, mounts of other tools.
//!
//! Owns: how each of them is made from the data at rest, and how it ends.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::Outcome;
use crate::context::Context;
use crate::disk::{flush, remove, text};
use crate::far_mount::{self, FarMount};
use crate::measure::{self, drop_caches, shell, shell_command};
use crate::program::{Mounted, Program};
use crate::servers::{BUCKET, Minio, USER, s3_environment};

/// The snapshot that all clones are made of.
const SNAPSHOT: &str = "at-rest";

/// The volume of a clone that stays.
const VOLUME: &str = "live";

/// A place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A copy on the disk of the benchmark.
    Disk,
    /// A clone that is thrown away.
    Scratch,
    /// A clone whose fsync ends when the spool has the data.
    Local,
    /// A clone whose fsync ends when the bucket has the data.
    Bucket,
    /// restic mount below overlayfs. What is written stays on the local disk.
    Overlay,
    /// rclone mount with a full cache.
    Rclone,
    /// s3fs.
    S3fs,
}

impl Place {
    /// Those of loads that write nothing that must stay.
    pub(super) const READ: [Self; 2] = [Self::Disk, Self::Scratch];

    /// Those of which users expect that what was synced stays.
    pub(super) const DURABLE: [Self; 6] = [
        Self::Disk,
        Self::Local,
        Self::Bucket,
        Self::Overlay,
        Self::Rclone,
        Self::S3fs,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Disk => "local disk",
            Self::Scratch => "bkfs, scratch",
            Self::Local => "bkfs, fsync=local",
            Self::Bucket => "bkfs, fsync=bucket",
            Self::Overlay => "restic mount, overlayfs",
            Self::Rclone => "rclone mount, full cache",
            Self::S3fs => "s3fs",
        }
    }

    pub(super) fn is_peer(self) -> bool {
        matches!(self, Self::Overlay | Self::Rclone | Self::S3fs)
    }

    /// The options of a mount of bkfs.
    fn options(self) -> Option<&'static str> {
        match self {
            Self::Scratch => Some("scratch"),
            Self::Local => Some("as=live,fsync=local"),
            Self::Bucket => Some("as=live,fsync=bucket"),
            _ => None,
        }
    }
}

/// A store that has the data at rest, once for each tool.
pub(super) struct Store {
    address: SocketAddr,
    /// Without a delay.
    near: SocketAddr,
    program: Program,
    /// The line of bash before each command of restic.
    environment: String,
}

impl Store {
    /// Stores the data without a delay. Later requests go to `far`.
    pub(super) fn fill(
        context: &mut Context,
        server: &Minio,
        far: SocketAddr,
        at_rest: &Path,
    ) -> Outcome<Self> {
        let near = program_at(context, server.address);
        near.init(&repository())?;
        let mounted = near.mount(&repository(), &context.fresh("mount")?)?;
        copy(at_rest, mounted.path())?;
        mounted.snapshot(SNAPSHOT)?;
        mounted.unmount()?;
        Ok(Self {
            address: far,
            near: server.address,
            program: program_at(context, far),
            environment: format!(
                "export RESTIC_PASSWORD=benchmark HOME={} AWS_ACCESS_KEY_ID={} \
                 AWS_SECRET_ACCESS_KEY={}",
                text(&context.work),
                USER.0,
                USER.1
            ),
        })
    }

    /// Stores the data by restic too, without a delay.
    pub(super) fn fill_restic(&self, context: &mut Context, at_rest: &Path) {
        context.peer("restic mount, overlayfs", |context| {
            let restic = self.restic(context, self.near)?;
            let environment = &self.environment;
            shell(&format!("{environment}; {restic} init"))?;
            shell(&format!("{environment}; {restic} backup {}", text(at_rest))).map(drop)
        });
    }

    /// Returns the beginning of a command line of restic, for a store at this address.
    fn restic(&self, context: &Context, address: SocketAddr) -> Outcome<String> {
        let binary = context.peers.need("restic")?;
        Ok(format!(
            "{binary} -q -r s3:http://{address}/{BUCKET}/restic"
        ))
    }

    /// Makes a place with a part of the data at rest. A clone has all of it in its cache.
    pub(super) fn open(
        &self,
        context: &Context,
        place: Place,
        (at_rest, part): (&Path, &str),
    ) -> Outcome<Live> {
        match place {
            Place::Disk => {
                let point = context.fresh("copy")?;
                copy(&at_rest.join(part), &point.join(part))?;
                flush(&point)?;
                drop_caches()?;
                Ok(Live::new(point, Holder::None))
            }
            Place::Scratch | Place::Local | Place::Bucket => {
                let live = self.open_cold(context, place)?;
                let status = live.hydrate()?.wait()?;
                match status.success() {
                    true => Ok(live),
                    false => Err(format!("bkfs hydrate ended with {status}").into()),
                }
            }
            Place::Overlay => self.overlay(context, at_rest),
            Place::Rclone => {
                let (point, cache) = (context.fresh("mount")?, context.fresh("cache")?);
                let binary = context.peers.need("rclone")?;
                let mut sync = far_mount::rclone_for(&binary, self.near);
                sync.arg("sync").arg(at_rest.join(part));
                measure::command(sync.arg(format!(":s3:{BUCKET}/rclone/{part}")))?;
                let mut command = far_mount::rclone(&binary, self.address, &point, &cache, "full");
                // It knows no owners.
                let (user, group) = (number("-u")?, number("-g")?);
                command.args(["--uid", &user, "--gid", &group]);
                command.args(["--dir-perms", "0755", "--file-perms", "0660"]);
                let mount = FarMount::start(&mut command, &point)?;
                Ok(Live::new(point, Holder::Far(mount, cache)))
            }
            Place::S3fs => {
                let (point, files) = (context.fresh("mount")?, context.fresh("cache")?);
                let binary = context.peers.need("s3fs")?;
                let mut command = far_mount::s3fs(&binary, self.address, &point, &files)?;
                let mount = FarMount::start(&mut command, &point)?;
                let live = Live::new(point, Holder::Far(mount, files));
                // It keeps owners in its own way, so it stores the data itself.
                remove(&live.point.join(part))?;
                copy(&at_rest.join(part), &live.point.join(part))?;
                Ok(live)
            }
        }
    }

    /// Makes a clone of which nothing is in the cache.
    pub(super) fn open_cold(&self, context: &Context, place: Place) -> Outcome<Live> {
        let options = place.options().ok_or("only bkfs has clones")?;
        self.forget()?;
        let point = context.fresh("mount")?;
        let options = format!("allow_other,clone={SNAPSHOT},{options}");
        let mounted = self.program.mount_with(&repository(), &point, &options)?;
        let clone = (place != Place::Scratch).then(|| self.program.clone());
        Ok(Live::new(point, Holder::Bkfs(mounted, clone)))
    }

    /// Forgets what caches have of the data.
    pub(super) fn forget(&self) -> Outcome<()> {
        self.program.forget_caches()?;
        drop_caches()
    }

    /// Makes a clone that is thrown away, and whose first reads a trace may tell.
    pub(super) fn mount_traced(&self, context: &Context, trace: &str) -> Outcome<Live> {
        let point = context.fresh("mount")?;
        let options = format!("allow_other,clone={SNAPSHOT},scratch,trace={trace}");
        let mounted = self.program.mount_with(&repository(), &point, &options)?;
        Ok(Live::new(point, Holder::Bkfs(mounted, None)))
    }

    fn overlay(&self, context: &Context, at_rest: &Path) -> Outcome<Live> {
        let lower = context.fresh("mount")?;
        let line = format!(
            "{}; exec {} mount --allow-other {}",
            self.environment,
            self.restic(context, self.address)?,
            text(&lower)
        );
        let below = FarMount::start(&mut shell_command(&line), &lower)?;
        let (point, above) = (context.fresh("overlay")?, context.fresh("above")?);
        shell(&format!("mkdir {0}/upper {0}/work", text(&above)))?;
        shell(&format!(
            "mount -t overlay overlay -o lowerdir={0}/snapshots/latest{1},upperdir={2}/upper,\
             workdir={2}/work {3}",
            text(&lower),
            text(at_rest),
            text(&above),
            text(&point)
        ))?;
        let top = Top(point.clone());
        Ok(Live::new(point, Holder::Overlay(top, below, above)))
    }
}

/// Copies the data at rest, with its owners.
fn copy(from: &Path, to: &Path) -> Outcome<()> {
    std::fs::create_dir_all(to)?;
    shell(&format!("cp -a {}/. {}/", text(from), text(to))).map(drop)
}

/// Returns the URL of the repository that has the clones.
fn repository() -> String {
    format!("s3://{BUCKET}/live")
}

/// Returns the program with the store at this address.
fn program_at(context: &Context, address: SocketAddr) -> Program {
    context.program.with(&s3_environment(address))
}

/// Returns a number of the user that MariaDB runs as, as `id` prints it.
fn number(which: &str) -> Outcome<String> {
    let output = Command::new("id").args([which, "mysql"]).output()?;
    if !output.status.success() {
        return Err("there is no user mysql".into());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// A mount of overlayfs, which ends with this value.
struct Top(PathBuf);

impl Drop for Top {
    fn drop(&mut self) {
        // What used it may have failed, and errors of this are ignored.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

/// What serves a place.
enum Holder {
    None,
    /// A mount of bkfs, and the program that removes its clone afterwards.
    Bkfs(Mounted, Option<Program>),
    /// The mount of a tool, and its directory for files.
    Far(FarMount, PathBuf),
    /// An overlay, the mount below it, and the directory of what is written.
    Overlay(Top, FarMount, PathBuf),
}

/// A place with the data.
pub(super) struct Live {
    point: PathBuf,
    holder: Holder,
}

impl Live {
    fn new(point: PathBuf, holder: Holder) -> Self {
        Self { point, holder }
    }

    /// Begins to bring the tree of a clone into the cache.
    pub(super) fn hydrate(&self) -> Outcome<Child> {
        match &self.holder {
            Holder::Bkfs(mounted, _) => mounted.begin_hydration(),
            _ => Err("only bkfs has clones".into()),
        }
    }

    /// Stores what a clone has read first as a trace.
    pub(super) fn record(&self, trace: &str) -> Outcome<()> {
        match &self.holder {
            Holder::Bkfs(mounted, _) => mounted.record_trace(trace),
            _ => Err("only bkfs has traces".into()),
        }
    }

    /// Returns the directory of the data.
    pub(super) fn path(&self) -> &Path {
        &self.point
    }

    /// Returns the place as it is without the caches of the kernel. A clone that stays is mounted
    /// again, without the caches of bkfs.
    pub(super) fn again(self) -> Outcome<Self> {
        let Self { point, holder } = self;
        let holder = match holder {
            Holder::Bkfs(mounted, Some(program)) => {
                mounted.unmount()?;
                program.forget_caches()?;
                let options = format!("allow_other,volume={VOLUME}");
                let mounted = program.mount_with(&repository(), &point, &options)?;
                Holder::Bkfs(mounted, Some(program))
            }
            holder => holder,
        };
        drop_caches()?;
        Ok(Self { point, holder })
    }

    /// Ends the place, and removes what was written.
    pub(super) fn close(self) -> Outcome<()> {
        match self.holder {
            Holder::None => remove(&self.point),
            Holder::Bkfs(mounted, clone) => {
                mounted.unmount()?;
                let Some(program) = clone else {
                    return Ok(());
                };
                let mut command = program.command(&["volume", "remove", "--yes-delete"]);
                measure::command(command.args([&repository(), VOLUME])).map(drop)
            }
            Holder::Far(mount, files) => {
                mount.unmount()?;
                remove(&files)
            }
            Holder::Overlay(top, below, above) => {
                drop(top);
                below.unmount()?;
                remove(&above)
            }
        }
    }
}
