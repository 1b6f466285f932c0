//! The encoding of a root.
//!
//! Owns how a root becomes the payload of its object, and that nothing is written that would not be
//! read. Does not own the forms of payloads ([`super::form`]) or the invariants ([`Root::check`]).
//! Pure.

use super::form::Form;
use super::state::{Root, StateError};

impl Root {
    /// Returns the payload of the root object.
    ///
    /// # Errors
    /// [`StateError::Inconsistent`] if the root violates an invariant; [`StateError::TooLarge`] if
    /// it has more than [`Root::bytes_max`] in CBOR.
    pub fn encode(&self) -> Result<Vec<u8>, StateError> {
        let (cbor, _) = self.measured()?;
        Ok(self.form.payload(cbor))
    }

    /// Returns by how many bytes of CBOR the root may still grow.
    ///
    /// # Errors
    /// Those of [`Root::encode`].
    pub fn room(&self) -> Result<usize, StateError> {
        let (_, room) = self.measured()?;
        Ok(room)
    }

    fn measured(&self) -> Result<(Vec<u8>, usize), StateError> {
        self.check()?;
        let cbor = minicbor::to_vec(self).expect("writing plain fields to memory cannot fail");
        let room = room_of(cbor.len(), self.bytes_max())?;
        Ok((cbor, room))
    }

    /// Decodes the payload of a small root.
    ///
    /// # Errors
    /// Those of [`Root::decode_as`].
    pub fn decode(payload: &[u8]) -> Result<Self, StateError> {
        Self::decode_as(Form::Small, payload)
    }

    /// Decodes the payload that [`Root::encode`] returns for a root of this form.
    ///
    /// # Errors
    /// - [`StateError::TooLarge`] if it has more than [`Form::bytes_max`] in CBOR.
    /// - [`StateError::Malformed`] if it cannot be decoded.
    /// - [`StateError::Inconsistent`] if the root violates an invariant.
    pub fn decode_as(form: Form, payload: &[u8]) -> Result<Self, StateError> {
        let cbor = form.cbor(payload).map_err(StateError::Malformed)?;
        room_of(cbor.len(), form.bytes_max())?;
        let mut root: Self =
            minicbor::decode(&cbor).map_err(|error| StateError::Malformed(error.to_string()))?;
        root.form = form;
        root.check()?;
        root.drop_unfounded_groups();
        Ok(root)
    }

    /// Returns the most CBOR that this root may have, in bytes.
    pub fn bytes_max(&self) -> usize {
        self.form.bytes_max()
    }

    /// Returns the largest number of sessions that this root may have.
    pub fn sessions_max(&self) -> usize {
        self.form.sessions_max()
    }
}

/// Returns how many of `bytes_max` bytes are left.
///
/// # Errors
/// [`StateError::TooLarge`].
fn room_of(bytes: usize, bytes_max: usize) -> Result<usize, StateError> {
    let room = bytes_max.checked_sub(bytes);
    room.ok_or(StateError::TooLarge { bytes, bytes_max })
}
