//! Limits of the process that a command raises before it works.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit on open files with which a command began. Each index object has a file of its own in
/// the cache, so commands raise the limit.
#[derive(Debug)]
pub struct OpenFiles {
    before: Rlimit,
}

impl OpenFiles {
    /// Raises the soft limit as far as this process may.
    pub fn raise() -> Self {
        let before = getrlimit(Resource::Nofile);
        let limit = Self { before };
        limit.set(limit.before.maximum);
        limit
    }

    /// Starts a program with the limit as it was before: some programs cannot bear descriptors above
    /// 1023. Other threads of this process have that limit meanwhile, too.
    pub fn without<T>(&self, start: impl FnOnce() -> T) -> T {
        self.set(self.before.current);
        let started = start();
        self.set(self.before.maximum);
        started
    }

    fn set(&self, current: Option<u64>) {
        let limit = Rlimit {
            current,
            maximum: self.before.maximum,
        };
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!("cannot set the limit on open files to {current:?}: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_has_the_limit_of_before() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        let before = maximum.map_or(500, |maximum| maximum - 1);
        let lowered = Rlimit {
            current: Some(before),
            maximum,
        };
        setrlimit(Resource::Nofile, lowered).expect("lowered");
        let limit = OpenFiles::raise();
        assert_eq!(getrlimit(Resource::Nofile).current, limit.before.maximum);
        let mut program = std::process::Command::new("sh");
        program.args(["-c", "ulimit -Sn"]);
        let told = limit.without(|| program.output()).expect("it runs").stdout;
        let told = String::from_utf8_lossy(&told).trim().to_owned();
        assert_eq!(told, before.to_string());
        assert_eq!(getrlimit(Resource::Nofile).current, limit.before.maximum);
    }
}
