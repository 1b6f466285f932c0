//! The bits of `st_mode`.

/// Returns true for directories.
pub fn is_directory(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR
}

/// Returns true for regular files.
pub fn is_regular(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG
}

/// Returns true for devices, fifos and sockets.
pub fn is_special(mode: u32) -> bool {
    !is_directory(mode) && !is_regular(mode) && !is_symlink(mode)
}

/// Returns true for symbolic links.
pub fn is_symlink(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFLNK
}

/// Returns the type bits, shifted down: `d_type` of readdir(3).
pub fn kind(mode: u32) -> u8 {
    ((mode & libc::S_IFMT) >> 12) as u8
}

/// Returns the mode without set-user-id, and without set-group-id if the group may execute. A write
/// or a change of owner by any user has this effect (POSIX chown(2), write(2)).
pub fn without_privileges(mode: u32) -> u32 {
    let mode = mode & !libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 {
        mode & !libc::S_ISGID
    } else {
        mode
    }
}
