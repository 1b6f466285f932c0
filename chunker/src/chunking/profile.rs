//! The profiles: the ways in which a part of a file is chunked.
//!
//! Owns their numbers, which are part of the format. Does not own where they cut, nor which profile
//! a file gets (detect).

/// How a part of a file is chunked. The number is part of the format.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
#[repr(u8)]
pub enum Profile {
    /// On the page grid, counted from the beginning of the file: for databases and disk images,
    /// which are rewritten in place.
    Grid = 1,
    /// Where the content decides (FastCDC): for everything else.
    Content = 2,
    /// Into large chunks of one length: for compressed or encrypted data, in which no part repeats.
    Raw = 3,
}

impl Profile {
    /// Every profile, in ascending order of its number.
    pub const ALL: [Profile; 3] = [Profile::Grid, Profile::Content, Profile::Raw];

    /// Returns the profile with this number. `None` if there is none.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }
}
