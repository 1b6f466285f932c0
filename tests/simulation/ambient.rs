//! The one source of randomness that is not an argument: the seeds of the standard library's hash
//! maps, which decide their iteration order.
//!
//! The library asks getrandom(2) for the seeds, once in each thread. Here the answer depends on the
//! run's seed in threads that make runs. In all other threads it is the kernel's answer.

use std::cell::Cell;

thread_local! {
    static SEED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Derives the hash map seeds of this thread from `seed` from now on. Must be called before the
/// thread makes its first hash map.
pub fn seed_this_thread(seed: u64) {
    SEED.set(Some(seed));
}

/// Replaces the C library's function of this name, in this test only.
///
/// # Safety
/// As getrandom(2): `buffer` must have room for `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(
    buffer: *mut libc::c_void,
    length: libc::size_t,
    flags: libc::c_uint,
) -> libc::ssize_t {
    let Some(mut state) = SEED.try_with(Cell::get).ok().flatten() else {
        // SAFETY: the caller's promise is passed on as it is.
        return unsafe {
            libc::syscall(libc::SYS_getrandom, buffer, length, flags) as libc::ssize_t
        };
    };
    for at in 0..length {
        // A shortened splitmix64 generator; any mixing is good enough here.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        // SAFETY: `at` is below `length`, for which the caller promised room.
        unsafe { buffer.cast::<u8>().add(at).write((mixed >> 40) as u8) };
    }
    let _ = SEED.try_with(|seed| seed.set(Some(state)));
    length as libc::ssize_t
}
