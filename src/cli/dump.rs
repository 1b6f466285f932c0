//! `bkfs dump URL NAME:/path`

use std::ffi::OsString;
use std::io::{self, IsTerminal};

use async_trait::async_trait;
use bytes::Bytes;
use clap::ValueEnum;
use rustix::io::Errno;

use crate::cli::access::{open, split_path};
use crate::cli::left_out::LeftOut;
use crate::cli::named::snapshot;
use crate::cli::options::Global;
use crate::cli::output::{Code, Failure, Output, name_text};
use crate::cli::runtime::block_on;
use crate::cli::target::target;
use crate::dump::{DumpError, Dumped, Sink, archive, file};
use crate::fault::Fault;
use crate::restore::resolve;
use crate::volume::mode;
use crate::volume::state::Scope;

/// The exit code if the reader of the output has closed the pipe: 128 and the number of SIGPIPE, as
/// a shell reports it.
const PIPE_CLOSED: i32 = 128 + libc::SIGPIPE;

/// Write a file of a snapshot to standard output
///
/// Writes the bytes of a file, or a directory as a tar archive (--archive tar) with owners, times,
/// links and extended attributes. Damage ends the output early, with exit code 13; everything
/// written before it is correct.
///
///   bkfs dump s3://bucket/prefix --volume streams latest:/db/main.sql | mariadb
///   bkfs dump s3://bucket/prefix monday:/etc --archive tar | tar -tv
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Dump {
    /// The repository, or a mount of one
    url: String,
    /// Snapshot and path: NAME:/path, latest:/path or @TIME:/path
    #[arg(value_name = "NAME[:/PATH]")]
    what: OsString,
    /// Write an archive of this kind; required for directories
    #[arg(long, value_name = "KIND")]
    archive: Option<Archive>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Archive {
    /// A tar archive with extended headers (POSIX.1-2001), which GNU tar and others read
    Tar,
}

/// Standard output, in large writes.
#[derive(Default)]
struct Stdout {
    gathered: Vec<u8>,
    left_out: LeftOut,
}

/// Size in bytes up to which small pieces are gathered.
const GATHERED_BYTES: usize = 1 << 20;

#[async_trait]
impl Sink for Stdout {
    async fn put(&mut self, bytes: Bytes) -> io::Result<()> {
        if self.gathered.len() + bytes.len() > GATHERED_BYTES {
            self.flush().await?;
        }
        match bytes.len() {
            large if large >= GATHERED_BYTES / 2 => write_out(bytes).await,
            _ => {
                self.gathered.extend_from_slice(&bytes);
                Ok(())
            }
        }
    }

    fn leave_out(&mut self, path: &[u8], fault: &Fault) {
        self.left_out.note(path, fault);
    }
}

impl Stdout {
    async fn flush(&mut self) -> io::Result<()> {
        write_out(std::mem::take(&mut self.gathered).into()).await
    }
}

/// Writes to standard output without the line buffer of the standard library, which would copy
/// everything once more. It runs on a thread of its own, since the reader may be slow.
async fn write_out(bytes: Bytes) -> io::Result<()> {
    let written = tokio::task::spawn_blocking(move || {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            match rustix::io::write(rustix::stdio::stdout(), rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    });
    written.await.map_err(io::Error::other)?
}

/// Writes the file or the archive to standard output. Ends the process with code 141 if the reader
/// closes the pipe.
///
/// # Errors
/// The [`Failure`] of the repository or the snapshot. Exit code 2 if the path is of another kind
/// than asked for, 13 if damage ends the output early, 3 if names of a hostile tree were left out.
pub fn run(command: Dump, global: &Global, output: &Output) -> Result<(), Failure> {
    block_on(async {
        let (url, global) = target(&command.url, global)?;
        let repository = open(&url, &global).await?;
        let (name, path) = split_path(&command.what)?;
        let (_, view) = snapshot(&repository, &global, name).await?;
        let inode = resolve(&view, path)
            .await
            .map_err(|error| Failure::new(error.to_string()))?;
        let attributes = view.attributes(Scope::Live, inode).await?;
        let shown = name_text(command.what.as_encoded_bytes());
        let mut out = Stdout::default();
        let dumped = match (command.archive, mode::kind(attributes.mode)) {
            (Some(Archive::Tar), kind) if kind == mode::kind(libc::S_IFDIR) => {
                if io::stdout().is_terminal() {
                    let hint = "Redirect it to a file, or pipe it into tar.";
                    return Err(Failure::usage("standard output is a terminal").hint(hint));
                }
                archive(&view, inode, &mut out).await
            }
            (None, kind) if kind == mode::kind(libc::S_IFDIR) => {
                let hint = "Give --archive tar, or use bkfs restore.";
                return Err(Failure::usage(format!("{shown} is a directory")).hint(hint));
            }
            (Some(_), _) => {
                let message = format!("{shown} is not a directory: --archive takes directories");
                return Err(Failure::usage(message));
            }
            (None, kind) if kind == mode::kind(libc::S_IFREG) => {
                file(&view, inode, &shown, &mut out).await
            }
            (None, _) => {
                return Err(Failure::usage(format!("{shown} is not a regular file")));
            }
        };
        let flushed = out.flush().await.map_err(DumpError::from);
        conclude(dumped.and_then(|dumped| flushed.map(|()| dumped)), output)?;
        out.left_out.conclude()
    })
}

fn conclude(dumped: Result<Dumped, DumpError>, output: &Output) -> Result<(), Failure> {
    match dumped {
        Ok(Dumped { skipped: 0, .. }) => Ok(()),
        Ok(Dumped { skipped, .. }) => {
            output.finding(format_args!(
                "left out {skipped} sockets: tar archives cannot hold them"
            ));
            Ok(())
        }
        // The reader of the pipe has closed it. This is quiet, as in other tools, but it is no
        // success.
        Err(DumpError::Write(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
            std::process::exit(PIPE_CLOSED)
        }
        Err(error @ DumpError::Write(_)) => Err(Failure::new(error.to_string())),
        Err(error @ DumpError::Read { .. }) => {
            let is_damage = matches!(&error, DumpError::Read { source, .. } if source.is_damage());
            let failure = Failure::new(format!("the output is incomplete: {error}"));
            Err(match is_damage {
                true => failure.code(Code::Damaged),
                false => failure,
            })
        }
    }
}
