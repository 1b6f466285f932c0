use super::*;
use proptest::prelude::*;

fn parse(string: &str) -> Result<MountOptions, OptionError> {
    MountOptions::parse([string])
}

fn other(key: &str, value: Option<&str>) -> OtherOption {
    OtherOption {
        key: key.to_owned(),
        value: value.map(str::to_owned),
    }
}

#[test]
fn nothing_given_is_safe() {
    let options = MountOptions::parse::<&str>([]).unwrap();
    assert_eq!(options, MountOptions::default());
    assert!(options.flags.nosuid && options.flags.nodev);
    assert!(!options.flags.read_only);
    assert_eq!(options.access, Access::Owner);
}

#[test]
fn a_line_of_fstab_leaves_no_rest() {
    let options = parse(
        "defaults,_netdev,noauto,nofail,user,x-systemd.automount,X-mount.mkdir=0755,comment=a b,ro,relatime",
    )
    .unwrap();
    assert!(options.flags.read_only && options.flags.relatime && options.flags.noexec);
    assert_eq!(options.others, []);
}

#[test]
fn the_last_of_contradicting_options_holds() {
    assert!(!parse("ro,rw").unwrap().flags.read_only);
    assert!(parse("rw,ro").unwrap().flags.read_only);
    assert!(!parse("user,exec,suid,dev").unwrap().flags.noexec);
    assert_eq!(
        parse("allow_other,allow_root").unwrap().access,
        Access::OwnerAndRoot
    );
    assert_eq!(parse("uid=1,uid=2").unwrap().ownership.uid, Some(2));
}

#[test]
fn set_id_bits_are_allowed_where_nothing_refuses_them() {
    let effects = |string: &str| {
        let flags = parse(string).unwrap().flags;
        (!flags.nosuid, !flags.nodev)
    };
    assert_eq!(effects("allow_suid"), (true, false));
    assert_eq!(effects("rw,allow_dev,allow_suid"), (true, true));
    // mount(8) puts the options of its own command line before those of fstab.
    assert_eq!(effects("nosuid,allow_suid,allow_dev"), (false, true));
    assert_eq!(effects("user,allow_suid,allow_dev"), (false, false));
    assert_eq!(effects("suid,dev"), (true, true));
    assert_eq!(
        parse("allow_suid=yes"),
        Err(OptionError::UnwantedValue("allow_suid".into()))
    );
}

#[test]
fn unknown_options_are_handed_on_in_order() {
    let options = parse("volume=a,ro,timeout=5,steal,volume=b,empty=").unwrap();
    assert_eq!(
        options.others,
        [
            other("volume", Some("a")),
            other("timeout", Some("5")),
            other("steal", None),
            other("volume", Some("b")),
            other("empty", Some("")),
        ]
    );
}

#[test]
fn commas_can_be_quoted_and_escaped() {
    let options = parse(r#"password_file=/a\,b\\c,cache_dir="/d,e=f",context="s:c1,c2""#).unwrap();
    assert_eq!(
        options.others,
        [
            other("password_file", Some(r"/a,b\c")),
            other("cache_dir", Some("/d,e=f")),
        ]
    );
    assert_eq!(options.security, [r#"context="s:c1,c2""#]);
    assert_eq!(parse(r"k=a\b").unwrap().others, [other("k", Some(r"a\b"))]);
    assert_eq!(parse("k=a=b").unwrap().others, [other("k", Some("a=b"))]);
}

#[test]
fn what_is_wrong_is_named() {
    for (string, message) in [
        ("ro=1", "mount option 'ro' takes no value"),
        ("uid", "mount option 'uid' needs a value"),
        (
            "gid=staff",
            "mount option 'gid=staff': expected a numeric id",
        ),
        (
            "uid=4294967295",
            "mount option 'uid=4294967295': expected a numeric id",
        ),
        (
            "umask=999",
            "mount option 'umask=999': expected an octal number up to 777",
        ),
        (
            "umask=+22",
            "mount option 'umask=+22': expected an octal number up to 777",
        ),
        (
            "remount,ro",
            "mount option 'remount' is not supported: unmount and mount again",
        ),
        (
            "a=\"b,c",
            "the mount options end inside a quotation: a=\"b,c",
        ),
    ] {
        assert_eq!(parse(string).unwrap_err().to_string(), message);
    }
}

fn escape(text: &str) -> String {
    text.replace('\\', r"\\").replace(',', r"\,")
}

proptest! {
    #[test]
    fn arbitrary_strings_never_panic(strings: Vec<String>) {
        let _ = MountOptions::parse(strings);
    }

    #[test]
    fn every_value_can_be_given(values in prop::collection::vec("[^\"]*", 0..5)) {
        let string = values
            .iter()
            .enumerate()
            .map(|(index, value)| format!("key{index}={}", escape(value)))
            .collect::<Vec<_>>()
            .join(",");
        let expected: Vec<OtherOption> = values
            .iter()
            .enumerate()
            .map(|(index, value)| other(&format!("key{index}"), Some(value)))
            .collect();
        prop_assert_eq!(parse(&string).unwrap().others, expected);
    }

    #[test]
    fn strings_accumulate_as_if_joined_by_commas(
        strings in prop::collection::vec(
            prop::sample::select(vec![
                "ro", "rw", "exec", "noexec", "uid=3", "umask=022", "volume=a", "fsync=local",
                "allow_root", "", "x-y=z", "user", "suid", "context=a",
            ]),
            0..8,
        )
    ) {
        let joined = strings.join(",");
        prop_assert_eq!(MountOptions::parse(&strings), parse(&joined));
    }
}
