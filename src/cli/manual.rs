//! What the manual says of all commands together: exit codes, named repositories, environment,
//! files and logs. `bkfs --help` and the manual page show it.
//!
//! Owns the texts, and their forms for a terminal and for man(1). Does not own the help of single
//! commands, which stands at their arguments.

use std::fmt::Write;

/// A section of the manual.
struct Section {
    title: &'static str,
    intro: &'static str,
    /// Terms, and what each means.
    entries: &'static [(&'static str, &'static str)],
    /// Lines that are shown as they are.
    example: &'static str,
}

const SECTIONS: &[Section] = &[EXIT_CODES, REPOSITORIES, ENVIRONMENT, FILES, LOGS];

const EXIT_CODES: Section = Section {
    title: "Exit codes",
    intro: "Every command ends with one of these. bkfs run and bkfs put -- COMMAND end with the \
            tool's own code if the tool failed: 126 or 127 if it cannot be run, 128 and the number \
            of the signal that ended it.",
    entries: &[
        ("0", "Done."),
        ("1", "Failed. The message says what failed and what to do."),
        (
            "2",
            "Bad usage: an argument, an option or the configuration.",
        ),
        (
            "3",
            "Partly done. What is missing is named on stderr: files that could not be restored, \
             names that were left out, old keys that are left after a rotation, or a mount that is \
             still mounted elsewhere. What was done stays.",
        ),
        ("10", "No repository at this URL."),
        ("11", "Locked, or another writer holds the volume."),
        ("12", "Wrong password, or none."),
        (
            "13",
            "Damaged data was found, or the repository is older than one that this machine knows.",
        ),
        (
            "14",
            "Outcome unknown. The store did not answer, or the command was interrupted, while a \
             change was on its way: the change may be made or not. Look before you repeat it (bkfs \
             snapshots shows whether a snapshot was made).",
        ),
        (
            "125",
            "bkfs run: the tool succeeded and the snapshot was not made, or the tool was not \
             started. bkfs drill: there was no drill, the command did not end in time, or the clone \
             returned errors.",
        ),
    ],
    example: "",
};

const REPOSITORIES: Section = Section {
    title: "Repositories",
    intro: "Where a command takes a URL it takes s3://bucket/prefix, gs://bucket/prefix, \
            az://container/prefix, file:///dir, a path with a slash, a mount point, a name from the \
            configuration, or - for what BKFS_REPOSITORY holds. A bare word that the configuration \
            does not name is a bucket of S3. A profile in the configuration looks like this; all \
            but url may be absent:",
    entries: &[],
    example: "[repository.offsite]\n\
              url = \"s3://backups/db1\"\n\
              endpoint = \"https://minio.example\"\n\
              region = \"eu-central-1\"\n\
              password_file = \"/etc/bkfs.password\"\n\
              # or: password_command = \"pass show bkfs\"\n\
              volume = \"db1\"\n\
              options = \"allow_other,memory=1G\"\n\
              retention = { keep_last = 3, keep_daily = 14 }\n\
              \n\
              # bkfs snapshots offsite",
};

const ENVIRONMENT: Section = Section {
    title: "Environment",
    intro: "",
    entries: &[
        (
            "BKFS_PASSWORD_FILE, BKFS_PASSWORD",
            "The password, unless an option gives it. Tools that bkfs runs do not see \
             BKFS_PASSWORD.",
        ),
        (
            "BKFS_NEW_PASSWORD_FILE, BKFS_NEW_PASSWORD",
            "The new password of bkfs key add and passwd.",
        ),
        (
            "BKFS_FROM_PASSWORD_FILE, BKFS_FROM_PASSWORD",
            "The password of the source of bkfs copy and bkfs check --from.",
        ),
        (
            "BKFS_REPOSITORY",
            "What - stands for where a command takes a URL. It changes the meaning of nothing else.",
        ),
        ("BKFS_KEY", "As --key."),
        (
            "BKFS_LOG",
            "What is logged: error, warn, info, debug, or parts of the program, as bkfs=debug.",
        ),
        (
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, AWS_PROFILE",
            "Access to S3. Without keys here, those of the profile in ~/.aws. GOOGLE_… and AZURE_… \
             give access to the other services.",
        ),
        (
            "XDG_CONFIG_HOME, XDG_CACHE_HOME, XDG_STATE_HOME, XDG_RUNTIME_DIR",
            "Where a user's files are, in place of ~/.config, ~/.cache and ~/.local/state; for \
             root in place of /var/cache, /var/lib and /run.",
        ),
    ],
    example: "",
};

const FILES: Section = Section {
    title: "Files",
    intro: "",
    entries: &[
        (
            "/etc/bkfs.toml, ~/.config/bkfs/bkfs.toml",
            "The configuration: profiles of repositories, and the table [prices] of bkfs stats. \
             The user's file comes second, and its profiles replace those of the same name.",
        ),
        (
            "/var/cache/bkfs, ~/.cache/bkfs",
            "Fetched data. It may be deleted at any time.",
        ),
        (
            "/var/lib/bkfs, ~/.local/state/bkfs",
            "What this machine remembers of repositories, and the spools: data that was accepted \
             and is not in the bucket yet. Do not delete it.",
        ),
        (
            "MOUNTPOINT/.bkfs/status, MOUNTPOINT/.bkfs/metrics",
            "The state of a mount as JSON, and metrics for Prometheus.",
        ),
    ],
    example: "",
};

const LOGS: Section = Section {
    title: "Logs",
    intro: "A mount in the background logs to the journal of systemd where that runs; otherwise to \
            the file below. In the foreground (-f), and all other commands, log to stderr. -v logs \
            more.",
    entries: &[
        ("journalctl -t bkfs", "The log of mounts, in the journal."),
        (
            "/var/lib/bkfs/bkfs.log, ~/.local/state/bkfs/bkfs.log",
            "The log of mounts without a journal.",
        ),
    ],
    example: "",
};

/// The width of a line on a terminal.
const WIDTH: usize = 80;

/// Returns all sections for a terminal.
pub fn for_terminal() -> String {
    let mut text = String::new();
    for section in SECTIONS {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}{}:", gap(&text), section.title);
        fill(&mut text, section.intro, 2);
        for (term, meaning) in section.entries {
            let _ = writeln!(text, "  {term}");
            fill(&mut text, meaning, 6);
        }
        for line in section.example.lines() {
            let _ = writeln!(text, "{}", format!("    {line}").trim_end());
        }
    }
    text.truncate(text.trim_end().len());
    text
}

fn gap(text: &str) -> &'static str {
    match text.is_empty() {
        true => "",
        false => "\n",
    }
}

/// Adds a paragraph, in lines that begin with `indent` spaces.
fn fill(text: &mut String, paragraph: &str, indent: usize) {
    let mut line = String::new();
    for word in paragraph.split_whitespace() {
        let is_full = indent + line.chars().count() + 1 + word.chars().count() > WIDTH;
        if is_full && !line.is_empty() {
            let _ = writeln!(text, "{}{line}", " ".repeat(indent));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        let _ = writeln!(text, "{}{line}", " ".repeat(indent));
    }
}

/// Returns all sections for man(1), in roff.
pub fn for_man() -> String {
    let mut text = String::new();
    for section in SECTIONS {
        let _ = writeln!(text, ".SH {}", roff(&section.title.to_uppercase()));
        if !section.intro.is_empty() {
            let _ = writeln!(text, "{}", roff(section.intro));
        }
        for (term, meaning) in section.entries {
            let _ = writeln!(text, ".TP\n\\fB{}\\fR\n{}", roff(term), roff(meaning));
        }
        if !section.example.is_empty() {
            let lines: Vec<String> = section.example.lines().map(roff).collect();
            let _ = writeln!(text, ".PP\n.nf\n{}\n.fi", lines.join("\n"));
        }
    }
    text
}

/// Returns a line of text as roff shows it unchanged.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    match text.starts_with(['.', '\'']) {
        true => format!("\\&{text}"),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::output::Code;

    #[test]
    fn the_manual_has_every_exit_code() {
        let documented: Vec<i64> = EXIT_CODES
            .entries
            .iter()
            .map(|(code, _)| code.parse().expect("a number"))
            .collect();
        let defined =
            (0..=255).filter(|number| *number == 0 || Code::of(*number) as i64 == *number);
        assert_eq!(documented, defined.collect::<Vec<_>>());
    }

    #[test]
    fn both_forms_hold_all_of_it() {
        let (terminal, man) = (for_terminal(), for_man());
        let words = terminal.split_whitespace().collect::<Vec<_>>().join(" ");
        for section in SECTIONS {
            for (term, meaning) in section.entries {
                assert!(words.contains(term) && words.contains(meaning), "{term}");
                assert!(
                    man.contains(&roff(term)) && man.contains(&roff(meaning)),
                    "{term}"
                );
            }
        }
        assert!(
            terminal.lines().all(|line| line.chars().count() <= 90),
            "{terminal}"
        );
        assert!(man.lines().all(|line| !line.starts_with('\'')), "{man}");
        assert_eq!(roff(".x\\y-z"), "\\&.x\\ey\\-z");
    }
}
