//! A request to the filesystem through an open file: the only way in that is open on a read-only
//! mount too, where the kernel itself refuses every write.
//!
//! Owns the form: an ioctl(2) that takes [`COMMAND_BYTES_MAX`] bytes and their number. Does not own
//! what the bytes say.

use std::fs::File;
use std::io;

use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// The most bytes of a command.
pub const COMMAND_BYTES_MAX: usize = 8192 - 4;

/// What the kernel copies: the number of bytes, little-endian, and the bytes.
type Block = [u8; 4 + COMMAND_BYTES_MAX];

/// The number of the ioctl. No file system and no driver of Linux has this group.
const OPCODE: Opcode = opcode::write::<Block>(0xbf, 1);

/// Sends a command to the filesystem that serves a file, and waits until it was carried out.
///
/// # Errors
/// `ENOTTY` if it takes no commands through this file; [`io::ErrorKind::InvalidInput`] if the
/// command is too long; otherwise the filesystem's error.
pub fn send_command(file: &File, command: &[u8]) -> io::Result<()> {
    let mut block = [0; size_of::<Block>()];
    let room = block.get_mut(4..4 + command.len());
    room.ok_or(io::ErrorKind::InvalidInput)?
        .copy_from_slice(command);
    block[..4].copy_from_slice(&(command.len() as u32).to_le_bytes());
    // SAFETY: the opcode says that the kernel reads exactly one block and writes none, and any file
    // that knows the opcode takes it so. Other files refuse it without a look at the block.
    let sent = unsafe { ioctl(file, Setter::<OPCODE, Block>::new(block)) };
    sent.map_err(io::Error::from)
}

/// Returns the command in a block that the kernel passes on. `None` if it is another ioctl.
pub(crate) fn command_of(number: u32, block: &[u8]) -> Option<&[u8]> {
    let (length, bytes) = block.split_first_chunk()?;
    let is_ours = number == OPCODE && block.len() == size_of::<Block>();
    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
    bytes.get(..length).filter(|_| is_ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_taken_whole_or_not_at_all() {
        let mut block = [0; size_of::<Block>()];
        block[0] = 5;
        block[4..9].copy_from_slice(b"bytes");
        let number = OPCODE;
        assert_eq!(command_of(number, &block), Some(&b"bytes"[..]));
        assert_eq!(command_of(number + 1, &block), None);
        assert_eq!(command_of(number, &block[1..]), None);
        assert_eq!(command_of(number, &[]), None);
        block[..4].copy_from_slice(&(COMMAND_BYTES_MAX as u32).to_le_bytes());
        assert_eq!(
            command_of(number, &block).map(<[u8]>::len),
            Some(COMMAND_BYTES_MAX)
        );
        block[..4].copy_from_slice(&(COMMAND_BYTES_MAX as u32 + 1).to_le_bytes());
        assert_eq!(command_of(number, &block), None);
        block[..4].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(command_of(number, &block), None);
    }

    #[test]
    fn a_file_that_takes_no_commands_says_so() {
        let file = tempfile::tempfile().unwrap();
        let error = send_command(&file, b"{}").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
        let error = send_command(&file, &[0; COMMAND_BYTES_MAX + 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
