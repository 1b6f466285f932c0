//! Keys and region of S3 from a profile in the files of Amazon's own tools: `~/.aws/credentials`
//! and `~/.aws/config`.
//!
//! Owns the choice of files and profile, and which settings are understood (keys, session token,
//! region). Reads the keys again during a mount, since other tools renew them there. Does not own
//! other sources of credentials that a profile may name (a role, single sign-on, a program):
//! Amazon's tools implement those.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;
use tokio::time::Instant;

/// The age at which keys are read again. Renewed keys may stay unnoticed for this long.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The files of profiles, and the profile's name.
#[derive(Clone, Debug)]
pub(super) struct Profiles {
    credentials: PathBuf,
    config: PathBuf,
    name: String,
    /// Whether the user asked for this profile by name.
    is_asked: bool,
}

/// A profile with keys.
#[derive(Debug)]
pub(super) struct Profile {
    pub(super) keys: Arc<ProfileKeys>,
    pub(super) region: Option<String>,
}

/// Keys that are read from their file again and again.
pub(super) struct ProfileKeys {
    profiles: Profiles,
    read: Mutex<(Instant, Arc<AwsCredential>)>,
}

impl fmt::Debug for ProfileKeys {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "ProfileKeys({})", self.profiles.name)
    }
}

type Sections = BTreeMap<String, BTreeMap<String, String>>;

impl Profiles {
    /// Returns the profile that the variables of Amazon's tools name, or `None` without a home
    /// directory. `variable` returns the value of a variable.
    pub(super) fn of(variable: impl Fn(&str) -> Option<String>) -> Option<Self> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let home = set("HOME").map(|home| Path::new(&home).join(".aws"));
        let file = |name: &str, usual: &str| match set(name) {
            Some(path) => Some(PathBuf::from(path)),
            None => Some(home.as_ref()?.join(usual)),
        };
        let asked = set("AWS_PROFILE").or_else(|| set("AWS_DEFAULT_PROFILE"));
        Some(Self {
            credentials: file("AWS_SHARED_CREDENTIALS_FILE", "credentials")?,
            config: file("AWS_CONFIG_FILE", "config")?,
            is_asked: asked.is_some(),
            name: asked.unwrap_or_else(|| "default".to_owned()),
        })
    }

    /// Loads the profile. Returns `None` if the user asked for no profile and there are no keys.
    ///
    /// # Errors
    /// A message if the profile that the user asked for has no keys.
    pub(super) fn load(self) -> Result<Option<Profile>, String> {
        let settings = self.settings();
        let Some(keys) = keys_in(&settings) else {
            return match self.is_asked {
                false => Ok(None),
                true => Err(format!(
                    "the profile {:?} has no aws_access_key_id and aws_secret_access_key in {} or \
                     {} (roles, single sign-on and credential_process are not followed: aws \
                     configure export-credentials gives keys)",
                    self.name,
                    self.credentials.display(),
                    self.config.display()
                )),
            };
        };
        let region = settings.get("region").cloned();
        let keys = ProfileKeys {
            profiles: self,
            read: Mutex::new((Instant::now(), Arc::new(keys))),
        };
        Ok(Some(Profile {
            keys: Arc::new(keys),
            region,
        }))
    }

    /// Returns the settings of the profile from both files. The credentials file takes precedence.
    fn settings(&self) -> BTreeMap<String, String> {
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let mut config = parse(&read(&self.config));
        let mut credentials = parse(&read(&self.credentials));
        let in_config = match self.name.as_str() {
            "default" => "default".to_owned(),
            name => format!("profile {name}"),
        };
        let mut settings = config.remove(&in_config).unwrap_or_default();
        settings.extend(credentials.remove(&self.name).unwrap_or_default());
        settings
    }
}

fn keys_in(settings: &BTreeMap<String, String>) -> Option<AwsCredential> {
    Some(AwsCredential {
        key_id: settings.get("aws_access_key_id")?.clone(),
        secret_key: settings.get("aws_secret_access_key")?.clone(),
        token: settings.get("aws_session_token").cloned(),
    })
}

/// Returns the settings of each section. A line that begins with a space belongs to the nested
/// setting above it, which bkfs does not use.
fn parse(text: &str) -> Sections {
    let mut sections = Sections::new();
    let mut section = None;
    for line in text.lines() {
        if line.starts_with([' ', '\t', '#', ';']) {
            continue;
        }
        let line = line.trim_end();
        if let Some(name) = line.strip_prefix('[') {
            let name = name.split(']').next().unwrap_or_default();
            let words: Vec<&str> = name.split_whitespace().collect();
            section = Some(words.join(" "));
        } else if let (Some(section), Some((key, value))) = (&section, line.split_once('=')) {
            let settings = sections.entry(section.clone()).or_default();
            settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    sections
}

#[async_trait]
impl CredentialProvider for ProfileKeys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let (read_at, known) = self.read.lock().clone();
        if read_at.elapsed() < READ_AGAIN_AFTER {
            return Ok(known);
        }
        let profiles = self.profiles.clone();
        let read = tokio::task::spawn_blocking(move || keys_in(&profiles.settings())).await;
        // If the file is being written or is gone, the known keys stay.
        let keys = read.ok().flatten().map_or(known, Arc::new);
        *self.read.lock() = (Instant::now(), Arc::clone(&keys));
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Home(tempfile::TempDir);

    impl Home {
        fn new(credentials: &str, config: &str) -> Self {
            let home = Home(tempfile::tempdir().expect("a directory"));
            std::fs::create_dir(home.0.path().join(".aws")).expect("made");
            home.write("credentials", credentials);
            home.write("config", config);
            home
        }

        fn write(&self, file: &str, text: &str) {
            std::fs::write(self.0.path().join(".aws").join(file), text).expect("written");
        }

        fn load(&self, variables: &[(&str, &str)]) -> Result<Option<Profile>, String> {
            let home = self.0.path().to_str().expect("UTF-8").to_owned();
            let profiles = Profiles::of(|wanted| {
                let set = variables.iter().find(|(name, _)| *name == wanted);
                let set = set.map(|(_, value)| (*value).to_owned());
                set.or_else(|| (wanted == "HOME").then(|| home.clone()))
            });
            profiles.expect("there is a home").load()
        }
    }

    const CREDENTIALS: &str = "# mine\n[default]\naws_access_key_id = AK1\naws_secret_access_key=s/1==\n\n[ other ]\nAWS_ACCESS_KEY_ID=AK2\naws_secret_access_key = s2\naws_session_token = t2\ns3 =\n  aws_access_key_id = nested\n";
    const CONFIG: &str = "[default]\nregion = eu-1\n[profile other]\nregion = us-2\n[profile role]\nrole_arn = arn:aws:iam::1:role/x\n";

    async fn keys(profile: &Profile) -> (String, String, Option<String>) {
        let keys = profile.keys.get_credential().await.expect("keys");
        (
            keys.key_id.clone(),
            keys.secret_key.clone(),
            keys.token.clone(),
        )
    }

    #[tokio::test]
    async fn profiles_are_found_by_name() {
        let home = Home::new(CREDENTIALS, CONFIG);
        let usual = home.load(&[]).expect("loads").expect("has keys");
        assert_eq!(keys(&usual).await, ("AK1".into(), "s/1==".into(), None));
        assert_eq!(usual.region.as_deref(), Some("eu-1"));
        let other = home.load(&[("AWS_PROFILE", "other")]);
        let other = other.expect("loads").expect("has keys");
        let expected = ("AK2".into(), "s2".into(), Some("t2".into()));
        assert_eq!(keys(&other).await, expected);
        assert_eq!(other.region.as_deref(), Some("us-2"));
        for without in ["role", "absent"] {
            let refused = home.load(&[("AWS_PROFILE", without)]).expect_err("no keys");
            assert!(refused.contains(without), "{refused}");
        }
        let elsewhere = home.0.path().join("elsewhere");
        let variables = [
            (
                "AWS_SHARED_CREDENTIALS_FILE",
                elsewhere.to_str().expect("UTF-8"),
            ),
            ("AWS_CONFIG_FILE", "/dev/null"),
        ];
        assert!(home.load(&variables).expect("loads").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn renewed_keys_are_heeded() {
        let home = Home::new(CREDENTIALS, "");
        let profile = home.load(&[]).expect("loads").expect("has keys");
        home.write("credentials", &CREDENTIALS.replace("AK1", "AK3"));
        assert_eq!(keys(&profile).await.0, "AK1", "not read for each request");
        tokio::time::advance(READ_AGAIN_AFTER).await;
        assert_eq!(keys(&profile).await.0, "AK3");
        home.write("credentials", "");
        tokio::time::advance(READ_AGAIN_AFTER).await;
        assert_eq!(keys(&profile).await.0, "AK3", "a file being written");
    }
}
