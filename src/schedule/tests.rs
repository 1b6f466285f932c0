use std::path::Path;

use super::unit::{Surroundings, owner, service, timer};
use super::*;

fn schedule(text: &str) -> Schedule {
    toml::from_str(text).unwrap()
}

const WHOLE: &str = "
    on_success = 'curl -fsS https://ping.example/$UUID'
    on_failure = 'mail -s bkfs root'
    run.mysql = { at = '02:00', mount = '/backup', name = 'mysql-%F', command = ['tool', 'a b', ';'] }
    forget = { at = '04:00', delay = '0', gc_options = ['--undelete-window', '14d'] }
    check = { at = 'Sun 05:00', options = ['--read-data=5%'] }
    copy = { at = '06:00', to = 'second' }
    drill.mysql = { at = 'Sun 07:00', command = ['tool', '$BKFS_CLONE'], options = ['--user=mysql'] }
    metrics = { at = '*:0/10', textfile = '/srv/node exporter/bkfs.prom' }
";

#[test]
fn jobs_are_commands_of_bkfs() {
    let jobs = schedule(WHOLE).jobs("offsite").unwrap();
    let units: Vec<&str> = jobs.iter().map(|job| job.unit.as_str()).collect();
    let expected = [
        "run-mysql",
        "drill-mysql",
        "forget",
        "check",
        "copy",
        "metrics",
    ];
    assert_eq!(units, expected.map(|unit| format!("bkfs-offsite-{unit}")));
    assert_eq!(jobs[0].delay, "5min");
    assert_eq!(jobs[2].delay, "0");
    let success = "curl -fsS https://ping.example/$UUID";
    let hooks = ["--on-success", success, "--on-failure", "mail -s bkfs root"];
    let words = |parts: &[&[&'static str]]| parts.concat();
    let run: &[&str] = &["run", "--name", "mysql-%F"];
    let tool: &[&str] = &["/backup", "--", "tool", "a b", ";"];
    assert_eq!(jobs[0].commands, [words(&[run, &hooks, tool])]);
    let drill: &[&str] = &["--user=mysql", "offsite", "latest", "--", "tool"];
    let drill = words(&[&["--wait", "drill"], &hooks, drill, &["$BKFS_CLONE"]]);
    assert_eq!(jobs[1].commands, [drill]);
    // One message about two commands.
    assert_eq!(
        jobs[2].commands,
        [
            words(&[&["--wait", "forget"], &hooks[2..], &["offsite"]]),
            words(&[
                &["--wait", "gc"],
                &hooks,
                &["--undelete-window", "14d", "offsite"]
            ]),
        ]
    );
    assert_eq!(
        jobs[4].commands,
        [words(&[
            &["--wait", "copy"],
            &hooks,
            &["offsite", "second"]
        ])]
    );
    assert_eq!(jobs[4].repositories, ["offsite", "second"]);
    let file = "/srv/node exporter/bkfs.prom";
    assert_eq!(
        jobs[5].commands,
        [["metrics", "--textfile", file, "offsite"]]
    );
}

#[test]
fn arguments_reach_the_program_as_they_are() {
    let jobs = schedule(WHOLE).jobs("offsite").unwrap();
    let around = Surroundings {
        name: "offsite",
        program: Path::new("/usr/bin/bkfs"),
        buckets: vec!["/srv/my bucket".into()],
    };
    let text = service(&jobs[0], &around).unwrap();
    let line = "ExecStart=/usr/bin/bkfs run --name \"mysql-%%F\" --on-success \
                \"curl -fsS https://ping.example/$$UUID\" --on-failure \"mail -s bkfs root\" /backup \
                -- tool \"a b\" \";\"\n";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("\nRequiresMountsFor=/backup\n"), "{text}");
    assert!(
        !text.contains("ReadWritePaths"),
        "a tool may write where it likes: {text}"
    );
    let mut at_home = jobs[0].clone();
    at_home.needs = Needs::Mount("/home/db/backup".into());
    let text = service(&at_home, &around).unwrap();
    assert!(
        text.contains("\nReadWritePaths=/home/db/backup\n"),
        "{text}"
    );
    let text = service(&jobs[1], &around).unwrap();
    assert!(text.contains(" -- tool \"$$BKFS_CLONE\"\n"), "{text}");
    assert!(
        text.contains("\nDeviceAllow=/dev/fuse rw\n"),
        "it mounts: {text}"
    );
    assert!(
        text.contains("\nReadWritePaths=\"/srv/my bucket\"\n"),
        "the result is written: {text}"
    );
    let text = service(&jobs[2], &around).unwrap();
    assert!(
        text.contains("\nReadWritePaths=\"/srv/my bucket\"\n"),
        "{text}"
    );
    assert_eq!(text.matches("\nExecStart=").count(), 2);
    assert_eq!(owner(&text), Some("offsite"));
    let text = timer(&jobs[3], "offsite").unwrap();
    assert!(
        text.contains("\nOnCalendar=Sun 05:00\nRandomizedDelaySec=5min\n"),
        "{text}"
    );
    assert_eq!(owner(&text), Some("offsite"));
    assert_eq!(owner("[Unit]\n# bkfs schedule of offsite\n"), None);
    let text = service(&jobs[5], &around).unwrap();
    assert!(
        text.contains("\nReadWritePaths=\"/srv/node exporter\"\n"),
        "{text}"
    );
    let escaped = r#"check = { at = 'daily', options = ['a\b"c', '', '$${X}'] }"#;
    let jobs = schedule(escaped).jobs("x").unwrap();
    let text = service(&jobs[0], &around).unwrap();
    let line = r#"bkfs --wait check "a\\b\"c" "" "$$$${X}" x"#;
    assert!(text.contains(line), "{text}");
}

#[test]
fn what_a_unit_cannot_hold_is_refused() {
    let run = |fields: &str| schedule(&format!("[run.x]\nat = 'daily'\n{fields}\n"));
    let refused = run("mount = 'backup'\ncommand = ['x']")
        .jobs("a")
        .unwrap_err();
    assert_eq!(
        refused,
        ScheduleError::Mount {
            name: "x".into(),
            mount: "backup".into()
        }
    );
    let refused = run("mount = '/backup'\ncommand = []")
        .jobs("a")
        .unwrap_err();
    let no_command = |kind| ScheduleError::NoCommand {
        kind,
        name: "x".into(),
    };
    assert_eq!(refused, no_command("backup"));
    let refused = schedule("drill.x = { at = 'daily', command = [] }").jobs("a");
    assert_eq!(refused.unwrap_err(), no_command("drill"));
    let relative = schedule("metrics = { at = 'daily', textfile = 'bkfs.prom' }");
    assert_eq!(
        relative.jobs("a").unwrap_err(),
        ScheduleError::Textfile("bkfs.prom".into())
    );
    let whole = schedule(WHOLE);
    for name in ["a/b", "", "a b", "a\nb", "%i"] {
        let refused = whole.jobs(name).unwrap_err();
        assert_eq!(refused, ScheduleError::Name(name.into()));
    }
    let around = Surroundings {
        name: "a",
        program: Path::new("/usr/bin/bkfs"),
        buckets: Vec::new(),
    };
    let jobs = run("mount = '/backup'\ncommand = [\"x\\nExecStart=/bin/sh\"]")
        .jobs("a")
        .unwrap();
    let text = "x\nExecStart=/bin/sh".to_owned();
    assert_eq!(
        service(&jobs[0], &around).unwrap_err(),
        ScheduleError::Text(text)
    );
    let jobs = schedule("check = { at = \"daily\\nUnit=x\" }")
        .jobs("a")
        .unwrap();
    assert!(timer(&jobs[0], "a").is_err());
}
