//! Limits of the process that a command raises before it works.

/// Raises the soft limit on open files as far as this process may: each index object has a file of
/// its own in the cache. Not for commands that run other
/// programs: some cannot bear descriptors above 1023.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::debug!(
            "cannot raise the limit on open files from {:?}: {error}",
            limit.current
        );
    }
}
