//! The bits of `st_mode`.

/// True for directories.
pub fn is_directory(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFDIR
}

/// True for regular files.
pub fn is_regular(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFREG
}

/// True for devices, fifos and sockets.
pub fn is_special(mode: u32) -> bool {
    !is_directory(mode) && !is_regular(mode) && !is_symlink(mode)
}

/// True for symbolic links.
pub fn is_symlink(mode: u32) -> bool {
    mode & libc::S_IFMT == libc::S_IFLNK
}

/// The type bits alone, shifted down: `d_type` of readdir(3).
pub fn kind(mode: u32) -> u8 {
    ((mode & libc::S_IFMT) >> 12) as u8
}

/// The mode without set-user-id, and without set-group-id where the group may execute: what a write or a change of owner by
/// anybody leaves (POSIX chown(2), write(2)).
pub fn without_privileges(mode: u32) -> u32 {
    let mode = mode & !libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 {
        mode & !libc::S_ISGID
    } else {
        mode
    }
}
