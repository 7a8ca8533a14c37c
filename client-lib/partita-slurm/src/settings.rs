//! The plugin's arguments in `plugstack.conf`.

use std::path::PathBuf;

/// How the plugin is set up on a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Settings {
    /// The folder of the daemon's sockets.
    pub(crate) socket_dir: PathBuf,
    /// The folder of the library that programs load in place of CUDA's driver.
    pub(crate) lib_dir: PathBuf,
    /// The GPU whose SMs jobs get.
    pub(crate) gpu: u16,
    /// The days after which a reservation ends whose epilog never came.
    pub(crate) days: u32,
    /// Whether a job's `AdminComment` tells what the job has had.
    pub(crate) comment: bool,
    /// What is wrong with the arguments.
    pub(crate) complaints: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            socket_dir: "/run/partita".into(),
            lib_dir: "/usr/lib/partita".into(),
            gpu: 0,
            days: 30,
            comment: true,
            complaints: Vec::new(),
        }
    }
}

impl Settings {
    /// Reads the arguments. A wrong one keeps its default and is complained of: a mistake in
    /// `plugstack.conf` must not stop a cluster's jobs.
    pub(crate) fn read(arguments: &[String]) -> Settings {
        let mut settings = Settings::default();
        for argument in arguments {
            if let Err(why) = settings.take(argument) {
                settings.complaints.push(format!("plugstack.conf: `{argument}`: {why}"));
            }
        }
        settings
    }

    fn take(&mut self, argument: &str) -> Result<(), String> {
        let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
        let folder = || match value.starts_with('/') {
            true => Ok(PathBuf::from(value)),
            false => Err("give a folder as an absolute path".to_owned()),
        };
        match key {
            "socket_dir" => self.socket_dir = folder()?,
            "lib_dir" => self.lib_dir = folder()?,
            "gpu" => {
                let number = value.parse();
                self.gpu = number.map_err(|_| "give the number of a GPU, from 0")?;
            }
            "days" => {
                let days = value.parse().ok().filter(|days| (1..=3650).contains(days));
                self.days = days.ok_or("give 1 to 3650 days")?;
            }
            "comment" => {
                self.comment = match value {
                    "admin" => true,
                    "off" => false,
                    _ => return Err("it is `comment=admin` or `comment=off`".into()),
                }
            }
            _ => {
                let known = "socket_dir=, lib_dir=, gpu=, days= and comment=";
                return Err(format!("the arguments are {known}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_read_and_wrong_ones_are_named() {
        let read = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            Settings::read(&words)
        };
        assert_eq!(read(""), Settings::default());
        let all = read("socket_dir=/tmp/s lib_dir=/opt/partita gpu=2 days=3 comment=off");
        assert_eq!(all.socket_dir, PathBuf::from("/tmp/s"));
        assert_eq!((all.gpu, all.days, all.comment), (2, 3, false));
        assert!(all.complaints.is_empty());
        let wrong = "socket_dir=tmp lib_dir gpu=x days=0 days=9999 comment=user colour=red";
        for wrong in wrong.split_whitespace() {
            let settings = read(wrong);
            assert!(settings.complaints[0].starts_with("plugstack.conf: `"), "{wrong}");
            assert_eq!(Settings { complaints: Vec::new(), ..settings }, Settings::default());
        }
    }
}
